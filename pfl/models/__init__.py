"""The networks, one per file. `MODELS` maps a network's name to the function that builds it."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from pfl.core.errors import InvalidInput
from pfl.core.registry import Registry
from pfl.core.text import first_line
from pfl.data.shape import Shape, TokenShape, described

if TYPE_CHECKING:
    from torch import nn

    from pfl.models._network import Network

__all__ = ["MODELS", "Shape", "build", "fitting", "is_image", "unfit", "weights_of"]

MODELS: Registry[Callable[[Shape, int], nn.Module]] = Registry("model", "pfl.models")
"""Each function takes the shape of a sample and the number of classes."""


def build(model: str, shape: Shape, classes: int) -> Network:
    """The network called ``model``.

    Raises:
        InvalidInput: it cannot be built, or clients with such a network cannot be simulated.
    """
    from pfl.models._adapted import adapted

    builder = MODELS[model]
    try:
        module = builder(shape, classes)
    except Exception as error:
        if not is_image(shape) and (not isinstance(error, InvalidInput) or error.parameter == "images"):
            raise unfit(model, shape, error) from None
        if not isinstance(error, TypeError):
            raise
        accepted = f"a function of the images' shape and the number of classes ({error})"
        raise InvalidInput("model", model, accepted) from None
    return adapted(model, module, shape, classes)


def fitting(shape: Shape) -> str:
    """The default network for samples of this shape."""
    if isinstance(shape, TokenShape):
        return "text_cnn"
    if not is_image(shape):
        return "cnn1d" if len(shape) == 2 else "mlp"
    return "cnn_digits" if min(shape[1:]) < 16 else "lenet5_bn"


def unfit(model: str, shape: Shape, error: Exception) -> InvalidInput:
    """The error for a network that does not take samples of this shape."""
    if is_image(shape):
        accepted = f"a network of images of {described(shape)}"
    else:
        accepted = f"a network of samples of {described(shape)}, such as {fitting(shape)}"
    return InvalidInput("model", model, f"{accepted} ({first_line(error) or type(error).__name__})")


def is_image(shape: Shape) -> bool:
    """Whether samples of this shape are images, 8-bit or floating-point."""
    return len(shape) == 3 and not isinstance(shape, TokenShape)


def weights_of(model: str) -> str | None:
    """The file of pretrained weights that a network starts from, by its name; None if it starts from scratch.

    The module of a network that can start from such a file has a function ``weights_file`` for its path. A
    name that does not end with a digest, as those of torch hub do, is followed by that of the content.
    """
    if not MODELS.defines(model, "weights_file"):  # without importing torch
        return None
    file: Path = sys.modules[MODELS[model].__module__].weights_file()
    if not file.exists():
        return None
    if re.search(r"-[0-9a-f]{8,}$", file.stem):
        return file.name
    stat = file.stat()
    return f"{file.name} {_digest(file, stat.st_ino, stat.st_ctime_ns, stat.st_size)}"


@cache
def _digest(file: Path, *_: int) -> str:
    """The digest of a file's content, given its stamp."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()[:16]
