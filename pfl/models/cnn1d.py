"""A 1-D CNN for series: two convolutions of 32 and 64 channels with batch norm, averaged over time."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from pfl.core.errors import InvalidInput
from pfl.models import Shape
from pfl.models._layers import BatchNorm1d, Linear
from pfl.models._network import Network

KERNEL = 5  # time steps of each convolution


def cnn1d(shape: Shape, classes: int) -> Network:
    """Convolution, batch norm, ReLU and max pooling of 2 steps, twice: 11,943 parameters on 6 channels and 7
    classes, whatever the number of time steps.

    Raises:
        InvalidInput: the samples are not series of at least 4 time steps.
    """
    if len(shape) != 2 or shape[1] < 4:
        raise InvalidInput(
            "samples", "x".join(map(str, shape)), "series (channels, time), at least 4 steps long"
        )
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for i, (before, after) in enumerate(((shape[0], 32), (32, 64)), start=1):
        layers |= {
            f"conv{i}": nn.Conv1d(before, after, KERNEL, padding=KERNEL // 2),
            f"bn{i}": BatchNorm1d(after),
            f"relu{i}": nn.ReLU(),
            f"pool{i}": nn.MaxPool1d(2),
        }
    layers |= {"average": nn.AdaptiveAvgPool1d(1), "flatten": nn.Flatten()}
    return Network(nn.Sequential(layers), Linear(64, classes))
