"""The networks, one per file. `MODELS` maps a network's name to the function that builds it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from pfl.core.errors import InvalidInput
from pfl.core.registry import Registry

if TYPE_CHECKING:
    from torch import nn

    from pfl.models._network import Network

Shape = tuple[int, int, int]
"""Shape of an image: channels, height, width."""

MODELS: Registry[Callable[[Shape, int], nn.Module]] = Registry("model", "pfl.models")
"""Each builder takes the images' shape and the number of classes."""


def build(model: str, shape: Shape, classes: int) -> Network:
    """The network called ``model``.

    Raises:
        InvalidInput: it cannot be built, or the clients of such a network cannot be simulated.
    """
    from pfl.models._adapted import adapted

    builder = MODELS[model]
    try:
        module = builder(shape, classes)
    except TypeError as error:
        accepted = f"a function of the images' shape and the number of classes ({error})"
        raise InvalidInput("model", model, accepted) from None
    return adapted(model, module, shape, classes)


def fitting(shape: Shape) -> str:
    """The default network for images of this shape."""
    return "cnn_digits" if min(shape[1:]) < 16 else "lenet5_bn"


def weights_of(model: str) -> str | None:
    """The file of pretrained weights that a network would start from here, or None if it starts from scratch.

    A network that can start from such a file has a function ``weights_file`` beside it, which gives the path.
    """
    find = getattr(sys.modules[MODELS[model].__module__], "weights_file", None)
    return find().name if find and find().exists() else None
