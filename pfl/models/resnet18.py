"""ResNet-18 with the ImageNet stem, from scratch (PFedCS)."""

from __future__ import annotations

from pfl.models import Shape
from pfl.models._network import Network
from pfl.models._resnet import resnet


def resnet18(shape: Shape, classes: int) -> Network:
    """ResNet-18 (He et al., 2016): 11,279,112 parameters on Tiny-ImageNet.

    PFedCS does not say whether its weights were pretrained; these are not.
    """
    return resnet(shape, classes, blocks=(2, 2, 2, 2))
