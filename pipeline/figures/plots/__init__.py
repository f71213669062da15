"""The families of figures, one per file with the functions ``measure`` and ``draw`` of a `Plot`."""

from __future__ import annotations

from types import ModuleType

from pfl.core.registry import Registry
from pipeline.figures.drawing import Plot


def _plot(module: ModuleType) -> Plot:
    return Plot(module.measure, module.draw, getattr(module, "SIMULATES", True))


PLOTS: Registry[Plot] = Registry("plot", "pipeline.figures.plots", _plot)
"""Plots by the name of their family; a file sets ``SIMULATES = False`` if the partitions are enough."""
