"""Differences of two rows of a column, with 95 % intervals over shared seeds or, with one, over clients."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pfl.core.text import amount
from pfl.run.trials import Record
from pipeline.formatting import signed
from pipeline.report.summary import Entry
from pipeline.spec.reported import Evaluation
from pipeline.store.scores import reported, weight

LEVEL = 0.95
Over = Literal["seed", "client", "setting"]

INTERVAL_RULE = (
    "Intervals are Student's t intervals, at 95 %, over the differences of paired seeds; with one seed, over "
    "the clients, whose models were trained together, so that they say nothing about other seeds. They are "
    "not corrected for multiple comparisons. Methods whose interval contains 0 do not differ significantly."
)


def sign_of(low: float | None, high: float | None) -> int | None:
    """1 if an interval lies above 0, -1 if below, 0 if it contains 0; None without an interval."""
    if low is None or high is None:
        return None
    return 1 if low > 0 else -1 if high < 0 else 0


@dataclass(frozen=True)
class PairedDifference:
    """One row's number minus another's, in points.

    Attributes:
        low, high: ends of the 95 % interval; None if there is only one pair.
        pairs: number of pairs.
        over: what is paired.
    """

    mean: float
    low: float | None
    high: float | None
    pairs: int
    over: Over

    @property
    def sign(self) -> int | None:
        return sign_of(self.low, self.high)

    @property
    def interval(self) -> str:
        """The interval, as in "+0.12 to +0.83"; empty without one."""
        return "" if self.low is None or self.high is None else f"{signed(self.low)} to {signed(self.high)}"

    @property
    def shown(self) -> str:
        """The difference, as in "+0.90 (+0.12 to +1.68)"."""
        return signed(self.mean) + (f" ({self.interval})" if self.interval else "")

    @property
    def basis(self) -> str:
        """The pairs, as in "5 paired seeds"."""
        return amount(self.pairs, f"paired {self.over}")


def difference(first: Entry, second: Entry) -> PairedDifference | None:
    """The first entry minus the second, over the seeds that both have; None if they share no seed."""
    theirs = {record.seed: (record, second.evaluation) for record in second.successes}
    pairs = [
        ((record, first.evaluation), theirs[record.seed])
        for record in first.successes
        if record.seed in theirs
    ]
    gaps = [reported(*ours) - reported(*other) for ours, other in pairs]
    if not gaps:
        return None
    return mean_difference(gaps) if len(gaps) > 1 else _over_clients(*pairs[0], gaps[0])


def mean_difference(gaps: Sequence[float], over: Over = "seed") -> PairedDifference:
    """The mean of paired differences; a single pair has no interval."""
    mean = statistics.fmean(gaps)
    if len(gaps) == 1:
        return PairedDifference(mean, None, None, 1, over)
    half = _half(statistics.stdev(gaps), len(gaps))
    return PairedDifference(mean, mean - half, mean + half, len(gaps), over)


def _over_clients(
    first: tuple[Record, Evaluation], second: tuple[Record, Evaluation], mean: float
) -> PairedDifference:
    """The difference of two simulations, with an interval over clients if both recorded their accuracies.

    The accuracy over all clients is a weighted mean, so the error is that of a linearised ratio: for n
    clients with weights w_i and differences d_i, sd(w_i (d_i - mean)) / (mean(w) sqrt(n)).
    """
    ours, theirs = _by_client(*first), _by_client(*second)
    shared = [client for client in ours if client in theirs]
    if len(shared) < 2 or first[0].partition_checksum != second[0].partition_checksum:
        return PairedDifference(mean, None, None, 1, "seed")
    weights = [ours[client][1] for client in shared]
    residuals = [
        weight * (ours[client][0] - theirs[client][0] - mean)
        for client, weight in zip(shared, weights, strict=True)
    ]
    half = _half(statistics.stdev(residuals) / statistics.fmean(weights), len(shared))
    return PairedDifference(mean, mean - half, mean + half, len(shared), "client")


def _by_client(record: Record, evaluation: Evaluation) -> Mapping[int, tuple[float, float]]:
    """Accuracy and weight of every client with test samples; empty if records lack these accuracies."""
    metrics = record.metrics
    asked = (evaluation.which, evaluation.group, evaluation.clients)
    if asked != ("last", None, None) or evaluation.moment_of(metrics.headline) != metrics.headline:
        return {}
    return {
        client.client: (client.accuracy, weight(client, evaluation))
        for client in metrics.per_client
        if client.accuracy is not None
    }


def _half(deviation: float, pairs: int) -> float:
    """Half the width of the interval of a mean of ``pairs`` values with this sample standard deviation."""
    from scipy.special import stdtrit

    return float(stdtrit(pairs - 1, 0.5 + LEVEL / 2)) * deviation / math.sqrt(pairs)
