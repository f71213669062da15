"""MobileNetV2, pretrained on ImageNet if torchvision's weights are available (pFedSim)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from pfl.core.errors import InvalidInput

if TYPE_CHECKING:
    from torch import nn

    from pfl.models import Shape
    from pfl.models._network import Network

WEIGHTS = "mobilenet_v2-7ebf99e0.pth"
"""torchvision's default weights; the name ends with the first digits of the file's SHA-256."""


def weights_file() -> Path:
    """Path at which torch hub stores the weights; the file may not exist."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache"))
    home = Path(os.environ.get("TORCH_HOME", cache / "torch"))
    return home.expanduser() / "hub" / "checkpoints" / WEIGHTS


def mobilenet_v2(shape: Shape, classes: int) -> Network:
    """torchvision's MobileNetV2 (Sandler et al., 2018): 2,480,072 parameters on Tiny-ImageNet.

    pFedSim starts from ImageNet weights. So does this network if torch hub's checkpoint folder, where
    torchvision keeps it, has the file `WEIGHTS`; ``pretrained`` is then true. Nothing is downloaded.

    Raises:
        InvalidInput: the images do not have three channels, or the file of weights is damaged.
    """
    from collections import OrderedDict

    from torch import nn
    from torchvision.models import MobileNetV2

    from pfl.models._layers import BatchNorm2d, ChannelsLast, Dropout
    from pfl.models._network import Network

    if shape[0] != 3:
        raise InvalidInput("images", "x".join(map(str, shape)), "3 channels for mobilenet_v2")
    body = MobileNetV2(norm_layer=BatchNorm2d)
    extractor = nn.Sequential(
        OrderedDict(
            layout=ChannelsLast(),
            features=body.features,
            avgpool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            dropout=Dropout(0.2),
        )
    )
    network = Network(extractor, nn.Linear(body.last_channel, classes))
    network.pretrained = weights_file().exists()
    if network.pretrained:
        _load(body.features, weights_file())
    return network


def _load(features: nn.Module, path: Path) -> None:
    """Load the weights of ``features`` from torchvision's file."""
    import hashlib

    import torch

    digest = path.stem.rpartition("-")[2]
    if not hashlib.sha256(path.read_bytes()).hexdigest().startswith(digest):
        accepted = f"a file whose SHA-256 begins with {digest} (without it training starts from scratch)"
        raise InvalidInput("pretrained weights", str(path), accepted)
    state = torch.load(path, map_location="cpu", weights_only=True)
    wanted = features.state_dict().keys()
    features.load_state_dict({name: state[f"features.{name}"] for name in wanted})
