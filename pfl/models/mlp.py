"""A multilayer perceptron with two hidden layers of 64, for feature vectors."""

from __future__ import annotations

import math
from collections import OrderedDict

from torch import nn

from pfl.models import Shape
from pfl.models._layers import Linear
from pfl.models._network import Network

WIDTH = 64  # of the hidden layers


def mlp(shape: Shape, classes: int) -> Network:
    """Three linear layers with ReLU: 6,146 parameters on 28 features and 2 classes. Images and series are
    flattened."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    for name, width in (("fc1", math.prod(shape)), ("fc2", WIDTH)):
        layers |= {name: Linear(width, WIDTH), f"{name}_relu": nn.ReLU()}
    return Network(nn.Sequential(layers), Linear(WIDTH, classes))
