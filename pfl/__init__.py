"""A simulator of personalised federated learning: a federation of clients as tensors.

>>> import pfl
>>> run = pfl.simulate("pfedsim", "digits", "dirichlet:0.1", clients=5, rounds=2, epochs=1, progress=False)
>>> frame = run.to_frame("clients")
>>> len(frame)
5

Names are imported on first use, because importing torch takes seconds.
"""

from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from pfl.core import began  # noqa: F401 - must be imported first
from pfl.core.version import VERSION

if TYPE_CHECKING:
    from pfl.core.config import Config, Execution
    from pfl.data.arrays import from_arrays
    from pfl.data.dataset import load
    from pfl.data.partition import make_partition
    from pfl.data.samples import from_samples
    from pfl.data.table import from_table
    from pfl.engine.method import Method
    from pfl.engine.simulation import Stop
    from pfl.models._network import Network
    from pfl.run.api import simulate
    from pfl.run.runs import Runs
    from pfl.run.saved import load_models

__version__ = VERSION
__all__ = [
    "Config",
    "Execution",
    "Method",
    "Network",
    "Runs",
    "Stop",
    "from_arrays",
    "from_samples",
    "from_table",
    "load",
    "load_models",
    "make_partition",
    "simulate",
]

_MODULES = {
    "Config": "pfl.core.config",
    "Execution": "pfl.core.config",
    "Method": "pfl.engine.method",
    "Network": "pfl.models._network",
    "Runs": "pfl.run.runs",
    "Stop": "pfl.engine.simulation",
    "from_arrays": "pfl.data.arrays",
    "from_samples": "pfl.data.samples",
    "from_table": "pfl.data.table",
    "load": "pfl.data.dataset",
    "load_models": "pfl.run.saved",
    "make_partition": "pfl.data.partition",
    "simulate": "pfl.run.api",
}


def __dir__() -> list[str]:
    own = (name for name in globals() if name.startswith("__"))
    return sorted({*own, *__all__, *(point.name for point in entry_points(group="pfl.api"))})


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    for point in entry_points(group="pfl.api", name=name):  # packages can extend the API
        return point.load()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
