"""The numbers that an evaluation asks for, out of records."""

from __future__ import annotations

import dataclasses

import pytest

from pfl.engine.metrics import Accuracy, ClientResult, Evaluated, Metrics
from pfl.run.trials import Record
from pipeline.spec.reported import Evaluation
from pipeline.store.scores import Score, curve, curves, lack, reported, score
from tests.pipeline.fake_results import ledger_row, ledger_rows, record_of
from tests.refusal import refusal


def at(value: float) -> dict[str, Accuracy]:
    """Accuracies at two moments, 10 points apart, of which each average is a point above the one before."""
    return {
        "post_aggregation": Accuracy(value, value + 1, value + 2, loss=1.0),
        "post_local": Accuracy(value - 10, value - 9, value - 8, loss=1.0),
    }


def evaluated(round: int, value: float, of_group: float) -> Evaluated:
    groups = {"T": at(of_group)}
    return Evaluated(round=round, train_loss=0.5, bytes_down=0, bytes_up=0, groups=groups, **at(value))


METRICS = Metrics(
    headline="post_aggregation",
    rounds=(evaluated(5, 73.0, 40.0), evaluated(10, 70.0, 35.0)),
    per_client=(
        ClientResult(0, train=300, test=100, accuracy=50.0),
        ClientResult(1, train=100, test=300, accuracy=70.0),
        ClientResult(2, train=100, test=0, accuracy=None),
        ClientResult(3, train=100, test=100, accuracy=10.0),
    ),
    bytes_down=0,
    bytes_up=0,
    similarities={"cs": [[1.0, 0.5], [0.5, 1.0]], "mdb": [[1.0, -0.25], [-0.25, 1.0]]},
)
"""Of a run that was evaluated in rounds 5 and 10, and was better in round 5."""


def record_with(metrics: Metrics) -> Record:
    row = record_of(ledger_row())
    measured = dataclasses.replace(row.measured, samples_per_second=8000.0)
    result = dataclasses.replace(row.success, metrics=metrics, measured=measured)
    return dataclasses.replace(row, result=result)


RECORD = record_with(METRICS)


@pytest.mark.parametrize(
    ("evaluation", "expected"),
    [
        (Evaluation(), 70),
        (Evaluation(which="best"), 73),
        (Evaluation(metric="client_mean"), 71),
        (Evaluation(moment="post_local"), 60),
        (Evaluation(group="T", metric="client_mean_weighted"), 37),
        (Evaluation(group="T", which="best"), 40),
        (Evaluation(metric="seconds_per_sample"), 1.25),
        (Evaluation(metric="similarity"), 0.5),
        (Evaluation(metric="similarity", measure="mdb", pair=[1, 0]), -0.25),
    ],
)
def test_a_number_is_the_one_asked_for(evaluation, expected):
    assert reported(RECORD, evaluation) == expected


def test_a_score_is_the_mean_and_the_sample_deviation_over_the_seeds():
    records = [record_of(row) for row in ledger_rows("cifar10-0.1/fedavg", (50.0, 52.0, 57.0))]
    assert score(records, Evaluation()) == Score(mean=53.0, std=pytest.approx(13**0.5), seeds=3)


def test_one_seed_has_no_deviation_and_no_record_no_score():
    assert score([RECORD], Evaluation()) == Score(70.0, None, 1)
    assert score([], Evaluation()) is None


@pytest.mark.parametrize(
    ("metric", "expected"), [("client_mean", 60), ("pooled", 65), ("client_mean_weighted", 55)]
)
def test_some_clients_are_averaged_as_all_are(metric, expected):
    assert reported(RECORD, Evaluation(metric=metric, clients=[0, 2])) == expected


def test_a_curve_is_that_of_the_number():
    assert curve(RECORD, Evaluation(which="best")) == [(5, 73), (10, 70)]
    assert curve(RECORD, Evaluation(group="T")) == [(5, 40), (10, 35)]


@pytest.mark.parametrize(
    "evaluation",
    [Evaluation(metric="seconds_per_sample"), Evaluation(metric="similarity"), Evaluation(clients=[0, 1])],
    ids=["time", "similarity", "clients"],
)
def test_what_is_measured_once_has_no_curve(evaluation):
    assert curve(RECORD, evaluation) == []


@pytest.mark.parametrize(
    ("evaluation", "said"),
    [
        (Evaluation(moment="adapted"), "evaluation.moment: adapted is not accepted; expected one of"),
        (Evaluation(group="S"), "evaluation.group: S is not accepted; expected one of T"),
        (Evaluation(clients=[2, 2]), "evaluation.clients: [2, 2] is not accepted; expected clients of which"),
        (Evaluation(metric="similarity", pair=[0, 2]), "evaluation.pair: [0, 2] is not accepted;"),
    ],
    ids=["moment", "group", "clients", "pair"],
)
def test_a_number_that_a_run_does_not_have_is_refused(evaluation, said):
    assert refusal(reported, RECORD, evaluation).startswith(said)


@pytest.mark.parametrize(
    ("evaluation", "said"),
    [
        (Evaluation(group="T"), None),
        (Evaluation(group="S"), "no client with test samples in group S"),
        (Evaluation(group="S", metric="seconds_per_sample"), None),
        (Evaluation(clients=[1, 2]), None),
        (Evaluation(clients=[2, 2]), "no client with test samples from 2 to 2"),
    ],
)
def test_a_run_without_the_reported_clients_says_so(evaluation, said):
    assert lack(RECORD, evaluation) == said


def without_curve(moment: str) -> Record:
    """`RECORD` of a simulation that was evaluated at ``moment`` in the end only."""
    first, last = METRICS.rounds
    rounds = (dataclasses.replace(first, **{moment: None}), last)
    return record_with(dataclasses.replace(METRICS, rounds=rounds))


def test_a_moment_that_was_evaluated_in_the_end_has_one_point():
    row = without_curve("post_local")
    assert curve(row, Evaluation(moment="post_local")) == [(10, 60)]
    assert row.metrics.always == {"post_aggregation"}
    assert row.metrics.lacks(["post_local"])
    assert not row.metrics.lacks(["post_aggregation"])


def test_curves_of_several_seeds_have_the_rounds_of_all():
    assert curves([RECORD, RECORD], Evaluation()) == [(5, [73, 73]), (10, [70, 70])]
    assert curves([RECORD, without_curve("post_aggregation")], Evaluation()) == [(10, [70, 70])]
    assert curves([], Evaluation()) == []
