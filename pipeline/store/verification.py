"""A published row beside the same simulation computed again, and what the difference means."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from pfl.core.text import amount, points, signed
from pfl.engine.metrics import AVERAGES, Moments
from pfl.run.trials import Record

Verdict = Literal["agrees", "undecided", "fails"]

ROUNDING = 1e-9
"""Largest difference, in points, of two runs on machines of one kind, where every bit is the same."""

TOLERANCE = 0.5
"""Largest difference, in points, that another kind of machine explains in the first `EARLY` rounds."""

EARLY = 20
"""Rounds in which differences of rounding stay small; training amplifies them later on."""

RULE = (
    "On a machine of the kind that made the row (processor model, threads, GPU, torch and compiler), all "
    "accuracies of all evaluations must be equal. On another, a row agrees if the accuracy that its method "
    f"reports differs by at most {TOLERANCE} points in every evaluation, fails if it differs by more in the "
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
    def name(self) -> str:
        """For example "pfedsim-table3 cifar10-dir-0.1/fedavg, seed 0"."""
        paused = f", up to round {self.row.until}" if self.row.until else ""
        return f"{self.row.table} {self.row.cell}, seed {self.row.seed}{paused}"

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
        """The difference in the last evaluation, in points."""
        return self.reported[max(self.reported)]

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

    @property
    def refuted(self) -> bool:
        """Whether the row is wrong, and not only different."""
        return self.same_kind and self.verdict == "fails"

    @property
    def text(self) -> str:
        """One line."""
        shown = f"{signed(self.last)} points in round {max(self.reported)}"
        if self.largest > ROUNDING:
            shown += f", at most {points(self.largest)} in any accuracy"
        same = "" if self.same_kind else "; of another kind of machine"
        return f"{self.verdict}: {self.name}: {shown}{same} ({self.made_on})"

    @property
    def made_on(self) -> str:
        """The machine that made the row."""
        return machine(self.row)

    @property
    def computed_on(self) -> str:
        return machine(self.again)

    def _moments(self) -> Iterator[tuple[int, Moments, Moments]]:
        for then, now in zip(self.row.metrics.rounds, self.again.metrics.rounds, strict=True):
            yield then.round, then.moments, now.moments


def machine(record: Record) -> str:
    """What decides how a machine rounds, in a few words."""
    on, versions = record.success.hardware, record.success.versions
    processors = ", ".join(name for name in (on.gpu, on.cpu) if name)
    return f"{processors}, {amount(on.threads, 'thread')}, torch {versions.torch}"


def kind_of(record: Record) -> tuple[object, ...]:
    """What decides how a machine rounds."""
    on, versions = record.success.hardware, record.success.versions
    return on.cpu, on.threads, on.gpu, on.backend, versions.torch, versions.compiler
