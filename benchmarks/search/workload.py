"""What the benchmarks of the search run: four methods on the digits."""

from __future__ import annotations

from pathlib import Path

from pfl.config import Config
from pfl.validation import validated

FOLDER = Path("reports/engineering/search")
METHODS = ("fedavg", "fedper", "fedrep", "pfedsim")
CLIENTS = 20
PARTITION = "dirichlet:0.1,min=10,test=0.25,seed=7"
SPACE = {"momentum": [0, 0.9], "head_epochs": [1, 3], "extractor_epochs": [1, 2], "head_lr": "pinned"}
"""Besides the learning rate in its default range, and pFedSim's rho."""
OWN = {"fedrep": {"head_epochs": 1, "extractor_epochs": 1}}
"""Hyperparameters of the pinned configurations that are not the defaults."""


def pinned(method: str) -> Config:
    """The configuration that a method is searched around, as in the table digits."""
    return validated(
        Config(
            method=method,
            hyperparameters=OWN.get(method, {}),
            model="cnn_digits",
            participation=0.3,
            rounds=20,
            epochs=2,
            batch_size=32,
            lr=0.2,
            eval_every=5,
        )
    )
