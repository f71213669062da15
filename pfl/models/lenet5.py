"""LeNet-5: two 5x5 convolutions and three linear layers, without batch norm."""

from __future__ import annotations

from pfl.models import Shape
from pfl.models._convnet import ConvNet, Plan
from pfl.models._network import Network


def lenet5(shape: Shape, classes: int) -> Network:
    """LeNet-5 (LeCun et al., 1998) with ReLU and max pooling: 62,006 parameters on CIFAR-10.

    Raises:
        InvalidInput: the images are too small.
    """
    return ConvNet(Plan(shape, classes, channels=(6, 16), hidden=(120, 84)))
