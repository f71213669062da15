"""One client per value of a column, such as a subject, a school or a hospital: natural clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pfl.core.errors import InvalidInput
from pfl.core.hyper import hyper
from pfl.core.text import listed
from pfl.data.dataset import Dataset
from pfl.data.rule import Draw, PoolingRule, text_option


@dataclass(frozen=True)
class By(PoolingRule):
    """All values with at least ``min`` samples or, if a number of clients is given, that many at random.

    Clients are sorted by value, numerically or alphabetically.
    """

    argument: ClassVar[str | None] = "column"
    commas_in_argument: ClassVar[bool] = True
    clients_from_data: ClassVar[bool] = True

    column: str = text_option("", "a column of the data set")
    min: int = hyper(2, "minimum number of samples of a value", low=2)

    def default_clients(self, dataset: Dataset) -> int:
        return len(self._grouped(self.values(dataset)))

    def assign(self, draw: Draw) -> list[np.ndarray]:
        values = self.values(draw.dataset)
        groups = self._grouped(values)
        if draw.clients > len(groups):
            accepted = f"at most {len(groups)}, the values of {self.column} with at least {self.min} samples"
            raise InvalidInput("clients", draw.clients, accepted)
        parts = [groups[i] for i in np.sort(draw.rng.choice(len(groups), draw.clients, replace=False))]
        draw.notes.append(f"clients: {listed([str(values[part[0]]) for part in parts])}")
        return parts

    def values(self, dataset: Dataset) -> np.ndarray:
        """The value of each sample, (N,).

        Raises:
            InvalidInput: the data set does not have the column.
        """
        if self.column not in dataset.columns:
            columns = list(dataset.columns)
            known = f"by:COLUMN with one of {listed(columns)}" if columns else "data with columns"
            raise InvalidInput("partition", f"by:{self.column} of {dataset.name}", known)
        return dataset.columns[self.column]

    def _grouped(self, values: np.ndarray) -> list[np.ndarray]:
        """The sample indices of each value that has at least ``min`` samples, sorted by value.

        Raises:
            InvalidInput: no value has that many.
        """
        _, counts = np.unique(values, return_counts=True)
        if counts.max() < self.min:
            raise InvalidInput("min", self.min, f"at most {counts.max()}, the samples of the largest value")
        groups = np.split(np.argsort(values, kind="stable"), np.cumsum(counts)[:-1])
        return [indices for indices in groups if len(indices) >= self.min]
