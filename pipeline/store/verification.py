"""Comparison of a published record with the same simulation recomputed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from pfl.core.text import amount
from pfl.engine.metrics import AVERAGES, Evaluated
from pfl.run.trials import Record
from pipeline.formatting import points, signed

Verdict = Literal["agrees", "undecided", "fails"]

ROUNDING = 1e-9
"""Tolerance, in points, for the equality of two runs of the same code on machines of one kind."""

TOLERANCE = 0.5
"""Largest difference, in points, that is attributed to rounding without a measurement."""

FACTOR = 10
"""A difference of more than this many times the measured effect of rounding shows a fault."""

EARLY = 20
"""Number of initial rounds in which rounding differences stay small; later, training amplifies them."""

RULE = (
    "If the same code has computed both on machines of one kind (processor model, threads, GPU, torch "
    "and compiler), all accuracies of all evaluations must be equal. Otherwise rounding differs, by the "
    "processor or by an edit that is accepted as harmless. Then a record agrees if the accuracy that its "
    f"method reports differs by at most {TOLERANCE} points in every evaluation. If it differs by more in "
    f"the first {EARLY} rounds, these are computed once more with one more thread, which changes only how "
    f"sums are rounded: the record fails if its difference is more than {FACTOR} times the effect of this "
    "change. All other records are undecided."
)


@dataclass(frozen=True)
class Verification:
    """A published record, and the record of the same run computed again.

    Attributes:
        rounded: its first rounds, recomputed here with different rounding; None if not needed.
    """

    record: Record
    again: Record
    rounded: Record | None = None

    @property
    def name(self) -> str:
        """For example "pfedsim-table3 cifar10-dir-0.1/fedavg, seed 0"."""
        paused = f", up to round {self.record.until}" if self.record.until else ""
        return f"{self.record.table} {self.record.cell}, seed {self.record.seed}{paused}"

    @property
    def same_kind(self) -> bool:
        """Whether both ran on machines of one kind."""
        return kind_of(self.record) == kind_of(self.again)

    @cached_property
    def reported(self) -> dict[int, float]:
        """The difference in the accuracy that the method reports, in points, by round."""
        return _differences(self.record, self.again)

    @property
    def last(self) -> float:
        """The difference in the last evaluation, in points; infinite if both have evaluated no round."""
        return self.reported[max(self.reported)] if self.reported else math.inf

    @property
    def early(self) -> float | None:
        """The largest difference in the first rounds, in points; None if these have no evaluation."""
        return _early(self.reported)

    @property
    def of_rounding(self) -> float | None:
        """The effect of different rounding in the first rounds, in points; None if unknown."""
        return _early(_differences(self.again, self.rounded)) if self.rounded else None

    @cached_property
    def largest(self) -> float:
        """The largest difference of any accuracy, in points; infinite if one of the two diverged earlier."""
        if not self._same_rounds:
            return math.inf
        return max(
            abs(now.moments[moment].average(average) - then.moments[moment].average(average))
            for then, now in _evaluations(self.record, self.again)
            for moment in then.moments.keys() & now.moments.keys()
            for average in AVERAGES
        )

    @property
    def is_doubtful(self) -> bool:
        """Whether the verdict depends on the effect of rounding."""
        return not self._must_be_equal and (self.early or 0.0) > TOLERANCE

    @property
    def verdict(self) -> Verdict:
        """The verdict by `RULE`."""
        if self._must_be_equal:
            return "agrees" if self.largest <= ROUNDING else "fails"
        if (
            self.is_doubtful
            and self.of_rounding is not None
            and (self.early or 0.0) > FACTOR * self.of_rounding
        ):
            return "fails"
        close = self._same_rounds and max(map(abs, self.reported.values())) <= TOLERANCE
        return "agrees" if close else "undecided"

    @property
    def refuted(self) -> bool:
        """Whether the record is wrong, and not merely different."""
        return self.same_kind and self.verdict == "fails"

    @property
    def _same_rounds(self) -> bool:
        rounds, others = (record.metrics.rounds for record in (self.record, self.again))
        return [entry.round for entry in rounds] == [entry.round for entry in others]

    @property
    def _must_be_equal(self) -> bool:
        return self.same_kind and self.record.sources.sources == self.again.sources.sources

    @property
    def text(self) -> str:
        """The outcome, in one line."""
        shown = "no evaluation of the same round"
        if self.reported:
            shown = f"{signed(self.last)} points in round {max(self.reported)}"
        if self.largest > ROUNDING:
            shown += f", at most {points(self.largest)} in any accuracy"
        if self.of_rounding is not None:
            shown += f", of which rounding may explain {points(self.of_rounding)} up to round {EARLY}"
        same = "" if self.same_kind else "; of another kind of machine"
        return f"{self.verdict}: {self.name}: {shown}{same} ({machine(self.record)})"


def _evaluations(first: Record, second: Record) -> Iterator[tuple[Evaluated, Evaluated]]:
    """The evaluations of the rounds that both have."""
    others = {entry.round: entry for entry in second.metrics.rounds}
    return ((entry, others[entry.round]) for entry in first.metrics.rounds if entry.round in others)


def _differences(first: Record, second: Record) -> dict[int, float]:
    """The difference of the pooled accuracies at the headline, in points, by round."""
    headline = first.metrics.headline
    return {
        then.round: now.moments[headline].pooled - then.moments[headline].pooled
        for then, now in _evaluations(first, second)
        if headline in then.moments and headline in now.moments
    }


def _early(differences: Mapping[int, float]) -> float | None:
    return max((abs(off) for number, off in differences.items() if number <= EARLY), default=None)


def machine(record: Record) -> str:
    """Short description of everything that determines the rounding of a machine."""
    on, versions = record.success.hardware, record.success.versions
    processors = ", ".join(name for name in (on.gpu, on.cpu) if name)
    return f"{processors}, {amount(on.threads, 'thread')}, torch {versions.torch}"


def kind_of(record: Record) -> tuple[object, ...]:
    """Everything that determines the rounding of a machine."""
    on, versions = record.success.hardware, record.success.versions
    return on.cpu, on.threads, on.gpu, on.backend, versions.torch, versions.compiler
