"""The angle between two clients' updates, round after round (FedCAC, Figure 1a)."""

from __future__ import annotations

from functools import partial

from pipeline.figures.drawing import averaged, line_plot
from pipeline.figures.figure_runs import FigureRuns
from pipeline.figures.numbers import Numbers
from pipeline.figures.probes.update_angles import probe

PANEL = "angle"


def measure(runs: FigureRuns) -> Numbers:
    """One series per setting, by round."""
    points = []
    for cell, per_seed in runs.measurements(probe):
        for together in zip(*per_seed, strict=True):
            angles = [measurement["angle"] for measurement in together]
            points.append(averaged(PANEL, cell.setting, together[0]["round"], angles))
    return Numbers(points)


LABEL = "Angle between the updates (degrees)"
draw = partial(line_plot, x_label="Round", y_label=LABEL, height=3.2, names={PANEL: ""})
