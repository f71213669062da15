"""Own random classes for every client, equally many samples of each (FedCAC, "pathological")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pfl.core.hyper import hyper
from pfl.data.partitions._own_draws import OwnDraws
from pfl.data.rule import check_classes


@dataclass(frozen=True)
class ClassesClient(OwnDraws):
    """Each client draws its classes independently; clients may share classes. All clients have one size."""

    argument: ClassVar[str | None] = "classes"

    classes: int = hyper(2, "number of classes per client", low=1)

    def check(self, clients: int | None, samples: int | None = None, classes: int | None = None) -> None:
        super().check(clients, samples, classes)
        check_classes(self.classes, classes)

    def proportions(self, clients: int, classes: int, rng: np.random.Generator) -> np.ndarray:
        chosen = np.argsort(rng.random((clients, classes)), axis=1)[:, : self.classes]
        shares = np.zeros((clients, classes))
        np.put_along_axis(shares, chosen, 1 / self.classes, axis=1)
        return shares
