"""FedBN: FedAvg with personal batch norm."""

from __future__ import annotations

from dataclasses import dataclass

from pfl.core.lazy import torch
from pfl.engine.method import Method
from pfl.engine.mixing import Identity, Mixing
from pfl.engine.types import Config, Server


@dataclass(frozen=True)
class FedBN(Method):
    """Size-weighted averaging of everything but batch norm, which never leaves the client.

    Batch norm here means its weights and its running statistics.

    Source: Li et al., ICLR 2021, https://arxiv.org/abs/2102.07623, Algorithm 1.
    State: only the personal batch norm.
    Evaluated: the global weights with the client's own batch norm, without fine-tuning. A client that never
        took part has the initial batch norm.
    Differs from the authors: the average is by training samples (theirs: uniform).
    """

    family = "personal layers"

    def aggregate(self, server: Server) -> Mixing:
        return {"all": server.average(), "bn_affine": Identity(), "bn_stats": Identity()}

    def warnings(self, config: Config) -> tuple[str, ...]:
        if _normalises(config.model):
            return ()
        return (f"fedbn: {config.model} has no batch norm, so this is FedAvg",)


def _normalises(model: str) -> bool:
    """Whether the network called ``model`` has batch norm, or is not one of images.

    It is built on the meta device, where nothing is computed.
    """
    from torch.nn.modules.batchnorm import _BatchNorm

    from pfl.models import MODELS

    try:
        with torch.device("meta"):
            network = MODELS[model]((3, 64, 64), 2)
    except Exception:  # whatever a builder raises for samples of another shape
        return True
    return any(isinstance(module, _BatchNorm) for module in network.modules())
