"""One domain per client, and equally many clients per domain (Tan et al., 2023, pFedSim)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pfl.core.errors import InvalidInput
from pfl.data.dataset import Dataset
from pfl.data.rule import Draw, PoolingRule

_CLIENTS_OF_A_DOMAIN = 20


@dataclass(frozen=True)
class Domain(PoolingRule):
    """Each domain is shuffled and divided equally among its clients (default: 20); the last gets the rest.

    Clients are sorted by domain. Within a domain, labels are IID.
    """

    clients_from_data: ClassVar[bool] = True

    def default_clients(self, dataset: Dataset) -> int:
        return _CLIENTS_OF_A_DOMAIN * len(np.unique(_domains(dataset)))

    def assign(self, draw: Draw) -> list[np.ndarray]:
        domains = _domains(draw.dataset)
        names = np.unique(domains)
        if draw.clients % len(names):
            raise InvalidInput("clients", draw.clients, f"a multiple of {len(names)}, the number of domains")
        each = draw.clients // len(names)
        parts = []
        for name in names:
            members = draw.rng.permutation(np.flatnonzero(domains == name))
            parts += np.split(members, np.arange(1, each) * (len(members) // each))
        return parts


def _domains(dataset: Dataset) -> np.ndarray:
    """The domain of each sample, (N,)."""
    if "domain" not in dataset.columns:
        accepted = "a data set with domains, such as domainnet"
        raise InvalidInput("partition", f"domain of {dataset.name}", accepted)
    return dataset.columns["domain"]
