"""Which of a simulation's numbers a cell reports."""

from __future__ import annotations

import pytest

from pfl.core.errors import InvalidInput
from pipeline.spec.reported import Evaluation, EvaluationOverride


def test_a_row_goes_before_a_setting_and_a_setting_before_the_table():
    table = Evaluation(every=10, metric="client_mean")
    evaluation = table.override(
        EvaluationOverride(metric="pooled", moment="post_local"),
        EvaluationOverride(moment="post_aggregation"),
    )
    assert (evaluation.every, evaluation.metric, evaluation.moment) == (10, "pooled", "post_aggregation")


def test_the_best_round_of_some_clients_is_refused():
    with pytest.raises(InvalidInput, match="evaluation: best, headline, None"):
        Evaluation(which="best").override(EvaluationOverride(clients=[0, 1]))
