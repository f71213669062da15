"""Comparison with the published numbers: a verdict per cell, and the agreement of two rankings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from pfl.core.text import amount
from pipeline.spec.published import Published
from pipeline.spec.table_claims import EXACT
from pipeline.store.results import CellStatus
from pipeline.store.scores import Score

Status = Literal[CellStatus, "not run", "not selected"]
"""The status of a cell in a report. It need not have run, because `params.yaml` can deselect it."""

POINTS = 2.0
"""An accuracy within this many points of the printed one is reproduced."""

ERRORS = 2.0
"""An accuracy within this many standard errors of the difference is also reproduced, if both sides have
`SEEDS` seeds.
"""

SEEDS = 3
"""A verdict is provisional if we have fewer seeds than this."""

_REPRODUCED = f"Reproduced: our unrounded mean is within {POINTS:g} points of the published one"
_OTHERWISE = (
    f"Otherwise higher or lower. Provisional: fewer than {SEEDS} seeds of ours. Quantities other than "
    "accuracies are shown as ratios, without a verdict. Numbers that cannot be compared have none."
)
RULE = (
    f"{_REPRODUCED}, or within {ERRORS:g} standard errors of the difference where the paper prints a "
    f"deviation and both sides have at least {SEEDS} seeds. {_OTHERWISE}"
)

RANKING_RULE = "Kendall's τ of the methods' ranking: 1 is the paper's order, 0 no agreement, −1 the reverse."

Judged = Literal["reproduced", "higher", "lower"]
Name = Literal[Judged, "ratio", "not comparable", "diverged", "failed", "not run", "not selected"]
NAMES: tuple[Name, ...] = get_args(Name)
JUDGED: tuple[Name, ...] = get_args(Judged)

SYMBOLS = {"reproduced": ("●", "○"), "higher": ("▲", "△"), "lower": ("▼", "▽")}
"""Symbols of firm and of provisional verdicts, by name; the other verdicts have none."""


@dataclass(frozen=True)
class Verdict:
    """How a cell compares with the printed one.

    Attributes:
        provisional: whether it rests on fewer seeds than `SEEDS`.
    """

    name: Name
    provisional: bool = False

    @property
    def symbol(self) -> str:
        return SYMBOLS.get(self.name, ("", ""))[self.provisional]


def rule(seeds: int | None) -> str:
    """`RULE` for a table whose printed numbers are over ``seeds`` seeds, None if the paper does not say."""
    if seeds is not None and seeds >= SEEDS:
        return f"{RULE} The paper has {seeds} seeds."
    why = "the paper does not state its number of seeds"
    if seeds is not None:
        why = f"the paper has {amount(seeds, 'seed')}"
    return f"{_REPRODUCED}; standard errors are not used, as {why}. {_OTHERWISE}"


def judge(
    score: Score | None, status: Status, published: Published, seeds: int | None, comparable: bool = True
) -> Verdict:
    """The verdict on a cell, by `RULE`.

    Args:
        score: our score; None without a result.
        seeds: number of seeds behind the printed number; None if the paper does not say.
        comparable: whether our number measures what the paper prints; a table declares exceptions.
    """
    if score is None:
        return Verdict(status if status in ("diverged", "failed", "not selected") else "not run")
    if not comparable:
        return Verdict("not comparable")
    if not published.is_accuracy:
        return Verdict("ratio")
    provisional = score.seeds < SEEDS
    difference = score.mean - published.mean
    if abs(difference) <= max(POINTS, ERRORS * _standard_error(score, published, seeds)) + EXACT:
        return Verdict("reproduced", provisional)
    return Verdict("higher" if difference > 0 else "lower", provisional)


def _standard_error(score: Score, published: Published, seeds: int | None) -> float:
    """The standard error of the difference of two means; 0 if one side has too few seeds."""
    if score.std is None or published.std is None or min(score.seeds, seeds or 0) < SEEDS:
        return 0.0
    assert seeds is not None
    return math.sqrt(score.std**2 / score.seeds + published.std**2 / seeds)


def kendall(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """Kendall's tau-b of two rankings of the same methods; None for fewer than three, or if all tie."""
    from scipy.stats import kendalltau

    if len(ours) < 3:
        return None
    tau = float(kendalltau(ours, theirs).statistic)
    return None if math.isnan(tau) else tau
