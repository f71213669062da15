"""LeNet-5 with batch norm after each convolution (pFedSim)."""

from __future__ import annotations

from pfl.models import Shape
from pfl.models._convnet import ConvNet, Plan
from pfl.models._network import Network


def lenet5_bn(shape: Shape, classes: int) -> Network:
    """LeNet-5 with batch norm (Tan et al., 2023, Table 5): 62,050 parameters on CIFAR-10.

    This follows the authors' code. In the printed table, the second convolution has 3 input channels although
    the first gives 6, a single pooling follows both convolutions, and no ReLU follows the linear layers.

    Raises:
        InvalidInput: the images are too small.
    """
    return ConvNet(Plan(shape, classes, channels=(6, 16), hidden=(120, 84), batch_norm=True))
