"""Class activation maps of the personalised model and the supervisor (FedSimSup, Figure 4)."""

from __future__ import annotations

import numpy as np

from pipeline.figures.drawing import grid
from pipeline.figures.figure import Figure
from pipeline.figures.figure_runs import FigureRuns
from pipeline.figures.numbers import Numbers, Point
from pipeline.figures.probes.attention import probe
from pipeline.svg import Canvas

SPREAD = "share of the image above half of the map's largest value"


def measure(runs: FigureRuns) -> Numbers:
    """The spread of each network's maps, by image; the maps themselves are in ``images``."""
    ((_, per_seed),) = runs.measurements(probe)
    measurement = per_seed[0][-1]
    points = [
        Point(SPREAD, name, image, value)
        for name, values in measurement["spread"].items()
        for image, value in enumerate(values)
    ]
    return Numbers(points, {name: np.array(values) for name, values in measurement["shown"].items()})


def draw(figure: Figure, numbers: Numbers) -> Canvas:
    """One column per image: the image, the personalised model's map, and the supervisor's map."""
    images = numbers.images["image"]
    canvas, axes = grid(3 * len(images), height=1.9, across=len(images))
    titles = {"image": "Image", "model": "Personalised model", "supervisor": "Supervisor"}
    for number, place in enumerate(axes):
        row, column = divmod(number, len(images))
        name = [*titles][row]
        picture = images[column].astype(np.uint8).transpose(1, 2, 0)
        place.imshow(picture.squeeze(), cmap="gray")
        if name != "image":
            place.imshow(numbers.images[name][column], cmap="jet", alpha=0.5, vmin=0, vmax=1)
        place.set_xticks([])
        place.set_yticks([])
        if column == 0:
            place.set_ylabel(titles[name])
    canvas.set_figwidth(1.9 * len(images) + 0.6)
    return canvas
