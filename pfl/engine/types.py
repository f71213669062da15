"""The types in a method's annotations, for an import that does not import torch (see `pfl.core.lazy`).

At run time they are `Any`: to call a class, import it from its own module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from pfl.core.config import Config
    from pfl.data.federation import Federation
    from pfl.engine.client import Batch, Client, Loss
    from pfl.engine.groups import Groups
    from pfl.engine.server import Server
    from pfl.engine.state import State
    from pfl.models._network import Network
else:
    Batch = Client = Config = Federation = Groups = Loss = Network = Server = State = Tensor = Any

__all__ = ["Batch", "Client", "Config", "Federation", "Groups", "Loss", "Network", "Server"]
__all__ += ["State", "Tensor"]
