"""The claims of a paper about its own results, tested on numbers.

A claim is declared with a quotation of the paper. It makes one or more comparisons, and holds if all of them
do. The kinds of claims about tables are in `pipeline.spec.table_claims`, those about figures in
`pipeline.figures.figure_claims`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pfl.core.text import amount
from pipeline.spec.yaml import Strict

Answer = Literal["confirmed", "refuted", "in part", "open"]
"""Outcome of a claim: "in part" if it is about columns of which some have not run, "open" if the numbers do
not decide it.
"""


@dataclass(frozen=True)
class Finding:
    """Whether a claim holds on some numbers, and the numbers that show it.

    Attributes:
        held: for the answer "in part", the numbers of columns in which the claim holds and of columns that
            have run.
        seeds: number of seeds behind our answer if too few; None if they suffice, or the claim is open.
        undecided: number of columns that have run in which the claim is open.
    """

    answer: Answer
    shown: str
    held: tuple[int, int] | None = None
    seeds: int | None = None
    undecided: int = 0

    @property
    def words(self) -> str:
        """The answer as it is printed.

        >>> Finding("in part", "", held=(2, 3), seeds=1).words
        'holds in 2 of 3 columns run (one seed)'
        """
        words: str = self.answer
        if self.held:
            held, run = self.held
            words = f"holds in {held} of {amount(run, 'column')} run"
            words += f", undecided in {self.undecided}" if self.undecided else ""
        if self.seeds:
            words += " (one seed)" if self.seeds == 1 else f" ({self.seeds} seeds)"
        return words

    @classmethod
    def of(cls, holds: bool, shown: str) -> Finding:
        return cls("confirmed" if holds else "refuted", shown)


class Claim(Strict):
    """Base of all claims, about tables and about figures."""

    says: str
    """The quotation from the paper."""

    def check(self, settings: Sequence[str], rows: Sequence[str]) -> None:
        """Raise `InvalidInput` if the claim names a setting or a row that the table does not have."""
