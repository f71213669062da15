"""Reader of image folders, zips and tars: train/<class>/* and test/<class>/*, or <class>/* alone."""

from __future__ import annotations

import io
import unicodedata
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pfl.core.errors import InvalidInput
from pfl.core.text import amount, listed
from pfl.data.archive import Tree, open_tree
from pfl.data.cache import ArrayWriter, Content
from pfl.data.pixels import FORMATS, as_stored, check, converted, is_grey
from pfl.data.resize import Resize

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".pgm", ".ppm", ".tif", ".tiff", ".webp"})
SPLITS = frozenset({"train", "test", "val", "valid", "validation", "dev"})
"""Usual names of folders of splits: images directly in them have no class."""
OF_SYSTEMS = frozenset({"__MACOSX", "Thumbs.db", "desktop.ini"})
"""Files and folders added by operating systems. Names that begin with a dot are ignored as well."""

_BLOCK = 1024
_BLOCK_BYTES = 1 << 28
"""Maximum size of the decoded images in memory."""
_THREADS = 4
_THREADS_PAY = 3 * 128 * 128
"""Minimum number of values per image for decoding in threads; below, GIL contention costs more."""


class Labelled(NamedTuple):
    """The name of an image file in a tree, and its class."""

    name: str
    label: int


def read(files: Sequence[Path], out: ArrayWriter) -> Content:
    """Append the training images, then the test images; in greyscale if all images are grey.

    A split whose file names are consecutive numbers, for example the official indices of CIFAR-10, is in the
    order of these numbers. Any other split is sorted by class and file name.
    """
    (path,) = files
    with open_tree(path) as tree:
        train, test, classes = _undivided(tree) or find_images(tree)
        images = _numbered(train) + _numbered(test)
        notes = (*tree.notes, *_left_out(tree, images), *_alike(classes))
        out.expect(len(images))
        append_images(tree, images, out, _mode(tree, images))
    formats = sorted({_suffix(image.name)[1:] for image in images})
    return Content(classes, n_train=len(train), formats=tuple(formats), notes=notes)


def _undivided(tree: Tree) -> tuple[list[Labelled], list[Labelled], tuple[str, ...]] | None:
    """The images of a tree of class folders without train and test, all for training; None otherwise."""
    files = sorted(PurePosixPath(name) for name in _images(tree))
    if not files or {len(path.parts) for path in files} not in ({2}, {3}):
        return None
    if len({path.parts[:-2] for path in files}) > 1:  # more than one wrapping folder
        return None
    classes = _in_order({path.parts[-2] for path in files})
    if {name.casefold() for name in classes} <= SPLITS or {"train", "test"} & set(files[0].parts[:-2]):
        return None
    index = {name: i for i, name in enumerate(classes)}
    images = [Labelled(str(path), index[path.parts[-2]]) for path in files]
    return sorted(images, key=lambda image: image.label), [], classes


def _images(tree: Tree) -> list[str]:
    """The names of all image files, without hidden ones and those added by operating systems."""
    return [name for name in tree.names if _is_visible(name) and _suffix(name) in SUFFIXES]


def _suffix(name: str) -> str:
    return PurePosixPath(name).suffix.lower()


def _is_visible(name: str) -> bool:
    return not any(part.startswith(".") or part in OF_SYSTEMS for part in PurePosixPath(name).parts)


def _in_order(classes: set[str]) -> tuple[str, ...]:
    """Sorted class names, in numerical order if all are distinct numbers, so that 10 follows 9."""
    if all(name.isdecimal() for name in classes) and len(set(map(int, classes))) == len(classes):
        return tuple(sorted(classes, key=int))
    return tuple(sorted(classes))


def _left_out(tree: Tree, images: Sequence[Labelled]) -> Iterator[str]:
    """Notes on folders without images and on other files next to the images.

    Raises:
        InvalidInput: the tree has further images, such as val/<class>/1.png.
    """
    chosen = {image.name for image in images}
    if more := [name for name in _images(tree) if name not in chosen]:
        accepted = f"images in train/ and test/ only, not {more[0]}"
        raise InvalidInput("dataset", str(tree.path), accepted)
    used = {str(folder) for name in chosen for folder in PurePosixPath(name).parents}

    def beside(names: list[str], known: set[str]) -> list[str]:
        others = (name for name in names if name not in known and _is_visible(name))
        return [name for name in others if str(PurePosixPath(name).parent) in used]

    if empty := beside(tree.folders, used):
        yield f"folders without images left out: {listed(empty)}"
    if other := beside(tree.names, chosen):
        endings = ", ".join(sorted(SUFFIXES))
        yield f"{amount(len(other), 'file')} left out, as {other[0]!r}; images end in {endings}"


def _alike(classes: Sequence[str]) -> Iterator[str]:
    """Notes on classes whose names look alike; single letters may differ in case."""
    first: dict[str, str] = {}
    for name in classes:
        plain = unicodedata.normalize("NFKC", name).strip()
        other = first.setdefault(plain.casefold() if len(plain) > 1 else plain, name)
        if other != name:
            yield f"classes {other!r} and {name!r} look alike"


