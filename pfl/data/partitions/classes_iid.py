"""The same random classes for every client, in equal parts of the training set (SPFL and PLGA, "IID")."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pfl.data.partitions._class_parts import ClassParts
from pfl.data.rule import Draw


@dataclass(frozen=True)
class ClassesIid(ClassParts):
    """The classes are drawn once for all clients; the head still has a row for every class."""

    def draws(self, draw: Draw) -> np.ndarray:
        return np.tile(draw.rng.choice(draw.classes, self.classes, replace=False), (draw.clients, 1))
