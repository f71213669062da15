"""ResNet-18 with the ImageNet stem, from scratch (PFedCS)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pfl.models import Shape
    from pfl.models._network import Network


def resnet18(shape: Shape, classes: int) -> Network:
    """ResNet-18 (He et al., 2016): 11,279,112 parameters on Tiny-ImageNet.

    PFedCS does not say whether its weights were pretrained; these are not.
    """
    from pfl.models._resnet import resnet

    return resnet(shape, classes, blocks=(2, 2, 2, 2))
