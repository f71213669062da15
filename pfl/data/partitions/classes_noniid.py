"""Independent random classes for every client, in equal parts of the training set (SPFL, PLGA, "non-IID")."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pfl.data.partitions._class_parts import ClassParts
from pfl.data.rule import Draw


@dataclass(frozen=True)
class ClassesNonIid(ClassParts):
    """Every client draws its classes independently, without replacement."""

    def draws(self, draw: Draw) -> np.ndarray:
        return np.stack(
            [draw.rng.choice(draw.classes, self.classes, replace=False) for _ in range(draw.clients)]
        )