def _numbered(images: list[Labelled]) -> list[Labelled]:
    """The images of a split, ordered by file number if these are consecutive, otherwise unchanged."""
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
    images = _images(tree)
    depth = 0 if any(name.startswith(f"{train[0]}/") for name in images) else 1  # one wrapping folder
    for name in images:
        parts = PurePosixPath(name).parts[depth:]
        if len(parts) >= 3:
            by_split.setdefault(parts[0], []).append((parts[1], name))
    if train[0] not in by_split:
        accepted = f"image files in {train[0]}/<class>/ and test/<class>/ (lower case), or in <class>/"
        raise InvalidInput("dataset", str(tree.path), f"{accepted}, not {_odd(tree)}")
    classes = _in_order({label for label, _ in by_split[train[0]]})
    index = {label: i for i, label in enumerate(classes)}
    for split in (*train, *test):
        for label, name in by_split.get(split, []):
            if label not in index:
                accepted = f"only classes of {train[0]}/ in {split}/, not {label!r} ({name})"
                raise InvalidInput("dataset", str(tree.path), accepted)

    def members(splits: Sequence[str]) -> list[Labelled]:
        labelled = (sorted((index[c], name) for c, name in by_split.get(split, [])) for split in splits)
        return [Labelled(name, label) for label, name in chain.from_iterable(labelled)]

    return members(train), members(test), classes


def _odd(tree: Tree) -> str:
    """A file outside of the layout of an image folder, for an error message."""
    images = _images(tree)
    if not images:
        return repr(tree.names[0]) if tree.names else "an empty folder"
    usual, _ = Counter(name.count("/") for name in images).most_common(1)[0]
    return repr(next((name for name in images if name.count("/") != usual), images[0]))


@contextmanager
def _huge_images_refused() -> Iterator[None]:
    """A context in which images above `PIL.Image.MAX_IMAGE_PIXELS` are an error, not a warning."""
    from PIL.Image import DecompressionBombWarning

    with warnings.catch_warnings():
        warnings.simplefilter("error", DecompressionBombWarning)
        yield


@_huge_images_refused()
def append_images(
    tree: Tree,
    images: Sequence[Labelled],
    out: ArrayWriter,
    mode: str,
    size: Resize | None = None,
    stored: bool = False,
    **columns: np.ndarray,
) -> None:
    """Decode the images and append them with their labels.

    Args:
        mode: Pillow's mode: RGB for three channels or L for one.
        size: target size if ``out`` has none; None means that all images already have one size.
        stored: decode with `as_stored`, for a published data set; otherwise with `converted`.
        columns: further values by name, one per image, such as its writer.

    Raises:
        InvalidInput: an image cannot be decoded, or its size differs from that of the first.
    """
    size = out.size or size
    first, _ = decode(tree, images[0].name, mode, size, stored)
    length = max(1, min(_BLOCK, _BLOCK_BYTES // first.nbytes))
    with ThreadPoolExecutor(_THREADS) as pool:
        run = pool.map if size or first.size >= _THREADS_PAY else map
        for start in range(0, len(images), length):
            block = images[start : start + length]
            decoded = run(lambda image: decode(tree, image.name, mode, size, stored), block)
            arrays = []
            for image, (array, changes) in zip(block, decoded, strict=True):
                if array.shape != first.shape:
                    expected, actual = (f"{a.shape[1]}x{a.shape[0]}" for a in (first, array))
                    accepted = (
                        f"images of one size; {images[0].name} is {expected} and {image.name} is {actual} "
                        "(,resize=HEIGHTxWIDTH after the path resizes them)"
                    )
                    raise InvalidInput("dataset", str(tree.path), accepted)
                arrays.append(array)
                for change in changes:
                    out.changes.add(change, image.name)
            out.append(
                np.stack(arrays).transpose(0, 3, 1, 2),
                np.array([image.label for image in block]),
                **{name: values[start : start + length] for name, values in columns.items()},
            )


def decode(
    tree: Tree, name: str, mode: str, size: Resize | None = None, stored: bool = False
) -> tuple[np.ndarray, list[str]]:
    """An image as uint8 (H, W, C), in Pillow's ``mode`` L or RGB, and how it differs from the file.

    Raises:
        InvalidInput: it cannot be decoded.
    """
    with _opened(tree, name, stored) as image:
        pixels, changes = (as_stored if stored else converted)(image, mode, size)
        array = np.asarray(pixels)
    return (array[:, :, None] if mode == "L" else array), changes


@_huge_images_refused()
def _mode(tree: Tree, images: Sequence[Labelled]) -> str:
    """L if all images are grey, otherwise RGB."""
    for image in images:
        with _opened(tree, image.name) as content:
            if not is_grey(content):
                return "RGB"
    return "L"


@contextmanager
def _opened(tree: Tree, name: str, stored: bool = False) -> Iterator[Image]:
    from PIL import Image, UnidentifiedImageError

    content = io.BytesIO(tree.read(name))
    try:
        with Image.open(content, formats=FORMATS) as image:
            check(image, frames=stored)
            yield image
    except Exception as error:  # decoders raise many types of errors
        cause = "its format is unknown" if isinstance(error, UnidentifiedImageError) else error
        raise InvalidInput("dataset", f"{tree.path}: {name}", f"a decodable image ({cause})") from error
