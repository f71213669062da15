"""A perceptron with one hidden layer."""

from __future__ import annotations

from torch import nn


def tiny_mlp(shape, classes):
    channels, height, width = shape
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(channels * height * width, 32),
        nn.ReLU(),
        nn.Linear(32, classes),
    )
