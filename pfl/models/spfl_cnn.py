"""The CNN of SPFL and PLGA: 5x5 convolutions of 20 and 50 channels, one hidden layer of 512."""

from __future__ import annotations

from pfl.models import Shape
from pfl.models._convnet import ConvNet, Plan
from pfl.models._network import Network


def spfl_cnn(shape: Shape, classes: int) -> Network:
    """SPFL's and PLGA's CNN (their Table 4): 672,212 parameters on CIFAR-10, 440,812 on MNIST.

    The table states no activation; ReLU is from the authors' code, which has 500 hidden units, not 512.

    Raises:
        InvalidInput: the images are too small.
    """
    return ConvNet(Plan(shape, classes, channels=(20, 50), hidden=(512,)))
