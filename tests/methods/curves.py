"""Test losses of a short simulation, to compare methods that must agree in float64 to 1e-9."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import pytest

from pfl.core.config import Execution
from pfl.data.dataset import Dataset
from pfl.data.partition import Partition
from pfl.run.simulate import simulate
from tests.conftest import CONFIG

Curve = list[float]


def curve(
    dataset: Dataset,
    partition: Partition,
    method: str,
    hyperparameters: Mapping[str, Any] | None = None,
    moment: str = "post_aggregation",
    backend: Literal["loop", "stacked"] = "loop",
    **changes: Any,
) -> Curve:
    """The test loss after each of three rounds of `CONFIG`, at ``moment``."""
    config = dataclasses.replace(CONFIG, method=method, hyperparameters=hyperparameters or {}, **changes)
    (result,) = simulate(config, dataset, partition, (0,), Execution(backend=backend))
    return [evaluated.moments[moment].loss for evaluated in result.metrics.rounds]


def assert_same(ours: Curve, theirs: Curve) -> None:
    assert ours == pytest.approx(theirs, abs=1e-9)


def assert_apart(ours: Curve, theirs: Curve) -> None:
    assert ours[-1] != pytest.approx(theirs[-1], abs=1e-5)
