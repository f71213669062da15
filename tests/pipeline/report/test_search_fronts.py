"""Pareto fronts of searches with several objectives."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest

from pipeline.columns import COLUMNS
from pipeline.report import search_fronts, search_tables
from pipeline.report.summary import Summary
from tests.pipeline.fake_results import cell_of, fake_results, search_step, summary_of

CELL = "cifar10-0.1/local"
TRAFFIC = {0: 40, 1: 50, 2: 20, 3: 60}
ACCURACY = {0: 60.0, 1: 59.0, 2: 50.0, 3: 70.0}
"""By trial; trial 1 is less accurate than trial 0 and sends more."""


def results(objectives: list[str]) -> dict[str, Any]:
    results = fake_results(settings=1, seeds=2, search=4)
    results["config"]["search"] |= {"objectives": objectives}
    cell = cell_of(results, CELL)
    for trial, bytes_up in TRAFFIC.items():
        step = search_step(CELL, trial, 0.01 * (trial + 1), ACCURACY[trial])
        step["records"][0]["metrics"] |= {"bytes_up": bytes_up * 10**6, "bytes_down": 0}
        cell["searched"][trial] = step
    return results


@pytest.fixture(scope="module")
def summary() -> Summary:
    return summary_of(results(["accuracy", "megabytes"]))


def test_the_front_has_every_trial_that_no_other_one_beats_in_all_objectives(summary):
    ((objectives, points),) = search_fronts.fronts(summary).items()
    assert objectives == ("accuracy", "megabytes")
    own = [point for point in points if point.label == "Local"]
    assert [(point.trial, point.values["megabytes"]) for point in own] == [(3, 60.0), (0, 40.0), (2, 20.0)]
    assert own[0].key == cell_of(results(list(objectives)), CELL)["searched"][3]["records"][0]["key"]


def test_a_plot_for_each_objective_beside_the_accuracy(summary):
    assert list(search_fronts.draw(summary)) == ["front-megabytes"]
    assert ">MB in total<" in search_fronts.draw(summary)["front-megabytes"]
    assert list(search_fronts.draw(summary_of(results(["accuracy", "decile", "megabytes"])))) == [
        "front-decile",
        "front-megabytes",
    ]


def test_rows_without_the_objective_are_not_in_its_plot():
    content = results(["accuracy"])
    content["config"]["methods"][0]["search"] = {"trials": 4, "objectives": ["accuracy", "megabytes"]}
    (legend,) = search_fronts.front(summary_of(content), "megabytes").legends
    assert [text.get_text() for text in legend.get_texts()] == ["Local"]


def test_with_the_accuracy_alone_there_is_no_front():
    alone = summary_of(results(["accuracy"]))
    assert (search_fronts.fronts(alone), search_fronts.draw(alone)) == ({}, {})


def test_the_csv_file_has_a_column_for_each_further_objective(summary):
    lines = list(csv.DictReader(io.StringIO(search_tables.rows(summary))))
    own = [float(line["megabytes"]) for line in lines if line["cell"] == CELL]
    assert own == [40.0, 50.0, 20.0, 60.0]


def test_an_objective_with_the_name_of_a_column_of_the_csv_file_has_a_column_of_its_own(monkeypatch):
    monkeypatch.setitem(COLUMNS._added, "seed", COLUMNS["megabytes"])
    (first, *_) = csv.DictReader(io.StringIO(search_tables.rows(summary_of(results(["accuracy", "seed"])))))
    assert float(first["column_seed"]) == TRAFFIC[0]
