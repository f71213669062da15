"""What the benchmarks of the search run: four methods on three workloads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pfl.core.config import Config
from pfl.run.validation import validated

FOLDER = Path("reports/engineering/search")
METHODS = ("fedavg", "fedper", "fedrep", "pfedsim")
SPACE = {"momentum": [0, 0.9], "head_epochs": [1, 3], "extractor_epochs": [1, 2], "head_lr": "pinned"}
"""Besides the learning rate in its default range, and pFedSim's rho."""
OWN = {"fedrep": {"head_epochs": 1, "extractor_epochs": 1}}
"""Hyperparameters of the pinned configurations that are not the defaults."""


@dataclass(frozen=True)
class SearchWorkload:
    """A data set in a partition, and how the pinned configurations train on it."""

    dataset: str
    partition: str
    clients: int
    schedule: Mapping[str, Any]

    def pinned(self, method: str) -> Config:
        """The configuration that a method is searched around."""
        return validated(Config(method=method, hyperparameters=OWN.get(method, {}), **self.schedule))


PARTITION = "dirichlet:0.1,min=10,test=0.25,seed=7"
DIGITS: dict[str, Any] = {
    "model": "cnn_digits",
    "participation": 0.3,
    "epochs": 2,
    "batch_size": 16,
    "lr": 0.2,
}

WORKLOADS = {
    # Rounds as in the table digits. With its few evaluations, the rungs are at a quarter and a half of them.
    "digits-20": SearchWorkload("digits", PARTITION, 20, DIGITS | {"rounds": 20, "eval_every": 5}),
    # Rungs at a ninth and a third, as in the papers' tables, which evaluate more often.
    "digits-54": SearchWorkload("digits", PARTITION, 20, DIGITS | {"rounds": 54, "eval_every": 6}),
    "mnist-27": SearchWorkload(
        "mnist",
        "dirichlet_client:0.1,size=120,test_size=40,seed=7",
        40,
        {
            "model": "lenet4",
            "participation": 0.25,
            "rounds": 27,
            "epochs": 1,
            "batch_size": 16,
            "lr": 0.05,
            "eval_every": 3,
        },
    ),
}

POOLS = {
    "digits-pool": SearchWorkload(
        "digits", PARTITION, 20, DIGITS | {"participation": 0.2, "epochs": 1, "rounds": 27, "eval_every": 3}
    ),
    "mnist-pool": SearchWorkload(
        "mnist",
        "dirichlet_client:0.1,size=40,test_size=40,seed=7",
        20,
        {
            "model": "lenet4",
            "participation": 0.2,
            "rounds": 27,
            "epochs": 1,
            "batch_size": 16,
            "lr": 0.05,
            "eval_every": 3,
        },
    ),
}
"""Workloads of `benchmarks.search.pools`, small enough for thousands of runs."""
