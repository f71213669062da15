"""The claims of a paper about its own results, tested on numbers.

A claim is declared with the paper's words. It makes one comparison or several, and holds if each of
them does. `pipeline.spec.table_claims` has the kinds about tables, `pipeline.figures.figure_claims`
those about figures.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from pfl.core.text import amount
from pipeline.spec.yaml import Strict

Answer = Literal["confirmed", "refuted", "in part", "open"]
"""What numbers make of a claim: "in part" if it speaks of columns that have not run, "open" if the numbers
do not suffice."""


@dataclass(frozen=True)
class Finding:
    """Whether a claim holds on some numbers, and the numbers that show it.

    Attributes:
        held: for an answer in part, in how many columns the claim holds, and how many have run.
    """

    answer: Answer
    shown: str
    held: tuple[int, int] | None = None

    @property
    def words(self) -> str:
        """The answer as it is printed.

        >>> Finding("in part", "", held=(2, 3)).words
        'holds in 2 of 3 columns run'
        """
        if self.held is None:
            return self.answer
        held, run = self.held
        return f"holds in {held} of {amount(run, 'column')} run"

    @classmethod
    def of(cls, comparisons: Iterable[bool | None], shown: str) -> Finding:
        """From a claim's comparisons; None stands for one that missing numbers leave open.

        >>> Finding.of([True, None], "").answer, Finding.of([False, None], "").answer
        ('open', 'refuted')
        """
        known = set(comparisons)
        if False in known:
            return cls("refuted", shown)
        return cls("confirmed" if known == {True} else "open", shown)


class Claim(Strict):
    """Base of all claims, about tables and about figures."""

    says: str
    """The paper's words."""

    def check(self, settings: Sequence[str], rows: Sequence[str]) -> None:
        """Raise `InvalidInput` where the claim names a setting or a row that the table does not have."""
