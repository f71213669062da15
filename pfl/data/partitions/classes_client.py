"""Independent random classes for every client, with equal numbers of each (FedCAC, "pathological")."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pfl.data.partitions._own_draws import OwnDraws
from pfl.data.rule import ClassesRule


@dataclass(frozen=True)
class ClassesClient(ClassesRule, OwnDraws):
    """Each client draws its classes independently; clients may share classes. All have the same size."""

    def proportions(self, clients: int, classes: int, rng: np.random.Generator) -> np.ndarray:
        chosen = np.argsort(rng.random((clients, classes)), axis=1)[:, : self.classes]
        shares = np.zeros((clients, classes))
        np.put_along_axis(shares, chosen, 1 / self.classes, axis=1)
        return shares
