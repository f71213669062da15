"""The four-layer CNN of PFedCS: 5x5 convolutions of 32 and 64 channels, one hidden layer of 512."""

from __future__ import annotations

from pfl.models import Shape
from pfl.models._convnet import ConvNet, Plan
from pfl.models._network import Network


def cnn4(shape: Shape, classes: int) -> Network:
    """PFedCS's CNN of two convolutional and two linear layers: 878,538 parameters on CIFAR-10.

    The paper gives no widths. These are PFLlib's, without padding. With the padding of McMahan et al. (2017),
    there would be 2,156,490 parameters.

    Raises:
        InvalidInput: the images are too small.
    """
    return ConvNet(Plan(shape, classes, channels=(32, 64), hidden=(512,)))
