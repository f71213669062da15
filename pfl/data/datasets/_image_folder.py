"""Reader of image folders, zips and tars: train/<class>/* and test/<class>/*, or <class>/* alone."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pfl.data.archive import Tree, open_tree
from pfl.data.cache import ArrayWriter, Content
from pfl.data.resize import Resize
from pfl.errors import InvalidInput

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".pgm", ".ppm", ".tif", ".tiff", ".webp"})
_BLOCK = 1024
_THREADS = 4
_THREADS_PAY = 3 * 128 * 128
"""Minimum number of values of an image for decoding in threads; below, contention for the GIL costs more."""


class Labelled(NamedTuple):
    """The name of an image file in a tree, and its class."""

    name: str
    label: int


def read(files: Sequence[Path], out: ArrayWriter) -> Content:
    """Append the training images, then the test images; in greyscale if all images are grey.

    If the file names of a split are consecutive numbers, for example the official indices of CIFAR-10, it is
    in the order of these numbers. Otherwise it is sorted by class and file name.
    """
    (path,) = files
    with open_tree(path) as tree:
        train, test, classes = _undivided(tree) or find_images(tree)
        chosen = {image.name for image in train + test}
        depth = min(name.count("/") for name in chosen)
        for name in tree.names:  # such as val/<class>/1.png
            if _is_image(name) and name.count("/") >= depth and name not in chosen:
                raise InvalidInput("dataset", str(path), f"images in train/ and test/ alone, not {name}")
        images = _numbered(train) + _numbered(test)
        out.expect(len(images))
        append_images(
            tree, images, out, "RGB" if any(_is_colour(tree, image.name) for image in images) else "L"
        )
    formats = {PurePosixPath(image.name).suffix[1:].lower() for image in images}
    return Content(classes, n_train=len(train), formats=tuple(sorted(formats)))


def _undivided(tree: Tree) -> tuple[list[Labelled], list[Labelled], tuple[str, ...]] | None:
    """The images of a tree with a folder per class, without train and test; all are training images."""
    paths = [PurePosixPath(name) for name in tree.names]
    files = sorted(path for path in paths if _is_image(str(path)))
    if not files or {len(path.parts) for path in files} not in ({2}, {3}):
        return None
    if len({path.parts[:-2] for path in files}) > 1:  # more than one wrapping folder
        return None
    classes = tuple(sorted({path.parts[-2] for path in files}))
    if set(classes) <= {"train", "test"} or {"train", "test"} & set(files[0].parts[:-2]):
        return None
    return [Labelled(str(path), classes.index(path.parts[-2])) for path in files], [], classes


def _is_image(name: str) -> bool:
    path = PurePosixPath(name)
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def _numbered(images: list[Labelled]) -> list[Labelled]:
    """The images of a split in the order of their files' numbers if these are consecutive, else unchanged."""
    stems = [PurePosixPath(image.name).stem for image in images]
    if not stems or not all(stem.isdecimal() for stem in stems):
        return images
    by_number = dict(sorted(zip(map(int, stems), images, strict=True)))
    consecutive = len(by_number) == len(images) == max(by_number) - min(by_number) + 1
    return list(by_number.values()) if consecutive else images


def find_images(
    tree: Tree, train: Sequence[str] = ("train",), test: Sequence[str] = ("test",)
) -> tuple[list[Labelled], list[Labelled], tuple[str, ...]]:
    """The training images, test images and classes of a tree; splits are sorted by class and file name.

    Args:
        train, test: the folders of each split, in the order in which their images are pooled.

    Raises:
        InvalidInput: there is no train folder, it has no classes, or the test folder has other classes.
    """
    by_split: dict[str, list[tuple[str, str]]] = {}
    depth = 0 if any(name.startswith(f"{train[0]}/") for name in tree.names) else 1  # one wrapping folder
    for name in tree.names:
        parts = PurePosixPath(name).parts[depth:]
        if len(parts) >= 3 and _is_image(name):
            by_split.setdefault(parts[0], []).append((parts[1], name))
    if train[0] not in by_split:
        raise InvalidInput(
            "dataset", str(tree.path), f"image files in {train[0]}/<class>/ and test/<class>/, or in <class>/"
        )
    classes = tuple(sorted({label for label, _ in by_split[train[0]]}))
    index = {label: i for i, label in enumerate(classes)}
    for split in (*train, *test):
        for label, name in by_split.get(split, []):
            if label not in index:
                accepted = f"only classes of {train[0]}/ in {split}/, not {label!r} ({name})"
                raise InvalidInput("dataset", str(tree.path), accepted)

    def of(splits: Sequence[str]) -> list[Labelled]:
        return [Labelled(name, index[c]) for split in splits for c, name in sorted(by_split.get(split, []))]

    return of(train), of(test), classes


def append_images(
    tree: Tree,
    images: Sequence[Labelled],
    out: ArrayWriter,
    mode: str,
    size: Resize | None = None,
    **columns: np.ndarray,
) -> None:
    """Decode the images and append them with their labels.

    Args:
        mode: mode of Pillow: RGB for three channels or L for one.
        size: target size if ``out`` has none; None means that all images already have one size.
        columns: ``writer`` or ``domain``, one per image, if there are any.

    Raises:
        InvalidInput: an image cannot be decoded, or its size differs from the first.
    """
    size = out.size or size
    first = decode(tree, images[0].name, mode, size)
    with ThreadPoolExecutor(_THREADS) as pool:
        run = pool.map if size or first.size >= _THREADS_PAY else map
        for start in range(0, len(images), _BLOCK):
            block = images[start : start + _BLOCK]
            arrays = list(run(lambda image: decode(tree, image.name, mode, size), block))
            for image, array in zip(block, arrays, strict=True):
                if array.shape != first.shape:
                    one, other = (f"{a.shape[1]}x{a.shape[0]}" for a in (first, array))
                    accepted = (
                        f"images of one size; {images[0].name} is {one} and {image.name} is {other} "
                        "(,resize=HEIGHTxWIDTH after the path resizes them)"
                    )
                    raise InvalidInput("dataset", str(tree.path), accepted)
            out.append(
                np.stack(arrays).transpose(0, 3, 1, 2),
                labels=np.array([image.label for image in block]),
                **{name: values[start : start + _BLOCK] for name, values in columns.items()},
            )


def decode(tree: Tree, name: str, mode: str, size: Resize | None = None) -> np.ndarray:
    """One image as uint8 (H, W, C), in Pillow's ``mode`` L or RGB.

    Raises:
        InvalidInput: it cannot be decoded.
    """
    with _opened(tree, name) as image:
        pixels = image if image.mode == mode else image.convert(mode)
        array = np.asarray(size.image(pixels) if size else pixels)
    return array[:, :, None] if mode == "L" else array


def _is_colour(tree: Tree, name: str) -> bool:
    with _opened(tree, name) as image:
        return not is_grey(image)


def is_grey(image: Image) -> bool:
    return image.mode in ("1", "L", "LA")


def has_wide_channels(image: Image) -> bool:
    """Whether a channel has more than 8 bits."""
    return image.mode[0] in "IF"


@contextmanager
def _opened(tree: Tree, name: str) -> Iterator[Image]:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(tree.read(name))) as image:
            if has_wide_channels(image):
                raise ValueError("it has more than 8 bits per channel")
            yield image
    except Exception as error:  # decoders raise many types of errors
        cause = "its format is unknown" if isinstance(error, UnidentifiedImageError) else error
        raise InvalidInput("dataset", f"{tree.path}: {name}", f"an image that decodes ({cause})") from error
