"""The losses of a short simulation, to compare methods."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from pfl.data.dataset import Dataset
from pfl.data.partition import Partition
from tests.conftest import CONFIG, simulate


def losses(
    dataset: Dataset,
    clients: Partition,
    method: str,
    own: Mapping[str, Any] | None = None,
    moments: Sequence[str] = ("post_aggregation",),
    training: bool = False,
    **options: Any,
) -> list[list[float]]:
    """After each of three rounds of `CONFIG`, the test losses at ``moments`` and, if asked for, that of
    training.

    Args:
        own: hyperparameters.
    """
    config = dataclasses.replace(CONFIG, method=method, hyperparameters=own or {}, **options)
    (result,) = simulate(config, dataset, clients)
    return [
        [*(entry.moments[name].loss for name in moments), *([entry.train_loss] if training else [])]
        for entry in result.metrics.rounds
    ]
