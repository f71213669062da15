"""A published row beside the same simulation computed again, and what the difference means."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from pfl.engine.metrics import AVERAGES, Moments
from pfl.trials import Record

Verdict = Literal["agrees", "undecided", "fails"]

ROUNDING = 1e-9
"""Largest difference, in points, of two runs on machines of one kind, where every bit is the same."""

TOLERANCE = 0.5
"""Largest difference, in points, that another kind of machine explains in the first `EARLY` rounds."""

EARLY = 20
"""Rounds in which differences of rounding stay small; training amplifies them later on."""

RULE = (
    f"On a machine of the kind that made the row (processor model, threads, GPU, versions of torch and of the "
    f"compiler), all accuracies of all evaluations must be equal. On another, a row agrees if the reported "
    f"accuracy differs by at most {TOLERANCE} points in every evaluation, fails if it differs by more in the "
    f"first {EARLY} rounds, and is undecided otherwise."
)


@dataclass(frozen=True)
class Verification:
    """A row, and the record of the same simulation computed again.

    Attributes:
        checksum: of the row.
    """

    row: Record
    checksum: str
    again: Record

    @property
    def same_kind(self) -> bool:
        """Whether both ran on machines of one kind."""
        return kind_of(self.row) == kind_of(self.again)

    @cached_property
    def reported(self) -> dict[int, float]:
        """By round, the difference of the pooled accuracy at the headline, in points; of one that has it."""
        headline = self.row.metrics.headline
        return {
            number: now[headline].pooled - then[headline].pooled
            for number, then, now in self._moments()
            if headline in then
        }

    @property
    def last(self) -> float:
        """The difference in the last round, in points."""
        return list(self.reported.values())[-1]

    @property
    def early(self) -> float | None:
        """The largest difference in the first rounds, in points; None where nothing is evaluated there."""
        return max((abs(off) for number, off in self.reported.items() if number <= EARLY), default=None)

    @cached_property
    def largest(self) -> float:
        """The largest difference of any accuracy, in points."""
        return max(
            abs(now[moment].average(average) - then[moment].average(average))
            for _, then, now in self._moments()
            for moment in then
            for average in AVERAGES
        )

    @property
    def verdict(self) -> Verdict:
        """See `RULE`."""
        if self.same_kind:
            return "agrees" if self.largest <= ROUNDING else "fails"
        if self.early is not None and self.early > TOLERANCE:
            return "fails"
        return "agrees" if max(map(abs, self.reported.values())) <= TOLERANCE else "undecided"

    def _moments(self) -> Iterator[tuple[int, Moments, Moments]]:
        for then, now in zip(self.row.metrics.rounds, self.again.metrics.rounds, strict=True):
            yield then.round, then.moments, now.moments


def kind_of(record: Record) -> tuple[object, ...]:
    """What decides how a machine rounds."""
    on, versions = record.success.hardware, record.success.versions
    return on.cpu, on.threads, on.gpu, on.backend, versions.torch, versions.compiler
