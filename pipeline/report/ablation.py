"""How much of the distance to the printed numbers two choices explain, method by method.

A table that declares `Choices` has a setting for each of their four combinations. The effect of a choice is
the mean of what it changes by itself and what it changes on top of the other, so that both effects add up to
the whole, in whichever order the choices are made.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.report.plots import COLOURS, GRID, INK, PAPER, STYLE, WIDTH
from pipeline.report.summary import Line, Summary
from pipeline.report.verdicts import POINTS
from pipeline.spec.table import Choices
from pipeline.svg import svg_text
from pipeline.text import points, signed

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Effect:
    """What a choice changes, in points: ``alone``, and on top of the other choice."""

    alone: float
    on_top: float

    @property
    def mean(self) -> float:
        return (self.alone + self.on_top) / 2


@dataclass(frozen=True)
class Gap:
    """One method: accuracies in percent as printed, with neither choice and with both; their effects."""

    label: str
    published: float
    neither: float
    both: float
    effects: tuple[Effect, Effect]

    @property
    def before(self) -> float:
        """Ours less the printed number with neither choice."""
        return self.neither - self.published

    @property
    def after(self) -> float:
        """The same with both."""
        return self.both - self.published

    @property
    def explained(self) -> float | None:
        """Share of the distance that is gone with both choices; None where there was none to explain."""
        return 1 - abs(self.after) / abs(self.before) if abs(self.before) > POINTS else None


@dataclass(frozen=True)
class Explanation:
    """What the choices explain.

    Attributes:
        choices: their labels.
        missing: labels of the methods of which some run is missing.
    """

    choices: tuple[str, str]
    gaps: tuple[Gap, ...]
    missing: tuple[str, ...]


def explain(summary: Summary) -> Explanation | None:
    """The explanation that a table asks for; None where it asks for none, or none can be given yet."""
    choices = summary.table.choices
    if choices is None:
        return None
    found = {line.label: _gap(line, choices) for line in summary.pinned}
    gaps = tuple(gap for gap in found.values() if gap)
    missing = tuple(label for label, gap in found.items() if gap is None)
    first, second = (choice.label for choice in choices.alone.values())
    return Explanation((first, second), gaps, missing) if gaps else None


def _gap(line: Line, choices: Choices) -> Gap | None:
    settings = (choices.neither, *choices.alone, choices.both)
    means = [score.mean for name in settings if (score := line.entries[name].score)]
    published = line.entries[choices.both].published
    if published is None or len(means) < len(settings):
        return None
    neither, first, second, both = means
    effects = (Effect(first - neither, both - second), Effect(second - neither, both - first))
    return Gap(line.label, published.mean, neither, both, effects)


def findings(explanation: Explanation) -> list[str]:
    """What the numbers say, a sentence or two per method, then one about all methods."""
    gaps = explanation.gaps
    near = {when: sum(abs(gap) <= POINTS for gap in at) for when, at in _distances(gaps).items()}
    mean = {when: statistics.fmean(map(abs, at)) for when, at in _distances(gaps).items()}
    whole = (
        f"With neither choice {near['neither']} of {len(gaps)} methods are within {POINTS:g} points of the "
        f"printed number, with both {near['both']}; the mean distance goes from {points(mean['neither'])} "
        f"points to {points(mean['both'])}."
    )
    return [*(_finding(gap, explanation.choices) for gap in gaps), whole]


def _distances(gaps: Sequence[Gap]) -> dict[str, list[float]]:
    return {"neither": [gap.before for gap in gaps], "both": [gap.after for gap in gaps]}


def _finding(gap: Gap, choices: tuple[str, str]) -> str:
    parts = ", ".join(
        f"{label} {signed(effect.mean)}" for label, effect in zip(choices, gap.effects, strict=True)
    )
    text = (
        f"{gap.label}: {points(gap.neither)} with neither choice, {_stands(gap.before)} the printed "
        f"{points(gap.published)}; {points(gap.both)} with both, {_stands(gap.after)} it ({parts})."
    )
    if gap.explained is None:
        return f"{text} There was no gap of more than {POINTS:g} points to explain."
    if gap.explained < 0:
        return f"{text} The choices widen the gap."
    return f"{text} They explain {gap.explained:.0%} of the gap."


def _stands(difference: float) -> str:
    return f"{points(abs(difference))} {'above' if difference >= 0 else 'below'}"


def plot(explanation: Explanation) -> str:
    """One line per method, from neither choice to both by their effects, with the printed number, as SVG."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 1.1 + 0.5 * len(explanation.gaps)), layout="constrained")
        axes = figure.subplots()
        for place, gap in enumerate(explanation.gaps):
            _draw(axes, gap, -place)
        axes.set_xlabel("Accuracy (%)")
        axes.grid(axis="y", visible=False)
        axes.set_ylim(0.6 - len(explanation.gaps), 0.6)
        axes.set_yticks([-place for place in range(len(explanation.gaps))])
        axes.set_yticklabels([gap.label for gap in explanation.gaps], color=INK)
        axes.tick_params(axis="y", length=0)
        figure.legend(handles=_handles(explanation.choices), loc="outside upper left", ncols=5)
        return svg_text(figure)


def _draw(axes: Axes, gap: Gap, place: int) -> None:
    """The effects are a little apart, so that one which turns back does not hide the other."""
    between = gap.neither + gap.effects[0].mean
    axes.plot(
        [gap.published - POINTS, gap.published + POINTS],
        [place, place],
        color=GRID,
        linewidth=14,
        solid_capstyle="butt",
    )
    axes.plot([gap.published] * 2, [place - 0.28, place + 0.28], color=INK, linewidth=1.6)
    axes.plot([gap.neither, between], [place + 0.09] * 2, color=COLOURS[1], linewidth=3)
    axes.plot([between, gap.both], [place - 0.09] * 2, color=COLOURS[2], linewidth=3)
    axes.plot(gap.neither, place + 0.09, "o", color=PAPER, markeredgecolor=INK, markersize=6)
    axes.plot(gap.both, place - 0.09, "o", color=INK, markersize=6)


def _handles(choices: tuple[str, str]) -> list[object]:
    from matplotlib.lines import Line2D

    return [
        Line2D([], [], marker="o", ls="none", color=PAPER, markeredgecolor=INK, label="neither choice"),
        Line2D([], [], color=COLOURS[1], linewidth=3, label=choices[0]),
        Line2D([], [], color=COLOURS[2], linewidth=3, label=choices[1]),
        Line2D([], [], marker="o", ls="none", color=INK, label="both"),
        Line2D(
            [], [], marker="|", ls="none", color=INK, markersize=10, label=f"printed, ± {POINTS:g} points"
        ),
    ]
