"""Whether what a paper says of its figure shows in our numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from pipeline.figures.config import Statement
from pipeline.figures.numbers import Numbers

Series = Mapping[float, float]
"""Value by x."""


@dataclass(frozen=True)
class Finding:
    """A statement held against the numbers.

    Attributes:
        text: what the paper says.
        shows: panels in which it shows.
        tested: panels that have what it speaks of.
        found: what was looked at, in each of them.
    """

    text: str
    shows: int
    tested: int
    found: str

    @property
    def verdict(self) -> str:
        """For example "shows", "does not show", "shows in 2 of 3 panels"."""
        if not self.tested:
            return "not tested"
        if self.shows in (0, self.tested):
            return "shows" if self.shows else "does not show"
        return f"shows in {self.shows} of {self.tested} panels"


def check(statement: Statement, numbers: Numbers, labels: Mapping[str, str]) -> Finding:
    """Hold a statement against every panel that has its series.

    Args:
        labels: what panels and series are called in the figure.
    """
    texts, shows = [], 0
    for panel, series in numbers.panels.items():
        if statement.panels and panel not in statement.panels:
            continue
        alone = len(series) < 2 and statement.check in ("highest", "order")
        values = {name: {x: point.value for x, point in points.items()} for name, points in series.items()}
        named = statement.series or list(values)
        if alone or not all(name in values for name in named):
            continue
        shown = {name: labels.get(name, name) for name in values}
        holds, text = _CHECKS[statement.check](statement, shown, values)
        shows += holds
        texts.append(f"{labels.get(panel, panel)}: {text}")
    return Finding(statement.text, shows, len(texts), "; ".join(texts) or "these runs leave it out")


def _highest(
    statement: Statement, labels: Mapping[str, str], values: Mapping[str, Series]
) -> tuple[bool, str]:
    (wanted,) = statement.series
    at = list(values[wanted]) if statement.everywhere else [max(values[wanted])]
    best = {x: max(values, key=lambda name: values[name].get(x, -np.inf)) for x in at}
    wins = sum(name == wanted for name in best.values())
    if statement.everywhere:
        return wins == len(at), f"{labels[wanted]} is highest at {wins} of {len(at)}"
    (x, first), *_ = best.items()
    there = [name for name in values if name != first and x in values[name]]
    other = wanted if first != wanted else max(there, key=lambda name: values[name][x])
    text = f"{labels[first]} is highest ({values[first][x]:.4g}; {labels[other]} {values[other][x]:.4g})"
    return first == wanted, text


def _order(statement: Statement, labels: Mapping[str, str], values: Mapping[str, Series]) -> tuple[bool, str]:
    means = {name: float(np.mean([*values[name].values()])) for name in statement.series}
    ordered = sorted(means, key=lambda name: -means[name])
    return ordered == statement.series, " > ".join(f"{labels[name]} ({means[name]:.3g})" for name in ordered)


def _trend(statement: Statement, labels: Mapping[str, str], values: Mapping[str, Series]) -> tuple[bool, str]:
    sign = 1 if statement.check == "rises" else -1
    texts, holds = [], True
    for name in statement.series or values:
        sequence = [value for _, value in sorted(values[name].items())]
        tenth = max(1, len(sequence) // 10)
        first, last = np.mean(sequence[:tenth]), np.mean(sequence[-tenth:])
        holds &= bool(sign * (last - first) > 0)
        steady = tenth > 1 or all(sign * step > 0 for step in np.diff(sequence))
        texts.append(
            f"{labels[name]} from {first:.3g} to {last:.3g}" + ("" if steady else " (not at every step)")
        )
    return holds, ", ".join(texts)


def _peak(statement: Statement, labels: Mapping[str, str], values: Mapping[str, Series]) -> tuple[bool, str]:
    assert statement.between
    low, high = statement.between
    texts, holds = [], True
    for name in statement.series or values:
        first, *others = sorted(values[name], key=lambda x: -values[name][x])
        holds &= low <= first <= high
        text = f"{labels[name]} is highest at {first:g}"
        if others:
            text += f" ({values[name][first]:.4g}; {values[name][others[0]]:.4g} at {others[0]:g})"
        texts.append(text)
    return holds, ", ".join(texts)


def _above(statement: Statement, labels: Mapping[str, str], values: Mapping[str, Series]) -> tuple[bool, str]:
    assert statement.least is not None
    means = {name: float(np.mean([*values[name].values()])) for name in statement.series or values}
    holds = all(mean >= statement.least for mean in means.values())
    return holds, ", ".join(f"{labels[name]} {mean:.3g}" for name, mean in means.items())


_CHECKS: dict[str, Callable[[Statement, Mapping[str, str], Mapping[str, Series]], tuple[bool, str]]] = {
    "highest": _highest,
    "order": _order,
    "rises": _trend,
    "falls": _trend,
    "peak": _peak,
    "above": _above,
}
