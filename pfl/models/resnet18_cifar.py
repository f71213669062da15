"""ResNet-18 with a stem for small images: a 3x3 convolution, no pooling."""

from __future__ import annotations

from pfl.models import Shape
from pfl.models._network import Network
from pfl.models._resnet import resnet


def resnet18_cifar(shape: Shape, classes: int) -> Network:
    """`resnet18` with the CIFAR stem (He et al., 2016, section 4.2): 11,173,962 parameters on CIFAR-10."""
    return resnet(shape, classes, blocks=(2, 2, 2, 2), stem="cifar")
