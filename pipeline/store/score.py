"""What ledger rows amount to: a score over the seeds, or a failure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.spec.evaluation import Evaluation, Row, reported


def failure(row: Row) -> str | None:
    """Why a ledger row holds no valid result, in a few words; None where it holds one."""
    if "error" in row:
        return str(row["error"])
    diverged = row["metrics"].get("diverged_at")
    return None if diverged is None else f"diverged in round {diverged}"


@dataclass(frozen=True)
class Score:
    """What is reported of one configuration, over its seeds.

    Attributes:
        mean: percent, or in the unit of another metric.
        std: sample standard deviation (n - 1); None for one seed.
        seeds: n.
    """

    mean: float
    std: float | None
    seeds: int


def score(rows: Sequence[Row], evaluation: Evaluation) -> Score | None:
    """The score of one configuration's valid rows, one per seed; None without any."""
    values = [reported(row, evaluation) for row in rows]
    if not values:
        return None
    return Score(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))
