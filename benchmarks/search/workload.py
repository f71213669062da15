"""The workloads on which the searches are compared: one per data set, small enough for thousands of runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pfl.core.config import Config
from pfl.run.validation import validated

FOLDER = Path("reports/engineering/search")


@dataclass(frozen=True)
class SearchWorkload:
    """A data set in a partition, and how the pinned configurations train on it."""

    dataset: str
    partition: str
    clients: int
    schedule: Mapping[str, Any]

    def pinned(self, method: str) -> Config:
        """The configuration that a method is searched around."""
        return validated(Config(method=method, **self.schedule))

    @property
    def evaluations(self) -> list[int]:
        """The rounds after which there is an evaluation."""
        step, last = self.schedule["eval_every"], self.schedule["rounds"]
        return [*range(step, last + 1, step)]


# The rungs of a search are at a ninth and a third of the rounds, as in the papers' tables. With an MLP, a
# configuration takes half the time that it takes with the digits' CNN.
SCHEDULE: dict[str, Any] = {
    "model": "mlp",
    "participation": 0.2,
    "rounds": 18,
    "epochs": 1,
    "batch_size": 16,
    "eval_every": 2,
}

WORKLOADS = {
    "digits": SearchWorkload("digits", "dirichlet:0.1,min=10,test=0.25,seed=7", 20, SCHEDULE | {"lr": 0.2}),
    "mnist": SearchWorkload(
        "mnist", "dirichlet_client:0.1,size=80,test_size=40,seed=7", 20, SCHEDULE | {"lr": 0.05}
    ),
}
