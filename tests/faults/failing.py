"""Methods whose trials fail; `faults.fail_trials` installs them as a package of the user's own."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pfl.core.lazy import torch
from pfl.engine.method import Method

if TYPE_CHECKING:
    from pfl.engine.mixing import Mixing
    from pfl.engine.server import Server


FEW = 200  # training samples of all clients together; a dry run has fewer


@dataclass(frozen=True)
class Raises(Method):
    """Stumbles over a mistake in its own code."""

    def dispatch(self, server: Server) -> Mixing:
        raise RuntimeError("a mistake")


@dataclass(frozen=True)
class Recovers(Method):
    """Fails as long as there is a file ``broken`` in the project."""

    def dispatch(self, server: Server) -> Mixing:
        if server.sizes.sum() >= FEW and Path("broken").exists():
            raise RuntimeError("broken")
        return {}


@dataclass(frozen=True)
class Leaves(Method):
    """Ends its process as scripts do."""

    def dispatch(self, server: Server) -> Mixing:
        if server.sizes.sum() >= FEW:
            sys.exit(3)
        return {}


@dataclass(frozen=True)
class Exhausts(Method):
    """Asks for more memory than any machine has."""

    def dispatch(self, server: Server) -> Mixing:
        torch.empty(2**60)
        return {}


@dataclass(frozen=True)
class Dies(Method):
    """Loses its process on more than a few samples, as the kernel does it when memory is short."""

    def dispatch(self, server: Server) -> Mixing:
        if server.sizes.sum() < FEW:
            return {}
        os.kill(os.getpid(), signal.SIGKILL)
        return {}
