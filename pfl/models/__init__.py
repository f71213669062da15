"""The networks, one a file. `MODELS` maps a network's name to the function that builds it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from pfl.registry import Registry

if TYPE_CHECKING:
    from pfl.models._network import Network

Shape = tuple[int, int, int]
"""Of an image: channels, height, width."""

MODELS: Registry[Callable[[Shape, int], Network]] = Registry("model", "pfl.models")
"""Each builder takes the images' shape and the number of classes."""


def fitting(shape: Shape) -> str:
    """The network for images of this shape where none is named."""
    return "cnn_digits" if shape[1] < 16 else "lenet5_bn"


def weights_of(model: str) -> str | None:
    """The file of pretrained weights that a network would start from here, or None if it starts from scratch.

    A network that can start from such a file has a function ``weights_file`` beside it, which gives the path.
    """
    find = getattr(sys.modules[MODELS[model].__module__], "weights_file", None)
    return find().name if find and find().exists() else None
