"""What a paper says about a table of its own, held against numbers: the paper's and ours.

A claim is declared in the table's file with the paper's words. The kinds are few and general:

* ``best``, ``worst``: a row is the highest (lowest) of its column;
* ``margin``: how far a row is above the best of the others;
* ``trend``: a row's accuracy, or its margin, is higher in one column than in another.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from pfl.errors import InvalidInput, unknown_name
from pipeline.spec.yaml import Strict

Values = Mapping[tuple[str, str], float]
"""A number for each (setting, row) that there is one for."""

Answer = Literal["holds", "does not hold", "cannot be said"]


@dataclass(frozen=True)
class Finding:
    """Whether a claim holds on some numbers, and what shows it."""

    answer: Answer
    shown: str


class Stated(Strict):
    """Base of all claims, about tables and about figures."""

    says: str
    """The paper's words."""

    def check(self, settings: Sequence[str], rows: Sequence[str]) -> None:
        """Raise `InvalidInput` where the claim names a setting or a row that the table does not have."""


class _Claim(Stated):
    """Base of the claims about a table."""

    place: str
    """Where it says so."""
    row: str
    """The row that the claim is about."""
    among: list[str] = []
    """The rows that it is compared with; empty means all others."""
    settings: list[str] = []
    """The columns that the claim is about; empty means all."""

    def check(self, settings: Sequence[str], rows: Sequence[str]) -> None:
        for name in self.settings:
            if name not in settings:
                raise unknown_name("claims.settings", name, settings)
        for name in (self.row, *self.among):
            if name not in rows:
                raise unknown_name("claims.row", name, rows)

    def test(self, values: Values, columns: Mapping[str, str], rows: Mapping[str, str]) -> Finding:
        """Hold the claim against numbers.

        Args:
            values: printed or ours; a cell without a number is absent.
            columns, rows: the labels of all settings and rows of the table.
        """
        raise NotImplementedError

    def _gaps(self, values: Values, settings: Sequence[str], rows: Mapping[str, str]) -> list[_Gap]:
        """How far the row is above the best of the others, in the columns where both have a number."""
        others = [row for row in (self.among or rows) if row != self.row]
        gaps = []
        for setting in settings:
            there = [row for row in others if (setting, row) in values]
            if (setting, self.row) in values and there:
                best = max(there, key=lambda row: values[setting, row])
                gap = round(values[setting, self.row] - values[setting, best], 2)
                gaps.append(_Gap(setting, best, gap, complete=len(there) == len(others)))
        return gaps


@dataclass(frozen=True)
class _Gap:
    """A row's number less that of the best other, in one column; complete: no other is without a number."""

    setting: str
    other: str
    points: float
    complete: bool


class Rank(_Claim):
    """A row is the best, or the worst, of every column; level with another counts as both."""

    kind: Literal["best", "worst"]
    """Highest, or lowest."""

    def test(self, values: Values, columns: Mapping[str, str], rows: Mapping[str, str]) -> Finding:
        settings = self.settings or list(columns)
        sign = 1 if self.kind == "best" else -1
        gaps = self._gaps({place: sign * value for place, value in values.items()}, settings, rows)
        against = [gap for gap in gaps if gap.points < 0]
        if against:
            worst = min(against, key=lambda gap: gap.points)
            shown = (
                f"not in {len(against)} of {_columns(gaps)}: in {columns[worst.setting]}, "
                f"{rows[worst.other]} is {-worst.points:.2f} {'above' if sign > 0 else 'below'}"
            )
            return Finding("does not hold", shown)
        complete = [gap for gap in gaps if gap.complete]
        if len(complete) == len(settings):
            least = min(gaps, key=lambda gap: gap.points)
            place = f"{rows[least.other]} in {columns[least.setting]}"
            shown = f"closest: {place}, {least.points:.2f} away" if least.points else f"level with {place}"
            return Finding("holds", shown)
        shown = f"so far in {_columns(complete)}" if complete else ""
        return Finding("cannot be said", shown)


