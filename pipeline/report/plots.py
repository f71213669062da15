"""The report's plots as SVG text: one panel per setting, and the same look for a method in all of them."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from operator import attrgetter
from typing import Any, ParamSpec

import numpy as np

from pipeline.columns import COLUMNS
from pipeline.report.amounts import quantity
from pipeline.report.summary import Entry, Line, Summary
from pipeline.store.scores import client_accuracies
from pipeline.store.scores import curves as curves_of
from pipeline.svg import Axes, Canvas, svg_text

P = ParamSpec("P")

COLOURS = (
    "#7d8590",
    "#3b7dd8",
    "#e8833a",
    "#2f9e6e",
    "#d64550",
    "#8e63ce",
    "#16a3b8",
    "#d968a8",
    "#a0724a",
    "#97a01f",
    "#5a5fd0",
    "#dba514",
)
DASHES: tuple[Any, ...] = ("solid", (0, (4, 1.5)), (0, (1, 1.2)))
MARKERS = "osD^vPX"

# Colours that a page can restyle: `inline` replaces them with CSS variables.
INK, MUTED, GRID, PAPER = "#1f2328", "#59636e", "#d8dee4", "#ffffff"
BLACK = "#000000"  # in plots that other modules draw
VARIABLES = {INK: "--ink", BLACK: "--ink", MUTED: "--muted", GRID: "--grid", PAPER: "--paper"}

STYLE: dict[Any, Any] = {
    "axes.edgecolor": GRID,
    "axes.facecolor": PAPER,
    "axes.grid": True,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 9,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "figure.constrained_layout.h_pad": 0.08,
    "figure.constrained_layout.w_pad": 0.08,
    "figure.facecolor": PAPER,
    "font.size": 9,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "lines.linewidth": 1.6,
    "text.color": INK,
    "text.parse_math": False,  # a user's text with dollar signs is not a formula
    "xtick.color": GRID,
    "xtick.labelcolor": MUTED,
    "ytick.color": GRID,
    "ytick.labelcolor": MUTED,
}

WIDTH = 11.0  # of every figure, in inches, so that text has the same size in all


@dataclass(frozen=True)
class Look:
    """A method's appearance in a plot."""

    colour: str
    dash: Any
    marker: str


def look_at(place: int) -> Look:
    """The look of a row or a series by its index; dash and marker change every six.

    84 looks are distinct, and the first 36 of them without their markers.
    """
    again = place // 6
    return Look(COLOURS[place % len(COLOURS)], DASHES[again % len(DASHES)], MARKERS[again % len(MARKERS)])


def looks(summary: Summary, drawn: Callable[[Entry], object]) -> dict[str, Look]:
    """The look of each row with a drawn entry: by its place in the table or, if the table has more rows than
    there are colours, by its place among the drawn rows."""
    few = len(summary.pinned) <= len(COLOURS)
    rows = [line.row for line in summary.pinned if few or any(map(drawn, line.entries.values()))]
    return {row: look_at(place) for place, row in enumerate(rows)}


def draw(summary: Summary) -> dict[str, str]:
    """The plots that the results allow, SVG text by name."""
    finished = [entry for line in summary.pinned for entry in line.entries.values() if entry.successes]
    if not any(entry.evaluation.is_accuracy for entry in finished):
        return {}
    return {plot.__name__: as_svg(plot)(summary) for plot in (convergence, clients, communication)}


def convergence(summary: Summary) -> Canvas:
    """Accuracy by round: mean over the seeds, and a band of one standard deviation around it.

    The curve of a cell that diverged ends with that word.
    """

    def panel(axes: Axes, entry: Entry, look: Look) -> None:
        shared = curves_of(entry.successes or entry.diverged, entry.evaluation)
        if not shared:
            return
        rounds = [number for number, _ in shared]
        values = np.array([accuracies for _, accuracies in shared]).T
        mean = values.mean(axis=0)
        axes.plot(rounds, mean, look.marker, ls=look.dash, color=look.colour, markersize=4, markevery=[-1])
        if not entry.successes:
            axes.annotate(
                "diverged", (rounds[-1], mean[-1]), (4, 0), textcoords="offset points", color=look.colour
            )
        if len(values) > 1:
            std = values.std(axis=0, ddof=1)
            axes.fill_between(rounds, mean - std, mean + std, color=look.colour, alpha=0.15, linewidth=0)

    from matplotlib.ticker import MaxNLocator

    drawn = limited_to_colours(summary, lambda entry: entry.simulated and entry.evaluation.is_accuracy)
    figure = panels(summary, panel, "Round", "Accuracy (%)", drawn=drawn)
    for axes in figure.axes:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend(figure, summary, drawn=drawn)
    return figure


