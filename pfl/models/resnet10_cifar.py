"""ResNet-10 with a stem for small images: a 3x3 convolution, no pooling."""

from __future__ import annotations

from pfl.models import Shape
from pfl.models._network import Network
from pfl.models._resnet import resnet


def resnet10_cifar(shape: Shape, classes: int) -> Network:
    """`resnet10` with the CIFAR stem (He et al., 2016, section 4.2): 4,949,412 parameters on CIFAR-100."""
    return resnet(shape, classes, blocks=(1, 1, 1, 1), stem="cifar")
