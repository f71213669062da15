"""The families of figures, one per file. `DRAWINGS` maps a family's name to its `Drawing`."""

from __future__ import annotations

from pfl.registry import Registry
from pipeline.figures.drawing import Drawing

DRAWINGS: Registry[Drawing] = Registry("drawing", "pipeline.figures.plots")
