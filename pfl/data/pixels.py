"""Conversion of Pillow images to pixels: checks, conversions and notes on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pfl.data.resize import Resize

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
"""Pillow formats that are read, whatever the file extension."""

ROTATED = "rotated by the EXIF orientation"
ON_WHITE = "transparent pixels composited on white"
FIRST_PICTURE = "the first of several pictures in a file (MPO) read"
ROUNDED = "floats rounded to 8 bits"
AS_STORED = "read without EXIF orientation, transparency and later frames, as torchvision reads the data set"

_ORIENTATION = 0x0112
_UPRIGHT = 1


def check(image: Image, frames: bool = False) -> None:
    """Raise `ValueError` if an image has more than 8 bits per channel or, without ``frames``, is animated.

    Call it before the pixels are loaded: Pillow then reduces some 16-bit images to 8 bits.
    """
    if _has_wide_channels(image):
        raise ValueError("it has more than 8 bits per channel")
    if not frames and image.format != "MPO" and getattr(image, "is_animated", False):
        raise ValueError("it is an animation or has several pages; a still image is needed")


def is_grey(image: Image) -> bool:
    return image.mode in ("1", "L", "LA")


def converted(image: Image, mode: str, size: Resize | None = None) -> tuple[Image, list[str]]:
    """The image, upright, without transparency, in Pillow's ``mode`` and of ``size``; and the changes.

    The rotation follows the EXIF orientation. Transparent pixels are composited on white, as their own
    colour, often black, is arbitrary and never seen.
    """
    from PIL import Image, ImageOps

    changes = [FIRST_PICTURE] if image.format == "MPO" else []
    if _orientation(image) != _UPRIGHT:
        changes.append(ROTATED)
    image.load()  # Pillow itself rotates a TIFF
    if _orientation(image) != _UPRIGHT:
        image = ImageOps.exif_transpose(image)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        if image.getchannel("A").getextrema() != (255, 255):
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
            changes.append(ON_WHITE)
        image = image.convert("RGB")  # dropping an opaque alpha channel loses nothing
    return _fitted(image, mode, size), changes


def as_stored(image: Image, mode: str, size: Resize | None = None) -> tuple[Image, list[str]]:
    """Like `converted`, without rotation and compositing: the pixels of torchvision's loader.

    Published results on the registered data sets were computed with these pixels.
    """
    special = getattr(image, "is_animated", False) or image.has_transparency_data
    special = special or _orientation(image) != _UPRIGHT
    return _fitted(image, mode, size), [AS_STORED] if special else []


def _fitted(image: Image, mode: str, size: Resize | None) -> Image:
    pixels = image if image.mode == mode else image.convert(mode)
    return size.image(pixels) if size else pixels


def _orientation(image: Image) -> int:
    try:
        orientation = image.getexif().get(_ORIENTATION, _UPRIGHT)
    except Exception:  # damaged EXIF data raise many types of errors, and viewers ignore them
        return _UPRIGHT
    return orientation if orientation in range(2, 9) else _UPRIGHT


def _has_wide_channels(image: Image) -> bool:
    if image.mode[0] in "IF":
        return True
    if image.format in ("PNG", "TIFF"):
        return any(";16" in str(tile.args) for tile in image.tile)  # type: ignore[attr-defined]
    if image.format == "PPM":
        return any(isinstance(tile.args, tuple) and tile.args[1] > 255 for tile in image.tile)  # type: ignore[attr-defined]
    return False
