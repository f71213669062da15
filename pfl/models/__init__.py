"""The networks, one a file. `MODELS` maps a network's name to the function that builds it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pfl.registry import Registry

if TYPE_CHECKING:
    from pfl.models._network import Network

Shape = tuple[int, int, int]
"""Of an image: channels, height, width."""

MODELS: Registry[Callable[[Shape, int], Network]] = Registry("model", "pfl.models")
"""Each builder takes the images' shape and the number of classes."""
