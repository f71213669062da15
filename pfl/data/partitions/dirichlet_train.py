"""Dirichlet shares of every class over the clients, on the official training set only."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pfl.data.partitions.dirichlet import Dirichlet
from pfl.data.rule import Draw


@dataclass(frozen=True)
class DirichletTrain(Dirichlet):
    """Like ``dirichlet``, but without the official test images: clients test on part of their data."""

    pool: ClassVar[str] = "official training set"

    def assign(self, draw: Draw) -> list[np.ndarray]:
        data = draw.dataset
        labels = data.labels[: data.n_train]
        return super().assign(dataclasses.replace(draw, dataset=dataclasses.replace(data, labels=labels)))
