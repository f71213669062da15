"""A paper's claims about its own table, tested on its numbers and on ours. The kinds:

* ``best``, ``worst``: a row is the highest (lowest) of its column;
* ``margin``: how far a row is above the best of the others;
* ``close``: rows are within a number of points of the best of their column;
* ``trend``: a row's accuracy, or its margin, is higher in one column than in another.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Literal, Self

from pydantic import Field

from pfl.core.errors import InvalidInput, check_names
from pfl.core.text import amount, signed
from pipeline.spec.claims import Claim, Finding

Place = tuple[str, str]
"""A setting and a row."""

Values = Mapping[Place, float]
"""The number of each cell that has one."""

Labels = Mapping[str, str]
"""The headings of settings or rows, by name."""

EXACT = 1e-9
"""Tolerance, in points, for decimals without an exact floating-point representation."""


class _TableClaim(Claim):
    """Base of the claims about a table."""

    place: str
    """Place of the quotation in the paper."""
    row: str
    """The row that the claim is about."""
    among: list[str] = []
    """The rows that `row` is compared with; empty means all others. For `close`, and for a `trend` of
    accuracy, further rows that the claim is about.
    """
    settings: list[str] = []
    """The columns that the claim is about; empty means all."""

    def check(self, settings: Sequence[str], rows: Sequence[str]) -> None:
        check_names("claims.settings", self.settings, settings)
        check_names("claims.row", [self.row], rows)
        check_names("claims.among", self.among, rows)

    def test(self, values: Values, columns: Labels, rows: Labels, tolerance: float = 0.0) -> Finding:
        """Test the claim on printed numbers, or on ours.

        Args:
            values: a cell without a number is absent.
            columns, rows: all settings and rows of the table.
            tolerance: points by which a margin may fall short of the paper's.
        """
        raise NotImplementedError

    def parts(self, settings: Sequence[str]) -> list[Self]:
        """The claim split by columns of ``settings``; the whole claim if it is about all columns together."""
        return [self.model_copy(update={"settings": [name]}) for name in self.settings or settings]

    def compared(self, settings: Collection[str], rows: Collection[str]) -> set[Place]:
        """The cells whose numbers the claim compares, in a table of ``settings`` and ``rows``."""
        return set(product(self.settings or settings, [self.row, *self.among] if self.among else rows))

    def _gaps(self, values: Values, settings: Sequence[str], rows: Labels) -> list[_Gap]:
        """How far the row is above the best of the others, in the columns where both have a number."""
        others = [row for row in (self.among or rows) if row != self.row]
        gaps = []
        for setting in settings:
            there = [row for row in others if (setting, row) in values]
            if (setting, self.row) in values and there:
                best = max(there, key=lambda row: values[setting, row])
                gap = values[setting, self.row] - values[setting, best]
                gaps.append(_Gap(setting, best, gap, complete=len(there) == len(others)))
        return gaps


@dataclass(frozen=True)
class _Gap:
    """A row's number minus the best other one in a column; ``complete`` if all others have a number."""

    setting: str
    other: str
    points: float
    complete: bool

    def decide(self, enough: bool) -> bool | None:
        """Whether the gap is large enough; None if rows without a number may still shrink it."""
        return None if enough and not self.complete else enough


class Rank(_TableClaim):
    """A row is the best, or the worst, of every column; a tie counts as both."""

    kind: Literal["best", "worst"]
    """Highest, or lowest."""

    def test(self, values: Values, columns: Labels, rows: Labels, tolerance: float = 0.0) -> Finding:
        settings = self.settings or list(columns)
        sign = 1 if self.kind == "best" else -1
        gaps = self._gaps({place: sign * value for place, value in values.items()}, settings, rows)
        complete = [gap for gap in gaps if gap.complete]
        against = [gap for gap in gaps if gap.points < 0]
        closest = min(gaps, key=lambda gap: gap.points, default=None)
        shown = ""
        if closest and against:
            shown = (
                f"not in {len(against)} of {amount(len(gaps), 'column')}: in {columns[closest.setting]}, "
                f"{rows[closest.other]} is {-closest.points:.2f} {'above' if sign > 0 else 'below'}"
            )
        elif closest and len(complete) == len(settings):
            place = f"{rows[closest.other]} in {columns[closest.setting]}"
            shown = (
                f"closest: {place}, {closest.points:.2f} away" if closest.points else f"level with {place}"
            )
        elif complete:
            shown = f"so far in {amount(len(complete), 'column')}"
        missing = [None] * (len(settings) - len(gaps))
        return Finding.of([*(gap.decide(gap.points >= 0) for gap in gaps), *missing], shown)


