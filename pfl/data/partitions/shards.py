"""Equal numbers of shards of the label-sorted samples for every client (McMahan et al., AISTATS 2017)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pfl.data.rule import ClassesRule, Draw, PoolingRule


@dataclass(frozen=True)
class Shards(ClassesRule, PoolingRule):
    """Each client gets ``classes`` shards of equal size; every sample is used once.

    A client has about that many classes: a shard may contain two, and two shards may be of the same class.
    """

    def assign(self, draw: Draw) -> list[np.ndarray]:
        shards = np.array_split(np.concatenate(draw.shuffled_classes()), draw.clients * self.classes)
        dealt = draw.rng.permutation(len(shards)).reshape(draw.clients, self.classes)
        return [np.concatenate([shards[shard] for shard in mine]) for mine in dealt]