def clients(summary: Summary) -> Canvas:
    """Each client's accuracy (a tick; its mean over the seeds), quartiles (bar) and median (dot).

    With more rows than there are colours, a line from the lowest to the highest accuracy replaces the ticks.
    """
    places = {line.row: -place for place, line in enumerate(summary.pinned)}

    def panel(axes: Axes, entry: Entry, look: Look) -> None:
        values = np.array([np.mean(own) for own in client_accuracies(entry.successes).values()])
        place = places[entry.row]
        low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
        if len(places) > len(COLOURS):
            x, y = np.array([values.min(), values.max()]), np.array([place, place])
        else:  # one path for all ticks, alternately up and down from left to right, keeps the file small
            x = np.repeat(np.sort(values), 3)
            up, down = [place - 0.3, place + 0.3, np.nan], [place + 0.3, place - 0.3, np.nan]
            y = np.resize([up, down], len(x))
        axes.plot(x, y, color=look.colour, alpha=0.45, linewidth=0.9)
        axes.plot([low, high], [place, place], color=look.colour, linewidth=5, solid_capstyle="butt")
        axes.plot(median, place, "o", color=PAPER, markeredgecolor=look.colour, markersize=5.5)

    figure = panels(
        summary, panel, "Accuracy of a client (%)", "", height=0.55 + 0.22 * len(places), share=True
    )
    for axes in figure.axes:
        name_rows(axes, [line.label for line in summary.pinned])
    return figure


def communication(summary: Summary) -> Canvas:
    """Final accuracy against the total traffic of all clients; not of entries that report something else."""

    def drawn(entry: Entry) -> bool:
        return bool(entry.successes) and entry.evaluation.is_accuracy

    def panel(axes: Axes, entry: Entry, look: Look) -> None:
        assert entry.score is not None
        x, y = quantity(entry, COLUMNS["megabytes"]), entry.score.mean
        assert x is not None
        axes.errorbar(x, y, entry.score.std, color=look.colour, elinewidth=1, alpha=0.6)
        axes.plot(x, y, look.marker, color=look.colour, markersize=6)
        axes.update_datalim([(0, y)])
        axes.autoscale_view()

    figure = panels(summary, panel, "Communicated in total (MB)", "Accuracy (%)", drawn=drawn)
    legend(figure, summary, curves=False, drawn=drawn)
    return figure


def limited_to_colours(summary: Summary, drawn: Callable[[Entry], object]) -> Callable[[Entry], bool]:
    """``drawn``, limited to as many rows as there are colours: those with the highest means."""

    def height(line: Line) -> float:
        scores = [entry.score.mean for entry in line.entries.values() if entry.score]
        return float(np.mean(scores)) if scores else -np.inf

    lines = [line for line in summary.pinned if any(map(drawn, line.entries.values()))]
    rows = {line.row for line in sorted(lines, key=height, reverse=True)[: len(COLOURS)]}
    return lambda entry: bool(drawn(entry)) and entry.row in rows


# ---- figures -------------------------------------------------------------------------------------------


def as_svg(draw: Callable[P, Canvas]) -> Callable[P, str]:
    """Decorate a function that draws a figure: it returns SVG text in the style of reports."""

    @wraps(draw)
    def drawn(*arguments: P.args, **options: P.kwargs) -> str:
        from matplotlib import rc_context

        with rc_context(STYLE):
            return svg_text(draw(*arguments, **options))

    return drawn


def wide_figure(height: float) -> Canvas:
    """An empty figure of the usual width.

    Args:
        height: in inches.
    """
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH, height), layout="constrained")


