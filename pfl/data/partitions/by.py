"""One client per value of a column, such as a subject, a school or a hospital: natural clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from pfl.core.errors import InvalidInput
from pfl.core.hyper import hyper
from pfl.core.text import listed
from pfl.data.rule import Draw, PoolingRule, grouped, text_option

if TYPE_CHECKING:
    from pfl.data.dataset import Dataset


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
        return len(grouped(self._values(dataset), self.min, "value"))

    def assign(self, draw: Draw) -> list[np.ndarray]:
        values = self._values(draw.dataset)
        groups = grouped(values, self.min, "value")
        if draw.clients > len(groups):
            accepted = f"at most {len(groups)}, the values of {self.column} with at least {self.min} samples"
            raise InvalidInput("clients", draw.clients, accepted)
        parts = [groups[i] for i in np.sort(draw.rng.choice(len(groups), draw.clients, replace=False))]
        draw.notes.append(f"clients: {listed([str(values[part[0]]) for part in parts])}")
        return parts

    def _values(self, dataset: Dataset) -> np.ndarray:
        columns = dict(dataset.columns)
        if dataset.writer is not None:
            columns["writer"] = dataset.writer
        if dataset.domain is not None:
            columns["domain"] = np.array(dataset.domains)[dataset.domain]
        if self.column not in columns:
            known = f"by:COLUMN with one of {listed(list(columns))}" if columns else "data with columns"
            raise InvalidInput("partition", f"by:{self.column} of {dataset.name}", known)
        return columns[self.column]
