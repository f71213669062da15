"""A paper's claims about its own figure, tested on our series, separately in each panel.

* ``highest``: a series has the highest value of its panel;
* ``order``: the means of the series come in an order;
* ``rises``, ``falls``: series go up (down) along x;
* ``peak``: series have their highest value in a range of x;
* ``above``: the means of series are at least a given value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from pipeline.spec.claims import Claim, Finding

Series = Mapping[float, float]
"""Value by x."""


class _SeriesClaim(Claim):
    """Base of the claims about series."""

    series: list[str] = []
    """The series that the claim is about; empty means all of a panel."""
    panels: list[str] = []
    """The panels that the claim is about; empty means all of the figure."""

    def test(self, panels: Mapping[str, Mapping[str, Series]], labels: Mapping[str, str]) -> Finding:
        """Test the claim on every panel that has its series.

        Args:
            panels: panel to series to value by x.
            labels: names of panels and series in the figure.
        """
        tested = {
            panel: self._in_panel({name: labels.get(name, name) for name in series}, series)
            for panel, series in panels.items()
            if (not self.panels or panel in self.panels) and self._is_about(series)
        }
        if not tested:
            return Finding("open", "not part of these runs")
        if undefined := [labels.get(panel, panel) for panel in tested if not self._is_defined(panels[panel])]:
            return Finding("open", f"a value is not a number: {', '.join(undefined)}")
        against = sum(not holds for holds, _ in tested.values())
        shown = "; ".join(f"{labels.get(panel, panel)}: {text}" for panel, (_, text) in tested.items())
        if 0 < against < len(tested):
            shown = f"not in {against} of {len(tested)} panels: {shown}"
        return Finding.of(not against, shown)

    def _is_about(self, series: Mapping[str, Series]) -> bool:
        return all(name in series for name in self.series)

    def _compared(self, series: Mapping[str, Series]) -> Mapping[str, Series]:
        """The series of a panel whose values decide the claim."""
        return {name: series[name] for name in self.series or series}

    def _is_defined(self, series: Mapping[str, Series]) -> bool:
        """Whether the values that decide the claim are finite; a correlation of constants is not."""
        return all(np.isfinite([*values.values()]).all() for values in self._compared(series).values())

    def _in_panel(self, labels: Mapping[str, str], values: Mapping[str, Series]) -> tuple[bool, str]:
        """Whether the claim holds in a panel, and the numbers that show it; by default, in each series."""
        tested = {name: self._in_series(points) for name, points in self._compared(values).items()}
        shown = ", ".join(f"{labels[name]} {text}" for name, (_, text) in tested.items())
        return all(holds for holds, _ in tested.values()), shown

    def _in_series(self, values: Series) -> tuple[bool, str]:
        """Whether the claim holds in a series, and the numbers that show it."""
        raise NotImplementedError


class Highest(_SeriesClaim):
    """A series is highest at its last x, at every x (``everywhere``), or by each series' ``best`` value.

    A tie counts as highest, as in tables. An x that no other series has does not count.
    """

    kind: Literal["highest"]
    series: Annotated[list[str], Field(min_length=1, max_length=1)]
    everywhere: bool = False
    best: bool = False
    """Compare the highest value of each series, as papers do that report the best round."""

    def _compared(self, series: Mapping[str, Series]) -> Mapping[str, Series]:
        return series

    def _is_about(self, series: Mapping[str, Series]) -> bool:
        return super()._is_about(series) and bool(self._at(series))

    def _at(self, values: Mapping[str, Series]) -> list[float]:
        (wanted,) = self.series
        others = set().union(*(points for name, points in values.items() if name != wanted))
        return [x for x in values[wanted] if x in others or (self.best and others)]

    def _in_panel(self, labels: Mapping[str, str], values: Mapping[str, Series]) -> tuple[bool, str]:
        (wanted,) = self.series
        if self.best:
            values = {name: {0.0: max(points.values())} for name, points in values.items()}
        at = self._at(values) if self.everywhere else [max(self._at(values))]
        best = {x: max(values, key=lambda name: (values[name].get(x, -np.inf), name == wanted)) for x in at}
        wins = sum(name == wanted for name in best.values())
        if self.everywhere:
            return wins == len(at), f"{labels[wanted]} is highest at {wins} of {len(at)}"
        ((x, first),) = best.items()
        there = [name for name in values if name != first and x in values[name]]
        other = wanted if first != wanted else max(there, key=lambda name: values[name][x])
        text = f"{labels[first]} is highest ({values[first][x]:.4g}; {labels[other]} {values[other][x]:.4g})"
        return first == wanted, text


class Order(_SeriesClaim):
    """The means of the series, over the x that all of them have, come in this order, the highest first."""

    kind: Literal["order"]
    series: Annotated[list[str], Field(min_length=2)]

    def _is_about(self, series: Mapping[str, Series]) -> bool:
        return super()._is_about(series) and bool(self._at(series))

    def _at(self, values: Mapping[str, Series]) -> set[float]:
        return set.intersection(*(set(values[name]) for name in self.series))

    def _in_panel(self, labels: Mapping[str, str], values: Mapping[str, Series]) -> tuple[bool, str]:
        at = self._at(values)
        means = {name: _mean({x: values[name][x] for x in at}) for name in self.series}
        ordered = sorted(means, key=lambda name: -means[name])
        return ordered == self.series, " > ".join(f"{labels[name]} ({means[name]:.3g})" for name in ordered)


class Slope(_SeriesClaim):
    """The last tenth of each series lies above (``rises``) or below (``falls``) its first tenth."""

    kind: Literal["rises", "falls"]

    def _in_series(self, values: Series) -> tuple[bool, str]:
        sign = 1 if self.kind == "rises" else -1
        sequence = [value for _, value in sorted(values.items())]
        tenth = max(1, len(sequence) // 10)
        first, last = np.mean(sequence[:tenth]), np.mean(sequence[-tenth:])
        steady = tenth > 1 or all(sign * step > 0 for step in np.diff(sequence))
        text = f"from {first:.3g} to {last:.3g}{'' if steady else ' (not at every step)'}"
        return bool(sign * (last - first) > 0), text


class Peak(_SeriesClaim):
    """The highest value of each series is at an x in ``between``, ends included."""

    kind: Literal["peak"]
    between: Annotated[list[float], Field(min_length=2, max_length=2)]

    def _is_about(self, series: Mapping[str, Series]) -> bool:
        if not super()._is_about(series):
            return False
        return all(len(values) > 1 for values in self._compared(series).values())

    def _in_series(self, values: Series) -> tuple[bool, str]:
        low, high = self.between
        first, second, *_ = sorted(values, key=lambda x: -values[x])
        text = f"is highest at {first:g} ({values[first]:.4g}; {values[second]:.4g} at {second:g})"
        return low <= first <= high, text


class Above(_SeriesClaim):
    """The mean of each series over x is at least ``least``."""

    kind: Literal["above"]
    least: float

    def _in_series(self, values: Series) -> tuple[bool, str]:
        mean = _mean(values)
        return mean >= self.least, f"{mean:.3g}"


def _mean(values: Series) -> float:
    return float(np.mean([*values.values()]))


SeriesClaim = Annotated[Highest | Order | Slope | Peak | Above, Field(discriminator="kind")]
