"""The methods, one per file. `METHODS` maps a method's name to its class."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

from pfl.core.registry import Registry, only_class

if TYPE_CHECKING:
    from pfl.engine.method import Method


def _method_class(module: ModuleType) -> type[Method]:
    from pfl.engine.method import Method  # the registry imports this package

    return only_class(Method)(module)


METHODS: Registry[type[Method]] = Registry("method", "pfl.methods", _method_class)
