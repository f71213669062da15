"""LeNet-4: two 5x5 convolutions and two linear layers (FedSimSup)."""

from __future__ import annotations

from pfl.models import Shape
from pfl.models._convnet import ConvNet, Plan
from pfl.models._network import Network


def lenet4(shape: Shape, classes: int) -> Network:
    """FedSimSup's network of two convolutional and two linear layers: 52,202 parameters on CIFAR-10.

    The paper calls it LeNet-5 and gives no widths. These are LeNet-5's; the layers, and hence the name, are
    those of LeNet-4 (LeCun et al., 1995).

    Raises:
        InvalidInput: the images are too small.
    """
    return ConvNet(Plan(shape, classes, channels=(6, 16), hidden=(120,)))
