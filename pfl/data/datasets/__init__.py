"""The data sets, one per file. `DATASETS` maps the name of a data set to its `Definition`."""

from __future__ import annotations

from pfl.core.registry import Registry
from pfl.data.definition import Definition

DATASETS: Registry[Definition] = Registry("dataset", "pfl.data.datasets")
