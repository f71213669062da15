"""The numbers that a figure shows: values by panel, series and x."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pfl.core.errors import InvalidInput
from pipeline.formatting import csv_text
from pipeline.spec.csv_file import read_csv


class Point(NamedTuple):
    """One value of a figure; ``std`` is the sample standard deviation over seeds, if there are several."""

    panel: str
    series: str
    x: float
    value: float
    std: float | None = None


@dataclass(frozen=True)
class Numbers:
    """All of a figure's values, in the order in which panels and series are to appear.

    Attributes:
        points: the content of the CSV file, on which claims are tested.
        images: arrays that are drawn; the points summarise them.

    Raises:
        InvalidInput: two points have the same panel, series and x.
    """

    points: Sequence[Point]
    images: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        counts = Counter((point.panel, point.series, point.x) for point in self.points)
        for place, count in counts.items():
            if count > 1:
                raise InvalidInput("points", ", ".join(map(str, place)), "one value per panel, series and x")

    @property
    def panels(self) -> dict[str, dict[str, dict[float, Point]]]:
        """Panel to series to x to point."""
        panels: dict[str, dict[str, dict[float, Point]]] = {}
        for point in self.points:
            panels.setdefault(point.panel, {}).setdefault(point.series, {})[point.x] = point
        return panels

    @property
    def values(self) -> dict[str, dict[str, dict[float, float]]]:
        """Panel to series to x to value."""
        return {
            panel: {name: {x: point.value for x, point in points.items()} for name, points in series.items()}
            for panel, series in self.panels.items()
        }

    def matrix(self, panel: str) -> np.ndarray:
        """A panel as a matrix: a row per series, a column per x."""
        return np.array([[p.value for p in points.values()] for points in self.panels[panel].values()])

    def csv(self) -> str:
        """CSV text: one line per point, values with six significant digits."""
        return csv_text(
            Point._fields,
            (
                [*names, f"{x:g}", f"{value:.6g}", "" if std is None else f"{std:.6g}"]
                for *names, x, value, std in self.points
            ),
        )


def read_numbers(path: Path) -> Numbers:
    """The points in a file that `Numbers.csv` wrote, without deviations."""
    return Numbers(read_csv(path, _point, Point._fields))


def _point(row: dict[str, str]) -> Point:
    return Point(row["panel"], row["series"], float(row["x"]), float(row["value"]))


def matrix_points(panel: str, names: Iterable[str], matrix: np.ndarray) -> list[Point]:
    """The points of a matrix (rows, columns), whose rows are called ``names``."""
    return [
        Point(panel, name, x, float(value))
        for name, row in zip(names, matrix, strict=True)
        for x, value in enumerate(row)
    ]
