"""The partition rules, one per file. `PARTITIONS` maps a rule's name to its class."""

from __future__ import annotations

from types import ModuleType

from pfl.data.rule import Rule
from pfl.registry import Registry


def _rule_class(module: ModuleType) -> type[Rule]:
    (rule,) = (
        member
        for member in vars(module).values()
        if isinstance(member, type) and issubclass(member, Rule) and member.__module__ == module.__name__
    )
    return rule


PARTITIONS: Registry[type[Rule]] = Registry("partition", "pfl.data.partitions", _rule_class)
