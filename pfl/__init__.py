"""A simulator of personalised federated learning: a federation of clients as tensors.

>>> data = pfl.load("digits")
>>> partition = pfl.make_partition("dirichlet:0.1", data, 20)
>>> (result,) = pfl.simulate(pfl.Config(method="fedper"), data, partition)

Names are imported at their first use, since importing torch takes seconds.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pfl.config import Config, Execution
    from pfl.data.dataset import load
    from pfl.data.partition import make_partition
    from pfl.engine.method import Method
    from pfl.simulation import simulate

__version__ = "0.1.0"
__all__ = ["Config", "Execution", "Method", "load", "make_partition", "simulate"]

_MODULES = {
    "Config": "pfl.config",
    "Execution": "pfl.config",
    "Method": "pfl.engine.method",
    "load": "pfl.data.dataset",
    "make_partition": "pfl.data.partition",
    "simulate": "pfl.simulation",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
