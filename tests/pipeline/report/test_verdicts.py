"""The verdict on a cell, and the agreement of two rankings."""

from __future__ import annotations

import dataclasses

import pytest

from pipeline.report.verdicts import Verdict, judge, kendall
from pipeline.spec.papers import paper_names
from pipeline.spec.published import Published, published_cells
from pipeline.store.scores import Score

PRINTED = Published("p", "1", "cifar10", "iid", "", 100, "", "fedavg", "accuracy", 80.0, 1.5, "")


def verdict(mean: float, std: float | None = 0.5, seeds: int = 5, theirs: int | None = None) -> Verdict:
    return judge(Score(mean, std, seeds), "done", PRINTED, theirs)


@pytest.mark.parametrize(
    ("mean", "name"),
    [
        (80.0, "reproduced"),
        (82.0, "reproduced"),
        (78.0, "reproduced"),
        (82.0015, "higher"),
        (77.9985, "lower"),
    ],
)
def test_unrounded_means_within_two_points_are_reproduced_and_beyond_are_higher_or_lower(mean, name):
    assert verdict(mean) == Verdict(name)


def test_within_two_standard_errors_is_reproduced_where_both_sides_have_three_seeds():
    # The standard error of the difference is sqrt(3^2 / 3 + 1.5^2 / 3) = 1.94.
    assert verdict(83.8, std=3.0, seeds=3, theirs=3).name == "reproduced"
    assert verdict(84.0, std=3.0, seeds=3, theirs=3).name == "higher"


@pytest.mark.parametrize(("ours", "theirs"), [(2, 5), (5, 2), (5, None)])
def test_standard_errors_of_fewer_seeds_count_for_nothing(ours, theirs):
    assert verdict(83.0, std=30.0, seeds=ours, theirs=theirs).name == "higher"


def test_fewer_than_three_seeds_of_ours_are_provisional():
    assert verdict(80.0, seeds=2) == Verdict("reproduced", provisional=True)
    assert verdict(80.0, seeds=2).symbol != verdict(80.0, seeds=3).symbol


def test_a_cell_without_a_result_has_diverged_failed_or_not_been_run():
    assert judge(None, "diverged", PRINTED, None).name == "diverged"
    assert judge(None, "failed", PRINTED, None).name == "failed"
    assert judge(None, "not run", PRINTED, None).name == "not run"


def test_a_number_that_cannot_be_compared_has_no_verdict():
    score = Score(80.0, 0.5, 5)
    assert judge(score, "done", PRINTED, 5, comparable=False) == Verdict("not comparable")
    assert judge(None, "not run", PRINTED, 5, comparable=False).name == "not run"


def test_a_printed_decimal_is_not_missed_by_its_representation():
    printed = dataclasses.replace(PRINTED, mean=2.03)
    assert 4.03 - printed.mean > 2
    assert judge(Score(4.03, None, 1), "done", printed, None).name == "reproduced"


def test_times_and_similarities_have_no_verdict():
    seconds = dataclasses.replace(PRINTED, metric="seconds_per_sample")
    assert judge(Score(80.0, None, 1), "done", seconds, 5) == Verdict("ratio")


def test_all_metrics_that_papers_print_as_accuracies_are_judged():
    metrics = {cell.metric for paper in paper_names() for cell in published_cells(paper)}
    accuracies = {cell for cell in metrics if dataclasses.replace(PRINTED, metric=cell).is_accuracy}
    assert accuracies == {"accuracy", "accuracy_client", "accuracy_server"}


def test_kendall_s_tau_counts_pairs_in_the_same_order():
    assert kendall([1, 2, 3, 4], [10, 20, 40, 30]) == pytest.approx((5 - 1) / 6)
    assert kendall([1, 2, 3], [3, 2, 1]) == -1


def test_two_methods_or_level_ones_have_no_ranking():
    assert kendall([1, 2], [1, 2]) is None
    assert kendall([1, 1, 1], [1, 2, 3]) is None