def panels(
    summary: Summary,
    panel: Callable[[Axes, Entry, Look], None],
    x: str,
    y: str,
    *,
    height: float = 2.4,
    share: bool = False,
    drawn: Callable[[Entry], object] = attrgetter("successes"),
) -> Canvas:
    """One panel per setting; ``panel`` draws one entry of the pinned configuration into it.

    Args:
        x, y: labels of the axes.
        height: of a panel, in inches.
        share: whether the panels share the ranges of their axes.
        drawn: which entries are drawn; by default those with a result.
    """
    settings = list(summary.settings)
    across = min(3, len(settings))
    down = -(-len(settings) // across)
    extra = 1.0 if across == 1 and not share else 0.0  # a single panel is wide and therefore taller
    figure = wide_figure((height + extra) * down + 0.4)
    grid = figure.subplots(down, across, sharex=share, sharey=share, squeeze=False)
    look = looks(summary, drawn)
    for number, axes in enumerate(grid.flat):
        if number >= len(settings):
            axes.remove()
            continue
        axes.set_title(summary.columns[settings[number]])
        entries = [line.entries[settings[number]] for line in summary.pinned]
        for entry in entries:
            if drawn(entry):
                panel(axes, entry, look[entry.row])
        if not any(map(drawn, entries)):
            text = "nothing to draw" if any(entry.score for entry in entries) else "no results"
            axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", color=MUTED)
        if number + across >= len(settings):
            axes.set_xlabel(x)
            axes.tick_params(labelbottom=True)  # also above an unused panel
        if number % across == 0:
            axes.set_ylabel(y)
    return figure


def logarithmic(axes: Axes) -> None:
    """Make the x axis logarithmic, with plain numbers because `STYLE` turns off formulas."""
    from matplotlib.ticker import LogFormatter

    class Plain(LogFormatter):
        def __call__(self, x: float, pos: int | None = None) -> str:
            return f"{x:g}" if super().__call__(x, pos) else ""

    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(Plain())
    axes.xaxis.set_minor_formatter(Plain(labelOnlyBase=False))


def name_rows(axes: Axes, labels: Sequence[str]) -> None:
    """Label the heights 0, -1, -2 and so on of a panel."""
    axes.grid(axis="y", visible=False)
    axes.set_ylim(0.4 - len(labels), 0.6)
    axes.set_yticks([-place for place in range(len(labels))], labels)
    axes.tick_params(axis="y", length=0, labelcolor=INK)


def legend(
    figure: Canvas,
    summary: Summary,
    *,
    curves: bool = True,
    drawn: Callable[[Entry], object] = attrgetter("successes"),
) -> None:
    """Add a legend of the rows with a drawn entry."""
    from matplotlib.lines import Line2D

    look = looks(summary, drawn)
    handles = {
        line.label: Line2D(
            [],
            [],
            color=look[line.row].colour,
            linestyle=look[line.row].dash if curves else "none",
            marker=look[line.row].marker,
            markersize=4 if curves else 6,
        )
        for line in summary.pinned
        if any(map(drawn, line.entries.values()))
    }
    place_legend(figure, handles)


def place_legend(figure: Canvas, handles: Mapping[str, Any]) -> None:
    """Place a legend above the panels, in as many columns as its labels allow.

    The figure has room for one line, and grows by any further ones.
    """
    columns = int(figure.get_figwidth() / (0.7 + 0.08 * max(map(len, handles))))
    columns = max(1, min(columns, len(handles), 7))
    figure.set_figheight(figure.get_figheight() + 0.2 * (-(-len(handles) // columns) - 1))
    figure.legend(handles.values(), handles.keys(), loc="outside upper left", ncols=columns)


def inline(svg: str, name: str, label: str) -> str:
    """An SVG file as an element of a page, in the page's colours.

    Args:
        name: unique in the page; ids start with it.
        label: a text alternative of the plot, for screen readers.
    """
    element = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    for colour, variable in VARIABLES.items():
        element = element.replace(colour, f"var({variable})")
    return element.replace("<svg", f'<svg role="img" aria-label="{html.escape(label)}"', 1)
