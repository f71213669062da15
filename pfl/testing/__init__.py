"""Conformance kits for your own components, and tests that edited code leaves results unchanged.

The kits `check_method`, `check_partition`, `check_dataset` and `check_network` apply the same rules as the
tests of the built-in components. All violated rules are reported at once, one line each:

>>> import pfl
>>> from pfl.testing import Violations, check_method
>>> class Biased(pfl.Method):
...     '''The mean of the uploads.'''
...     def warm_up(self, rounds):
...         return rounds / 2
>>> try:
...     check_method(Biased, rules=["docstring", "warm_up"])
... except Violations as violations:
...     print(violations)
biased violates 2 rules:
  docstring: no field Source, State, Evaluated, Differs from the authors
  warm_up: warm_up(1) is 0.5; expected an integer in [0, 1]
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pfl.testing.dataset_kit import check_dataset
    from pfl.testing.kit import Violations
    from pfl.testing.method_kit import check_method
    from pfl.testing.network_kit import check_network
    from pfl.testing.partition_kit import check_partition

__all__ = ["Violations", "check_dataset", "check_method", "check_network", "check_partition"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        kit = "kit" if name == "Violations" else f"{name.removeprefix('check_')}_kit"
        return getattr(import_module(f"{__name__}.{kit}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
