"""Differences of two rows with their intervals, recomputed independently."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import ttest_rel

from pipeline.report.pairs import difference
from pipeline.report.summary import Entry
from pipeline.spec.reported import Evaluation
from tests.pipeline.fake_results import ledger_row, ledger_rows, record_of

POOLED = Evaluation(metric="pooled")
BY_CLIENT = Evaluation(metric="client_mean")


def entry_of(*rows: dict, evaluation: Evaluation = POOLED) -> Entry:
    return Entry("cifar10-0.1", "fedavg", "pinned", evaluation, successes=tuple(map(record_of, rows)))


def entry(*accuracies: float, evaluation: Evaluation = POOLED) -> Entry:
    """An entry whose seeds reach these accuracies."""
    return entry_of(*ledger_rows("cifar10-0.1/fedavg", accuracies), evaluation=evaluation)


def client_entry(*accuracies: float, test: tuple[int, ...], cell: str, evaluation: Evaluation) -> Entry:
    """One simulation whose clients end with these accuracies on these numbers of test samples."""
    row = ledger_row(cell, accuracy=float(np.average(accuracies, weights=test)))
    row["metrics"]["per_client"] = [
        {"client": client, "train": 10, "test": size, "accuracy": value}
        for client, (value, size) in enumerate(zip(accuracies, test, strict=True))
    ]
    for moment in ("post_aggregation", "post_local"):
        row["metrics"]["rounds"][-1][moment]["client_mean"] = float(np.mean(accuracies))
    return entry_of(row, evaluation=evaluation)


def test_the_interval_over_seeds_is_that_of_the_paired_t_test():
    first, second = (60.0, 62.5, 61.0, 66.0), (59.0, 60.0, 61.5, 63.0)
    gap = difference(entry(*first), entry(*second))
    expected = ttest_rel(first, second).confidence_interval(0.95)
    assert gap.mean == pytest.approx(1.5)
    assert (gap.low, gap.high) == pytest.approx((expected.low, expected.high))
    assert (gap.pairs, gap.over, gap.sign) == (4, "seed", 0)


def test_two_seeds_have_an_interval_of_one_degree_of_freedom():
    gap = difference(entry(60.0, 62.0), entry(59.0, 59.0))
    # Differences of 1 and 3: the mean is 2, its error 1, and t(0.975, 1) = tan(0.475 pi).
    assert gap.high - gap.mean == pytest.approx(np.tan(0.475 * np.pi))


def test_only_seeds_that_both_rows_have_are_paired():
    gap = difference(entry(60.0, 62.0, 70.0), entry(59.0, 59.0))
    assert (gap.mean, gap.pairs) == (pytest.approx(2.0), 2)


def test_an_interval_without_zero_has_a_sign():
    gap = difference(entry(60.0, 61.0, 62.1), entry(50.0, 51.0, 52.0))
    assert gap.sign == 1
    assert difference(entry(50.0, 50.0), entry(50.0, 50.0)).sign == 0


def test_with_one_seed_the_clients_are_paired():
    shared = {"test": (10, 10, 10, 10), "evaluation": BY_CLIENT}
    first = client_entry(80.0, 70.0, 91.0, 60.0, cell="cifar10-0.1/fedavg", **shared)
    second = client_entry(78.0, 71.0, 85.0, 58.0, cell="cifar10-0.1/local", **shared)
    gap = difference(first, second)
    expected = ttest_rel((80, 70, 91, 60), (78, 71, 85, 58)).confidence_interval(0.95)
    assert (gap.low, gap.high) == pytest.approx((expected.low, expected.high))
    assert gap.basis == "4 paired clients"


def test_clients_weigh_by_their_test_samples_in_the_pooled_accuracy():
    sizes, ours, theirs = (30, 10, 20), (80.0, 70.0, 90.0), (78.0, 73.0, 85.0)
    first = client_entry(*ours, test=sizes, cell="cifar10-0.1/fedavg", evaluation=POOLED)
    second = client_entry(*theirs, test=sizes, cell="cifar10-0.1/local", evaluation=POOLED)
    gap = difference(first, second)
    # The delta method for sum(w d) / sum(w) by the covariance of numerator and denominator.
    weighted, weights = np.multiply(sizes, np.subtract(ours, theirs)), np.array(sizes)
    ratio = weighted.sum() / weights.sum()
    covariance = np.cov(weighted, weights)
    variance = covariance[0, 0] - 2 * ratio * covariance[0, 1] + ratio**2 * covariance[1, 1]
    half = 4.302652729911275 * np.sqrt(variance / 3) / weights.mean()
    # Rows hold four decimals.
    assert gap.mean == pytest.approx(ratio, abs=1e-4)
    assert gap.high - gap.mean == pytest.approx(half, abs=1e-4)


@pytest.mark.parametrize("evaluation", [{"which": "best"}, {"moment": "post_local"}])
def test_without_accuracies_by_client_there_is_no_interval(evaluation):
    asked = Evaluation(**evaluation)
    gap = difference(entry(60.0, evaluation=asked), entry(59.0, evaluation=asked))
    assert (gap.low, gap.sign, gap.interval) == (None, None, "")


def test_clients_of_different_partitions_are_not_paired():
    row = ledger_row("cifar10-0.1/local", accuracy=59.0) | {"partition_checksum": "0" * 64}
    gap = difference(entry(60.0), entry_of(row))
    assert gap.sign is None
