"""The data sets, one per file. `DATASETS` maps the name of a data set to its `Definition`."""

from __future__ import annotations

from pfl.data.definition import Definition
from pfl.registry import Registry

DATASETS: Registry[Definition] = Registry("dataset", "pfl.data.datasets")
