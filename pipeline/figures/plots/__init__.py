"""The families of figures, one per file. `PLOTS` maps a family's name to its `Plot`."""

from __future__ import annotations

from pfl.core.registry import Registry
from pipeline.figures.drawing import Plot

PLOTS: Registry[Plot] = Registry("plot", "pipeline.figures.plots")
