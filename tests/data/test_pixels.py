"""What of an image file is not what is stored in it: nothing, or the user is told."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import pfl
from pfl.core.errors import DataWarning, InvalidInput
from pfl.data.dataset import Dataset, load

ORIENTATION = 0x0112
RNG = np.random.default_rng(0)


@pytest.fixture
def folder(tmp_path) -> Path:
    """An image of each of two classes, a and b, that is white, 6 wide and 4 high."""
    for name in "ab":
        (tmp_path / "photos" / name).mkdir(parents=True)
        Image.new("RGB", (6, 4), "white").save(tmp_path / "photos" / name / "0.png")
    return tmp_path / "photos"


def with_image(folder: Path, image: Image.Image, name: str = "1.png", **options: object) -> Dataset:
    """The folder with one more image."""
    image.save(folder / "a" / name, **options)
    return load(str(folder), progress=False)


def half_transparent(mode: str) -> Image.Image:
    """Black, the left half transparent."""
    pixels = np.zeros((4, 6, 4), np.uint8)
    pixels[:, 3:, 3] = 255
    return Image.fromarray(pixels, "RGBA").convert(mode)


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_transparent_pixels_are_white_with_a_warning(mode, folder):
    with pytest.warns(DataWarning, match=r"composited on white: 1 image, the first 'a/1\.png'"):
        data = with_image(folder, half_transparent(mode))
    assert np.all(data.images[1, :, :, :3] == 255)
    assert np.all(data.images[1, :, :, 3:] == 0)


@pytest.mark.parametrize("mode", ["P", "L", "RGB"])
def test_a_transparent_colour_is_white_as_well(mode, folder):
    pixels = np.full((4, 6), 7, np.uint8)
    pixels[:, :3] = 0
    image = Image.fromarray(pixels).convert(mode)
    transparent = (0, 0, 0) if mode == "RGB" else 0
    with pytest.warns(DataWarning, match="composited on white"):
        data = with_image(folder, image, transparency=transparent)
    assert np.all(data.images[1, :, :, :3] == 255)
    assert np.all(data.images[1, :, :, 3:] < 255)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_an_opaque_alpha_channel_is_dropped_without_a_word(mode, folder):
    image = Image.fromarray(RNG.integers(0, 256, (4, 6, 3), np.uint8)).convert(
        "RGB" if mode == "RGBA" else "L"
    )
    data = with_image(folder, image.convert(mode))
    assert np.array_equal(data.images[1].transpose(1, 2, 0), np.asarray(image.convert("RGB")))
    assert data.notes == ()


@pytest.mark.parametrize("ending", ["jpg", "png", "webp", "tiff"])
@pytest.mark.parametrize("orientation", range(2, 9))
def test_an_image_is_turned_as_its_exif_orientation_says(orientation, ending, tmp_path):
    pixels = np.zeros((8, 8, 3), np.uint8)
    pixels[:4, :4] = 250  # the upper left quarter
    pixels[:4, 4:] = 120
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    (tmp_path / "a").mkdir()
    options = {"quality": 100} if ending in ("jpg", "webp") else {}
    Image.fromarray(pixels).save(tmp_path / f"a/0.{ending}", exif=exif, **options)
    with pytest.warns(DataWarning, match="rotated by the EXIF orientation: 1 image"):
        (image,) = load(str(tmp_path), progress=False).images
    quarters = {(y, x): int(image[0, 2 + 4 * y, 2 + 4 * x]) for y in (0, 1) for x in (0, 1)}
    bright = max(quarters, key=lambda place: quarters[place])
    middle = sorted(quarters, key=lambda place: quarters[place])[-2]
    assert (bright, middle) == {
        2: ((0, 1), (0, 0)),
        3: ((1, 1), (1, 0)),
        4: ((1, 0), (1, 1)),
        5: ((0, 0), (1, 0)),
        6: ((0, 1), (1, 1)),
        7: ((1, 1), (0, 1)),
        8: ((1, 0), (0, 0)),
    }[orientation]


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")  # Pillow's
@pytest.mark.parametrize("exif", [b"Exif\0\0damaged", b"Exif\0\0II*\0\xff\xff\xff\xff"])
def test_damaged_exif_data_turn_nothing(exif, folder):
    assert with_image(folder, Image.new("RGB", (6, 4)), "1.jpg", exif=exif).notes == ()


@pytest.mark.parametrize("ending", ["gif", "png", "webp", "tiff"])
def test_an_animation_is_refused_by_name(ending, folder):
    frames = [Image.new("RGB", (6, 4), colour) for colour in ("red", "blue")]
    with pytest.raises(InvalidInput, match=rf"a/1\.{ending} is not accepted; .*it is an animation"):
        with_image(folder, frames[0], f"1.{ending}", save_all=True, append_images=frames[1:])


def test_of_several_pictures_of_a_camera_the_first_is_read_with_a_warning(folder):
    frames = [Image.new("RGB", (6, 4), colour) for colour in ("black", "white")]
    with pytest.warns(DataWarning, match=r"the first of several pictures .*'a/1\.jpg'"):
        data = with_image(folder, frames[0], "1.jpg", format="MPO", save_all=True, append_images=frames[1:])
    assert data.images[1].max() < 10


def wide_png() -> bytes:
    """A PNG of 16 bits in three channels, which Pillow cannot write."""
    import struct
    import zlib

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    header = struct.pack(">IIBBBBB", 6, 4, 16, 2, 0, 0, 0)
    rows = b"".join(b"\0" + bytes(6 * 6) for _ in range(4))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        (chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b""))
    )


def test_colour_images_of_sixteen_bits_are_refused_by_name(folder):
    (folder / "a/1.png").write_bytes(wide_png())
    (folder / "a/2.ppm").write_bytes(b"P6 6 4 65535\n" + bytes(2 * 3 * 24))
    with pytest.raises(InvalidInput, match=r"a/1\.png .*more than 8 bits"):
        load(str(folder), progress=False)
    (folder / "a/1.png").unlink()
    with pytest.raises(InvalidInput, match=r"a/2\.ppm .*more than 8 bits"):
        load(str(folder), progress=False)


def test_a_picture_of_pillow_in_memory_is_treated_alike():
    buffer = io.BytesIO()
    half_transparent("RGBA").save(buffer, "PNG")
    with pytest.warns(DataWarning, match="composited on white: 1 image, the first 'sample 0'"):
        data = pfl.from_samples([(Image.open(buffer), 0)])
    assert data.images[0, 0, 0].tolist() == [255, 255, 255, 0, 0, 0]
    frames = [Image.new("RGB", (6, 4), colour) for colour in ("red", "blue")]
    frames[0].save(buffer := io.BytesIO(), "GIF", save_all=True, append_images=frames[1:])
    with pytest.raises(InvalidInput, match=r"sample 0 .*it is an animation"):
        pfl.from_samples([(Image.open(buffer), 0)])
    with pytest.raises(InvalidInput, match=r"sample 0 .*more than 8 bits"):
        pfl.from_samples([(Image.open(io.BytesIO(wide_png())), 0)])