class Margin(_TableClaim):
    """A row is a number of points above the best of the others."""

    kind: Literal["margin"]
    """Selects this kind."""
    over: Literal["each", "mean", "largest", "average"] = "each"
    """Every column; the mean over the columns; the largest of the columns; or the row's average over the
    columns against the others' averages."""
    at_least: float | None = None
    """Smallest margin in points; the lower end if the paper states a range."""
    at_most: float | None = None
    """Largest margin in points. If `at_least` is also given, a larger margin does not refute the claim."""

    def check(self, settings: Sequence[str], rows: Sequence[str]) -> None:
        super().check(settings, rows)
        if self.at_least is None and self.at_most is None:
            raise InvalidInput("claims", "a margin without a size", "at_least or at_most")

    def test(self, values: Values, columns: Labels, rows: Labels, tolerance: float = 0.0) -> Finding:
        settings = self.settings or list(columns)
        if self.over == "average":
            values, settings, columns = _averaged(values, settings), ["average"], {"average": "the average"}
        gaps = self._gaps(values, settings, rows)
        if not gaps:
            return Finding.of([None], "")
        complete = len(gaps) == len(settings) and all(gap.complete for gap in gaps)
        margins = [gap.points for gap in gaps]
        if self.over == "mean":
            margins = [statistics.fmean(margins)]
        elif self.over == "largest":
            margins = [max(margins)]
        ends = dict.fromkeys(map(signed, (min(margins), max(margins))))
        shown = ("" if complete else "so far ") + " to ".join(ends)
        if complete or self.over != "each":
            holds = [self._within(margin, tolerance) if complete else None for margin in margins]
            return Finding.of(holds, shown)
        return Finding.of([*(self._holds_in(gap, tolerance) for gap in gaps), None], shown)

    def parts(self, settings: Sequence[str]) -> list[Self]:
        return super().parts(settings) if self.over == "each" else [self]

    def _holds_in(self, gap: _Gap, tolerance: float) -> bool | None:
        if self.at_least is None and not gap.complete:
            return None  # it may still become small enough
        return gap.decide(self._within(gap.points, tolerance))

    def _within(self, points: float, tolerance: float) -> bool:
        """Whether a margin has the claimed size; the tolerance is for its size, not for its sign."""
        if self.at_least is not None:
            enough = points >= self.at_least - tolerance - EXACT
            return enough and (points > 0 or self.at_least <= 0)
        return self.at_most is None or points <= self.at_most + tolerance + EXACT


class Closeness(_TableClaim):
    """A row, and those in ``among``, are within a number of points of the best of every column."""

    kind: Literal["close"]
    """Selects this kind."""
    points: float = Field(gt=0)
    """Largest distance to the best."""

    def compared(self, settings: Collection[str], rows: Collection[str]) -> set[Place]:
        return set(product(self.settings or settings, rows))

    def test(self, values: Values, columns: Labels, rows: Labels, tolerance: float = 0.0) -> Finding:
        settings = self.settings or list(columns)
        compared = [self.row, *self.among]
        best = {
            setting: max(there)
            for setting in settings
            if (there := [values[setting, row] for row in rows if (setting, row) in values])
        }
        gaps = {
            (setting, row): best[setting] - values[setting, row]
            for setting in best
            for row in compared
            if (setting, row) in values
        }
        if not gaps:
            return Finding.of([None], "")
        setting, row = max(gaps, key=lambda place: gaps[place])
        shown = f"furthest: {rows[row]} in {columns[setting]}, {gaps[setting, row]:.2f} below the best"
        complete = all((setting, row) in values for setting in settings for row in rows)
        return Finding.of(
            [gap <= self.points + EXACT for gap in gaps.values()] + [True if complete else None], shown
        )


class Trend(_TableClaim):
    """A row's accuracy, or its margin over the best of the others, is higher in one column than another."""

    kind: Literal["trend"]
    """Selects this kind."""
    of: Literal["accuracy", "margin"] = "accuracy"
    """The accuracy of the row and of those that `among` names; or the row's margin."""
    higher: list[str] = Field(min_length=1)
    """The columns with the higher number, in pairs with `lower`."""
    lower: list[str] = Field(min_length=1)
    """The columns with the lower number."""

    def check(self, settings: Sequence[str], rows: Sequence[str]) -> None:
        super().check(settings, rows)
        if self.settings:
            raise InvalidInput("claims.settings", self.settings, "none for a trend; see higher and lower")
        check_names("claims.higher", self.higher, settings)
        check_names("claims.lower", self.lower, settings)
        if len(self.higher) != len(self.lower):
            accepted = f"{amount(len(self.higher), 'column')}, as 'higher' has"
            raise InvalidInput("claims.lower", self.lower, accepted)

    def compared(self, settings: Collection[str], rows: Collection[str]) -> set[Place]:
        others = rows if self.of == "margin" and not self.among else self.among
        return set(product((*self.higher, *self.lower), (self.row, *others)))

    def test(self, values: Values, columns: Labels, rows: Labels, tolerance: float = 0.0) -> Finding:
        if self.of == "margin":
            gaps = self._gaps(values, list(columns), rows)
            values = {(gap.setting, self.row): gap.points for gap in gaps if gap.complete}
            compared = [self.row]
        else:
            compared = [self.row, *self.among]
        pairs = [
            ((high, row), (low, row))
            for row in compared
            for high, low in zip(self.higher, self.lower, strict=True)
        ]
        known = [(high, low) for high, low in pairs if high in values and low in values]
        against = [(high, low) for high, low in known if values[high] <= values[low]]
        shown = f"in {len(known)} of {amount(len(pairs), 'pair')}" if known else ""
        if against:
            high, low = against[0]
            has, number = ("has", "{:.2f}".format) if self.of == "accuracy" else ("is ahead by", signed)
            shown = (
                f"not in {len(against)} of {amount(len(known), 'pair')}: {rows[high[1]]} {has} "
                f"{number(values[high])} in {columns[high[0]]}, {number(values[low])} in {columns[low[0]]}"
            )
        holds = [pair not in against if pair in known else None for pair in pairs]
        return Finding.of(holds, shown)

    def parts(self, settings: Sequence[str]) -> list[Self]:
        pairs = zip(self.higher, self.lower, strict=True)
        return [self.model_copy(update={"higher": [high], "lower": [low]}) for high, low in pairs]


TableClaim = Annotated[Rank | Margin | Closeness | Trend, Field(discriminator="kind")]


def _averaged(values: Values, settings: Sequence[str]) -> Values:
    """Each row's average over the columns, for rows that have a number in all of them."""
    rows = {row for _, row in values}
    return {
        ("average", row): statistics.fmean(values[setting, row] for setting in settings)
        for row in rows
        if all((setting, row) in values for setting in settings)
    }
