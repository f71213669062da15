"""The angle between two clients' updates, round after round (FedCAC, Figure 1a)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.figures.drawing import Plot, averaged, line_plot
from pipeline.figures.figure import Figure
from pipeline.figures.figure_runs import FigureRuns
from pipeline.figures.numbers import Numbers
from pipeline.figures.probes.update_angles import probe

if TYPE_CHECKING:
    from matplotlib import figure as mpl


PANEL = "angle"


def measure(runs: FigureRuns) -> Numbers:
    """One series per setting, by round."""
    points = []
    for cell, per_seed in runs.measurements(probe).items():
        setting = cell.partition("/")[0]
        for together in zip(*per_seed, strict=True):
            angles = [measurement["angle"] for measurement in together]
            points.append(averaged(PANEL, setting, together[0]["round"], angles))
    return Numbers(points)


def draw(figure: Figure, numbers: Numbers) -> mpl.Figure:
    """Lines by round."""
    label = "Angle between the updates (degrees)"
    return line_plot(figure, numbers, "Round", label, height=3.2, names={PANEL: ""})


angles = Plot(measure, draw)
