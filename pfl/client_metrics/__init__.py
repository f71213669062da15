"""Metrics besides accuracy, one per file. Plugins add them as entry points of this package's name.

A metric is a function of a model's scores (n, classes), float64, and the labels (n,) of test samples. It
returns a number or an array of numbers, of the same shape for all clients, with NaN where it is undefined.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pfl.core.registry import Registry

if TYPE_CHECKING:
    import numpy as np

ClientMetricFunction = Callable[["np.ndarray", "np.ndarray"], Any]

CLIENT_METRICS: Registry[ClientMetricFunction] = Registry("metric", "pfl.client_metrics")
