"""Quantities of the runs that reports show beside the score."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pfl.engine.metrics import Accuracy, ClientMetric, ClientResult, Unseen
from pfl.run.trials import Record
from pipeline.columns import COLUMNS, Column, columns_of
from pipeline.report.amounts import quantities, quantity, value_range
from pipeline.report.formats import comma_separated, metrics
from pipeline.report.summary import Entry
from tests.pipeline.conftest import with_metrics
from tests.pipeline.fake_results import fake_results, summary_of
from tests.pipeline.running import csv_lines
from tests.refusal import refusal


@pytest.fixture
def entry() -> Entry:
    return summary_of(fake_results(methods=3, seeds=2)).pinned[1].entries["cifar10-0.1"]


def with_accuracies(record: Record, *accuracies: float | None) -> Record:
    clients = tuple(ClientResult(client, 10, 5, accuracy) for client, accuracy in enumerate(accuracies))
    return with_metrics(record, per_client=clients)


def test_megabytes_count_both_directions(entry):
    assert quantity(entry, COLUMNS["megabytes_per_round"]) == pytest.approx(0.5)
    assert quantity(entry, COLUMNS["megabytes"]) == pytest.approx(15.0)


def test_the_worst_decile_is_the_mean_of_the_lowest_tenth_of_the_clients(entry):
    accuracies = [float(90 - place) for place in range(20)]
    record = with_accuracies(entry.successes[0], *accuracies, None)
    assert COLUMNS["decile"].of(record) == pytest.approx((71 + 72) / 2)


def test_a_tenth_of_few_clients_is_one_client(entry):
    assert COLUMNS["decile"].of(with_accuracies(entry.successes[0], 30.0, 50.0, 70.0)) == 30.0


def test_the_deviation_is_over_the_clients_that_have_test_samples(entry):
    record = with_accuracies(entry.successes[0], 40.0, None, 60.0)
    assert COLUMNS["deviation"].of(record) == pytest.approx(10.0)


def test_a_record_without_accuracies_of_clients_has_neither(entry):
    record = with_accuracies(entry.successes[0])
    assert [COLUMNS[name].of(record) for name in ("decile", "deviation")] == [None, None]
    assert quantity(replace(entry, successes=(record,)), COLUMNS["decile"]) is None
    assert value_range([None]) == ""


def with_auroc(record: Record, metric: ClientMetric) -> Record:
    return with_metrics(record, client_metrics={"auroc": metric})


def test_a_metric_has_a_column_for_all_samples_and_one_for_the_mean_over_the_clients(entry):
    seeds = [ClientMetric(0.8, 0.6, [0.6]), ClientMetric(0.9, math.nan, [math.nan])]
    rows = tuple(with_auroc(*pair) for pair in zip(entry.successes, seeds, strict=True))
    columns = columns_of(rows)
    assert list(columns) == [*COLUMNS, "auroc", "auroc_client_mean"]
    pooled, mean = (quantity(replace(entry, successes=rows), columns[name]) for name in list(columns)[-2:])
    assert (pooled, mean) == (pytest.approx(0.85), 0.6)  # where it is defined
    assert columns["auroc"].explanation.startswith("auroc: Area under the ROC curve")


def test_a_metric_replaces_no_column_of_its_name(entry):
    metrics = {name: ClientMetric(0.8, 0.6, [0.6]) for name in ("seconds", "hits", "hits_client_mean")}
    columns = columns_of([with_metrics(entry.successes[0], client_metrics=metrics)])
    assert columns["seconds"] == COLUMNS["seconds"]
    assert len(columns) == len(COLUMNS) + 2 * len(metrics)
    assert columns["metric_seconds"].heading == "seconds, pooled"


def test_unseen_clients_have_a_column_as_received_one_adapted_and_one_from_scratch(entry):
    accuracies = [Accuracy(pooled, 0.0, 0.0, 1.0) for pooled in (20.0, 70.0, 60.0)]
    row = with_metrics(entry.successes[0], unseen=Unseen(*accuracies, ()))
    columns = columns_of([row, entry.successes[1]])
    assert list(columns) == [*COLUMNS, "unseen_received", "unseen_adapted", "unseen_scratch"]
    shown = [quantity(replace(entry, successes=(row,)), column) for column in list(columns.values())[-3:]]
    assert shown == [20.0, 70.0, 60.0]
    assert list(columns_of(entry.successes)) == list(COLUMNS)


def test_a_metric_that_is_no_single_number_has_no_column(entry):
    row = with_auroc(entry.successes[0], ClientMetric([0.5, 0.7], [0.5, 0.7]))
    assert list(columns_of([row])) == list(COLUMNS)


def test_every_number_of_a_metric_is_in_a_csv_with_its_place(entry):
    arrays = [[0.5, math.nan], [0.7, 0.2]]
    rows = tuple(
        with_auroc(row, ClientMetric(*[array] * 2))
        for row, array in zip(entry.successes, arrays, strict=True)
    )
    summary = summary_of(fake_results(methods=3, seeds=2))
    line = replace(summary.pinned[0], entries={entry.setting: replace(entry, successes=rows)})
    written = metrics(replace(summary, pinned=(line,), selected=()))
    pooled = [row for row in csv_lines(written) if row["average"] == "pooled"]
    assert [(row["place"], row["mean"], row["seeds"]) for row in pooled] == [
        ("0", "0.6000", "2"),
        ("1", "0.2000", "1"),
    ]
    assert metrics(summary) == ""


def test_a_column_of_a_plugin_is_in_the_report_and_in_the_csv(monkeypatch):
    monkeypatch.setitem(COLUMNS._added, "rounds", Column("Rounds", lambda record: record.config["rounds"]))
    summary = summary_of(fake_results(methods=2, seeds=1))
    place = list(COLUMNS).index("rounds")
    assert {values[place] for values in quantities(summary).values()} == {"30"}
    rows = csv_lines(comma_separated(summary))
    assert {row["rounds"] for row in rows} == {"30.0000"}


@pytest.mark.parametrize(
    ("function", "why"),
    [(lambda _: "many", "TypeError: it returns 'many'"), (lambda _: {}["steps"], "KeyError: 'steps'")],
)
def test_a_plugins_column_that_is_no_number_is_one_clear_line(monkeypatch, function, why):
    monkeypatch.setitem(COLUMNS._added, "steps", Column("Steps", function))
    assert refusal(comma_separated, summary_of(fake_results(methods=2, seeds=1))) == (
        "report column: Steps is not accepted; expected a function of a record that returns a number or None "
        f"({why})"
    )


def test_a_plugins_column_that_is_not_a_number_is_missing(entry):
    column = Column("Ratio", lambda record: math.nan if record.seed else 3.0)
    assert [column.quantity(record) for record in entry.successes] == [3.0, None]
    assert quantity(entry, column) == 3.0


def test_a_plugins_column_that_the_csv_has_already_is_beside_it(monkeypatch):
    monkeypatch.setitem(COLUMNS._added, "rank", Column("Rank", lambda _: 7.0))
    rows = csv_lines(comma_separated(summary_of(fake_results(methods=2, seeds=1))))
    assert {row["column_rank"] for row in rows} == {"7.0000"}
    assert {row["rank"] for row in rows} == {"1", "2"}
