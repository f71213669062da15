"""One client per writer, for data sets with writers (Caldas et al., 2018, LEAF)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from pfl.core.errors import InvalidInput
from pfl.core.hyper import hyper
from pfl.data.rule import Draw, PoolingRule, grouped

if TYPE_CHECKING:
    from pfl.data.dataset import Dataset


@dataclass(frozen=True)
class Writer(PoolingRule):
    """All writers with at least ``min`` samples or, if a number of clients is given, that many at random."""

    clients_from_data: ClassVar[bool] = True

    min: int = hyper(2, "minimum number of samples of a writer", low=2)

    def default_clients(self, dataset: Dataset) -> int:
        return len(self._samples(dataset))

    def assign(self, draw: Draw) -> list[np.ndarray]:
        samples = self._samples(draw.dataset)
        if draw.clients > len(samples):
            accepted = f"at most {len(samples)}, the writers with at least {self.min} samples"
            raise InvalidInput("clients", draw.clients, accepted)
        draw.notes.append(f"writers with at least {self.min} samples: {len(samples)}")
        return [samples[i] for i in np.sort(draw.rng.choice(len(samples), draw.clients, replace=False))]

    def _samples(self, dataset: Dataset) -> list[np.ndarray]:
        """The indices of each writer with at least ``min`` samples."""
        if dataset.writer is None:
            raise InvalidInput(
                "partition", f"writer of {dataset.name}", "a data set with writers, such as femnist"
            )
        return grouped(dataset.writer, self.min, "writer")
