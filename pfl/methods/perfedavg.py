"""Per-FedAvg: a global model from which one step of local training leads far (MAML)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pfl.engine.client import Step
from pfl.engine.hyper import hyper
from pfl.engine.method import Method, Mixing, Phase
from pfl.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from pfl.engine.client import Batch, Client
    from pfl.engine.server import Server
