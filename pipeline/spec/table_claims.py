"""A paper's claims about its own table, tested on its numbers and on ours. The kinds:

* ``best``, ``worst``: a row is the highest (lowest) of its column;
* ``margin``: how far a row is above the best of the others;
* ``close``: rows are within a number of points of the best of their column;
* ``trend``: a row's accuracy, or its margin, is higher in one column than in another.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import product
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field

from pfl.core.errors import InvalidInput, check_names
from pfl.core.text import amount
from pipeline.formatting import signed
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

        It is open if a number that it compares is missing; the finding names the first, unless all are.

        Args:
            values: a cell without a number is absent.
            columns, rows: all settings and rows of the table.
            tolerance: points by which a margin may fall short of the paper's.
        """
        compared = self.compared(columns, rows)
        missing = compared - values.keys()
        if len(missing) == len(compared):
            return Finding("open", "")
        if missing:
            setting, row = next(place for place in product(columns, rows) if place in missing)
            return Finding("open", f"no number of {rows[row]} in {columns[setting]}")
        about = {name: columns[name] for name in self.settings or columns}
        return self._tested(values, about, rows, tolerance)

    def _tested(self, values: Values, columns: Labels, rows: Labels, tolerance: float) -> Finding:
        """As `test`, with a number in every cell that is compared, and the claim's columns alone."""
        raise NotImplementedError

    def parts(self, settings: Sequence[str]) -> list[Self]:
        """The claim split by columns of ``settings``; the whole claim if it is about all columns together."""
        return [self.model_copy(update={"settings": [name]}) for name in self.settings or settings]

    def compared(self, settings: Collection[str], rows: Collection[str]) -> set[Place]:
        """The cells whose numbers the claim compares, in a table of ``settings`` and ``rows``.

        Empty if there is no other row to compare with.
        """
        compared = {self.row, *(self.among or rows)}
        return set(product(self.settings or settings, compared)) if len(compared) > 1 else set()

    def _gaps(self, values: Values, settings: Iterable[str], rows: Iterable[str]) -> list[_Gap]:
        """How far the row is above the best of the others, in each column."""
        others = [row for row in self.among or rows if row != self.row]
        best = {setting: max(others, key=lambda row: values[setting, row]) for setting in settings}
        return [
            _Gap(values[setting, self.row] - values[setting, other], setting, other)
            for setting, other in best.items()
        ]


class _Gap(NamedTuple):
    """A row's number minus the best other one in a column."""

    points: float
    setting: str
    other: str


class Rank(_TableClaim):
    """A row is the best, or the worst, of every column; a tie counts as both."""

    kind: Literal["best", "worst"]
    """Highest, or lowest."""

    def _tested(self, values: Values, columns: Labels, rows: Labels, tolerance: float) -> Finding:
        sign = 1 if self.kind == "best" else -1
        gaps = self._gaps({place: sign * value for place, value in values.items()}, columns, rows)
        against = sum(gap.points < 0 for gap in gaps)
        points, setting, other = min(gaps, key=lambda gap: gap.points)
        if against:
            shown = (
                f"not in {against} of {amount(len(gaps), 'column')}: in {columns[setting]}, "
                f"{rows[other]} is {-points:.2f} {'above' if sign > 0 else 'below'}"
            )
        elif points:
            shown = f"closest: {rows[other]} in {columns[setting]}, {points:.2f} away"
        else:
            shown = f"level with {rows[other]} in {columns[setting]}"
        return Finding.of(not against, shown)


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

    def _tested(self, values: Values, columns: Labels, rows: Labels, tolerance: float) -> Finding:
        if self.over == "average":
            values = {
                ("average", row): statistics.fmean(values[setting, row] for setting in columns)
                for _, row in self.compared(columns, rows)
            }
            columns = {"average": "the average"}
        margins = [gap.points for gap in self._gaps(values, columns, rows)]
        if self.over == "mean":
            margins = [statistics.fmean(margins)]
        elif self.over == "largest":
            margins = [max(margins)]
        ends = dict.fromkeys(map(signed, (min(margins), max(margins))))
        return Finding.of(all(self._within(margin, tolerance) for margin in margins), " to ".join(ends))

    def parts(self, settings: Sequence[str]) -> list[Self]:
        return super().parts(settings) if self.over == "each" else [self]

    def _within(self, points: float, tolerance: float) -> bool:
        """Whether a margin has the claimed size; the tolerance is for its size, not for its sign."""
        if self.at_least is not None:
            enough = points >= self.at_least - tolerance - EXACT
            return enough and (points > EXACT or self.at_least <= 0)
        return self.at_most is None or points <= self.at_most + tolerance + EXACT


class Closeness(_TableClaim):
    """A row, and those in ``among``, are within a number of points of the best of every column."""

    kind: Literal["close"]
    """Selects this kind."""
    points: float = Field(gt=0)
    """Largest distance to the best."""

    def compared(self, settings: Collection[str], rows: Collection[str]) -> set[Place]:
        return set(product(self.settings or settings, rows))

    def _tested(self, values: Values, columns: Labels, rows: Labels, tolerance: float) -> Finding:
        gaps = {
            place: max(values[place[0], row] for row in rows) - values[place]
            for place in product(columns, [self.row, *self.among])
        }
        setting, row = furthest = max(gaps, key=lambda place: gaps[place])
        shown = f"furthest: {rows[row]} in {columns[setting]}, {gaps[furthest]:.2f} below the best"
        return Finding.of(gaps[furthest] <= self.points + EXACT, shown)


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
        settings = [*self.higher, *self.lower]
        if self.of == "margin":
            return super().compared(settings, rows)
        return set(product(settings, [self.row, *self.among]))

    def _tested(self, values: Values, columns: Labels, rows: Labels, tolerance: float) -> Finding:
        compared = [self.row, *self.among]
        if self.of == "margin":
            gaps = self._gaps(values, [*self.higher, *self.lower], rows)
            values = {(gap.setting, self.row): gap.points for gap in gaps}
            compared = [self.row]
        pairs = [
            ((high, row), (low, row))
            for row in compared
            for high, low in zip(self.higher, self.lower, strict=True)
        ]
        against = [(high, low) for high, low in pairs if values[high] <= values[low] + EXACT]
        shown = f"in {len(pairs)} of {amount(len(pairs), 'pair')}"
        if against:
            high, low = against[0]
            has, number = ("has", "{:.2f}".format) if self.of == "accuracy" else ("is ahead by", signed)
            shown = (
                f"not in {len(against)} of {amount(len(pairs), 'pair')}: {rows[high[1]]} {has} "
                f"{number(values[high])} in {columns[high[0]]}, {number(values[low])} in {columns[low[0]]}"
            )
        return Finding.of(not against, shown)

    def parts(self, settings: Sequence[str]) -> list[Self]:
        pairs = zip(self.higher, self.lower, strict=True)
        return [self.model_copy(update={"higher": [high], "lower": [low]}) for high, low in pairs]


TableClaim = Annotated[Rank | Margin | Closeness | Trend, Field(discriminator="kind")]
