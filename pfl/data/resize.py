"""Resizing of images when they are decoded."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pfl.core.errors import InvalidInput

if TYPE_CHECKING:
    from PIL.Image import Image

OPTION, CROP = ",resize=", ",crop"
_FORM = re.compile(r"(\d+)(?:x(\d+))?(,crop)?")


@dataclass(frozen=True)
class Resize:
    """Target size of images, reached with a Lanczos filter.

    Attributes:
        height, width: size in pixels.
        crop: keep the aspect ratio, and crop the excess on two opposite sides.
    """

    height: int
    width: int
    crop: bool = False

    def image(self, image: Image) -> Image:
        """Return the resized image."""
        from PIL import ImageOps
        from PIL.Image import Resampling

        size = (self.width, self.height)
        if self.crop:
            return ImageOps.fit(image, size, Resampling.LANCZOS)
        return image.resize(size, Resampling.LANCZOS)

    def array(self, images: np.ndarray) -> np.ndarray:
        """Resize uint8 images (..., H, W) to (..., height, width)."""
        from PIL.Image import fromarray

        if images.shape[-2:] == (self.height, self.width):
            return images
        planes = images.reshape(-1, *images.shape[-2:])
        scaled = [np.asarray(self.image(fromarray(plane))) for plane in planes]
        return np.stack(scaled).reshape(*images.shape[:-2], self.height, self.width)


def resized(dataset: str) -> tuple[str, Resize | None]:
    """Split the resize option off a data set's name or path.

    >>> resized("photos.zip,resize=32x48,crop")
    ('photos.zip', Resize(height=32, width=48, crop=True))
    >>> resized("digits")
    ('digits', None)

    Raises:
        InvalidInput: the option has no valid size.
    """
    name, asked, size = dataset.partition(OPTION)
    if not asked and dataset.endswith(CROP):
        raise InvalidInput("dataset", dataset, f"{CROP} after {OPTION}HEIGHTxWIDTH")
    if not asked:
        return dataset, None
    match = _FORM.fullmatch(size)
    if not match or 0 in (height := int(match[1]), width := int(match[2] or match[1])):
        accepted = "HEIGHTxWIDTH in pixels, or one number for both; then ,crop to keep the aspect ratio"
        raise InvalidInput("resize", size, accepted)
    return name, Resize(height, width, crop=bool(match[3]))
