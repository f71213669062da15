"""The methods, one per file. `METHODS` maps a method's name to its class."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

from pfl.registry import Registry

if TYPE_CHECKING:
    from pfl.engine.method import Method


def _method_class(module: ModuleType) -> type[Method]:
    from pfl.engine.method import Method

    (method,) = (
        member
        for member in vars(module).values()
        if isinstance(member, type) and issubclass(member, Method) and member.__module__ == module.__name__
    )
    return method


METHODS: Registry[type[Method]] = Registry("method", "pfl.methods", _method_class)
