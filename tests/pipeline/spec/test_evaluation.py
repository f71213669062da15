"""Which of a simulation's numbers a cell reports."""

from __future__ import annotations

import copy

import pytest

from pfl.errors import InvalidInput
from pipeline.spec.evaluation import Evaluation, EvaluationOverride, curve, curves, evaluated, lacks, reported


def averages(value: float) -> dict[str, float]:
    return {"pooled": value, "client_mean": value + 1, "client_mean_weighted": value + 2}


def metrics(value: float) -> dict:
    """Of a run that was evaluated in rounds 5 and 10, and was better in round 5 by 3 points."""
    moments = {
        moment: {
            name: {"last": last, "best": last + 3} for name, last in averages(value - 10 * number).items()
        }
        for number, moment in enumerate(("post_aggregation", "post_local"))
    }
    rounds = [
        {"round": 5, "post_aggregation": averages(value + 3), "post_local": averages(value - 7)},
        {"round": 10, "post_aggregation": averages(value), "post_local": averages(value - 10)},
    ]
    return {"headline": "post_aggregation", "moments": moments, "rounds": rounds}


ROW = {
    "metrics": {
        **metrics(70.0),
        "groups": {"T": metrics(40.0)},
        "per_client": [
            {"client": 0, "train": 300, "test": 100, "accuracy": 50.0},
            {"client": 1, "train": 100, "test": 300, "accuracy": 70.0},
            {"client": 2, "train": 100, "test": 0, "accuracy": None},
            {"client": 3, "train": 100, "test": 100, "accuracy": 10.0},
        ],
        "similarities": {"cs": [[1.0, 0.5], [0.5, 1.0]], "mdb": [[1.0, -0.25], [-0.25, 1.0]]},
    },
    "measured": {"samples_per_second": 8000.0},
}
for entry in ROW["metrics"]["rounds"]:
    entry["groups"] = {
        "T": {moment: averages(entry["round"]) for moment in ("post_aggregation", "post_local")}
    }


@pytest.mark.parametrize(
    ("evaluation", "expected"),
    [
        (Evaluation(), 70),
        (Evaluation(which="best"), 73),
        (Evaluation(metric="client_mean"), 71),
        (Evaluation(moment="post_local"), 60),
        (Evaluation(group="T", metric="client_mean_weighted"), 42),
        (Evaluation(metric="seconds_per_sample"), 1.25),
        (Evaluation(metric="similarity"), 0.5),
        (Evaluation(metric="similarity", measure="mdb", pair=[1, 0]), -0.25),
    ],
)
def test_a_number_is_the_one_asked_for(evaluation, expected):
    assert reported(ROW, evaluation) == expected


@pytest.mark.parametrize(
    ("metric", "expected"),
    [("client_mean", 60), ("pooled", 65), ("client_mean_weighted", 55)],
)
def test_some_clients_are_averaged_as_all_are(metric, expected):
    assert reported(ROW, Evaluation(metric=metric, clients=[0, 2])) == expected


def test_a_curve_is_that_of_the_number():
    assert curve(ROW, Evaluation(which="best")) == [(5, 73), (10, 70)]
    assert curve(ROW, Evaluation(group="T")) == [(5, 5), (10, 10)]


@pytest.mark.parametrize(
    "evaluation",
    [
        Evaluation(metric="seconds_per_sample"),
        Evaluation(metric="similarity"),
        Evaluation(clients=[0, 1]),
    ],
    ids=["time", "similarity", "clients"],
)
def test_what_is_measured_once_has_no_curve(evaluation):
    assert curve(ROW, evaluation) == []


def test_a_row_goes_before_a_setting_and_a_setting_before_the_table():
    table = Evaluation(every=10, metric="client_mean")
    found = table.override(
        EvaluationOverride(metric="pooled", moment="post_local"),
        EvaluationOverride(moment="post_aggregation"),
    )
    assert (found.every, found.metric, found.moment) == (10, "pooled", "post_aggregation")


def test_the_best_round_of_some_clients_is_refused():
    with pytest.raises(InvalidInput, match="evaluation: best, headline, None"):
        Evaluation(which="best").override(EvaluationOverride(clients=[0, 1]))


@pytest.mark.parametrize(
    ("evaluation", "said"),
    [
        (
            Evaluation(moment="adapted"),
            "evaluation.moment: adapted is not accepted; expected one of post_agg",
        ),
        (Evaluation(group="S"), "evaluation.group: S is not accepted; expected one of T"),
        (Evaluation(clients=[2, 2]), "evaluation.clients: [2, 2] is not accepted; expected clients of which"),
    ],
    ids=["moment", "group", "clients"],
)
def test_a_number_that_a_run_does_not_have_is_refused(evaluation, said):
    with pytest.raises(InvalidInput) as caught:
        reported(ROW, evaluation)
    assert str(caught.value).startswith(said)


def without_curve(moment: str) -> dict:
    """`ROW` of a simulation that was evaluated at ``moment`` in the end only."""
    row = copy.deepcopy(ROW)
    del row["metrics"]["rounds"][0][moment]
    return row


def test_a_moment_that_was_evaluated_in_the_end_has_one_point():
    row = without_curve("post_local")
    assert curve(row, Evaluation(moment="post_local")) == [(10, 60)]
    assert evaluated(row) == {"post_aggregation"}
    assert lacks(row, ["post_local"])
    assert not lacks(row, ["post_aggregation"])


def test_curves_of_several_seeds_have_the_rounds_of_all():
    assert curves([ROW, ROW], Evaluation()) == [(5, [73, 73]), (10, [70, 70])]
    assert curves([ROW, without_curve("post_aggregation")], Evaluation()) == [(10, [70, 70])]
    assert curves([], Evaluation()) == []
