"""One client per writer, for data sets with writers (Caldas et al., 2018, LEAF)."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from pfl.core.errors import InvalidInput
from pfl.data.dataset import Dataset
from pfl.data.partitions.by import By


@dataclasses.dataclass(frozen=True)
class Writer(By):
    """All writers with at least ``min`` samples or, if a number of clients is given, that many at random."""

    argument: ClassVar[str | None] = None
    commas_in_argument: ClassVar[bool] = False

    column: str = dataclasses.field(default="writer", init=False)

    def values(self, dataset: Dataset) -> np.ndarray:
        if self.column not in dataset.columns:
            accepted = "a data set with writers, such as femnist"
            raise InvalidInput("partition", f"writer of {dataset.name}", accepted)
        return super().values(dataset)
