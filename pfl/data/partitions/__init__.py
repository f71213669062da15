"""The partition rules, one per file. `PARTITIONS` maps a rule's name to its class."""

from __future__ import annotations

from pfl.core.registry import Registry, only_class
from pfl.data.rule import Rule

PARTITIONS: Registry[type[Rule]] = Registry("partition", "pfl.data.partitions", only_class(Rule))  # type: ignore[type-abstract]
