"""Stages of a network, for methods that compare or mix it part by part."""

from __future__ import annotations

from itertools import groupby

from pfl.engine.types import Groups


def stages(groups: Groups, division: str) -> list[tuple[str, ...]]:
    """Names of the parameters of each stage; batch norm's statistics belong to none.

    Args:
        division: what counts as a stage: each stage that the network declares (``network``), all parameters
            together (``whole``), each ``layer``, or each ``tensor``.
    """
    if division == "whole":
        return [groups.trainable]
    if division == "network":
        return [groups.trained((stage,)) for stage in groups.stages]
    if division == "layer":
        layers = groupby(groups.trainable, lambda name: name.rpartition(".")[0])
        return [tuple(names) for _, names in layers]
    return [(name,) for name in groups.trainable]