class Margin(_Claim):
    """A row is so many points above the best of the others."""

    kind: Literal["margin"]
    """Selects this kind."""
    over: Literal["each", "mean", "largest", "average"] = "each"
    """Every column; the mean over the columns; the largest of the columns; or the row's average over the
    columns against the others' averages."""
    at_least: float | None = None
    """Points; where the paper names a range, its lower end."""
    at_most: float | None = None
    """Points. Beside `at_least` it refutes nothing: a gain above a range is at least the range."""

    def test(self, values: Values, columns: Mapping[str, str], rows: Mapping[str, str]) -> Finding:
        settings = self.settings or list(columns)
        if self.over == "average":
            values, settings, columns = _averaged(values, settings), ["average"], {"average": "the average"}
        gaps = self._gaps(values, settings, rows)
        if not gaps:
            return Finding("cannot be said", "")
        complete = len(gaps) == len(settings) and all(gap.complete for gap in gaps)
        points = [gap.points for gap in gaps]
        reduce: Callable[[list[float]], float] = statistics.fmean if self.over == "mean" else max
        found = points if self.over == "each" else [round(reduce(points), 2)]
        within = all(self._within(value) for value in found)
        low, high = min(found), max(found)
        shown = f"{low:+.2f}" if low == high else f"{low:+.2f} to {high:+.2f}"
        shown = ("" if complete else "so far ") + shown.replace("-", "−")
        if complete:
            return Finding("holds" if within else "does not hold", shown)
        # A gap only shrinks when further rows get their numbers: what is too small now stays so.
        settled = [gap.points for gap in gaps if gap.complete or not self._enough(gap.points)]
        final = self.over == "each" and not all(self._within(value) for value in settled)
        return Finding("does not hold" if final else "cannot be said", shown)

    def _within(self, points: float) -> bool:
        if self.at_least is None and self.at_most is not None:
            return points <= self.at_most
        return self._enough(points)

    def _enough(self, points: float) -> bool:
        return self.at_least is None or points >= self.at_least


class Closeness(_Claim):
    """A row, and those that ``among`` names, are within so many points of the best of every column."""

    kind: Literal["close"]
    """Selects this kind."""
    points: float = Field(gt=0)
    """Largest distance to the best."""

    def test(self, values: Values, columns: Mapping[str, str], rows: Mapping[str, str]) -> Finding:
        settings = self.settings or list(columns)
        compared = [self.row, *self.among]
        best = {
            setting: max(there)
            for setting in settings
            if (there := [values[setting, row] for row in rows if (setting, row) in values])
        }
        gaps = {
            (setting, row): round(best[setting] - values[setting, row], 2)
            for setting in best
            for row in compared
            if (setting, row) in values
        }
        if not gaps:
            return Finding("cannot be said", "")
        setting, row = max(gaps, key=lambda place: gaps[place])
        shown = f"furthest: {rows[row]} in {columns[setting]}, {gaps[setting, row]:.2f} below the best"
        if gaps[setting, row] > self.points:
            return Finding("does not hold", shown)
        complete = all((setting, row) in values for setting in settings for row in rows)
        return Finding("holds" if complete else "cannot be said", shown)


class Trend(_Claim):
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
        super().check([*settings], rows)
        for name in (*self.higher, *self.lower):
            if name not in settings:
                raise unknown_name("claims.higher", name, settings)
        if len(self.higher) != len(self.lower):
            raise InvalidInput("claims.lower", self.lower, f"{len(self.higher)} columns, as 'higher' has")

    def test(self, values: Values, columns: Mapping[str, str], rows: Mapping[str, str]) -> Finding:
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
        if against:
            high, low = against[0]
            shown = (
                f"not in {len(against)} of {len(known)} pairs: {rows[high[1]]} has {values[high]:.2f} in "
                f"{columns[high[0]]}, {values[low]:.2f} in {columns[low[0]]}"
            )
            return Finding("does not hold", shown)
        shown = f"in {len(known)} of {len(pairs)} pairs" if known else ""
        return Finding("holds" if len(known) == len(pairs) else "cannot be said", shown)


Claim = Annotated[Rank | Margin | Closeness | Trend, Field(discriminator="kind")]


def _columns(gaps: Sequence[_Gap]) -> str:
    return "1 column" if len(gaps) == 1 else f"{len(gaps)} columns"


def _averaged(values: Values, settings: Sequence[str]) -> Values:
    """Each row's average over the columns, of the rows that have a number in all of them."""
    rows = {row for _, row in values}
    return {
        ("average", row): statistics.fmean(values[setting, row] for setting in settings)
        for row in rows
        if all((setting, row) in values for setting in settings)
    }
