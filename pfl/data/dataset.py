"""`load` returns a data set by name or path. It is decoded once and memory-mapped afterwards."""

from __future__ import annotations

import dataclasses
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from pfl.core.digests import digest_of_modules
from pfl.core.errors import DataWarning, InvalidInput
from pfl.core.files import expanded, replacing, writing
from pfl.core.text import amount, listed
from pfl.data import cache, checksum, stored
from pfl.data.archive import DAMAGED, check_archive
from pfl.data.cache import Content
from pfl.data.datasets import DATASETS
from pfl.data.definition import Definition
from pfl.data.formats import npz
from pfl.data.locate import Located, download, locate, source_place
from pfl.data.resize import Resize, resized
from pfl.data.shape import Shape, TokenShape, described

_ROUNDING = 0.01
"""Largest rounding error, in standard deviations, that gives no note."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """The pooled samples of a data set: the official training set first, then the test set.

    >>> digits = pfl.load("digits")
    >>> digits.shape, digits.n_train, digits.identity
    ((1, 8, 8), 1442, 'original pixels')

    Attributes:
        name: the name in the registry, or the stem of the file for a user's path.
        images: the samples: images, uint8 (N, C, H, W); features (N, F) or series (N, C, T), floats; or
            tokens, integers (N, ...). They are memory-mapped copy-on-write, and simulations read the file:
            to change samples, pass a changed copy to `from_arrays`.
        labels: int64 (N,), indices into ``classes``.
        classes: the class names.
        n_train: ``images[:n_train]`` is the official training set.
        checksum: SHA-256 of the samples in their order, labels, classes and ``n_train``.
        mean, std: per channel of the training images, scaled to [0, 1]; for floats, per feature or channel;
            empty for tokens.
        source: ``kind`` (official, copy, image-folder, npz, embedded, samples), ``files`` (name, bytes,
            sha256 of each) and, if the images are separate files, their ``formats``.
        columns: further integers or strings (N,) by name, such as the writer or the domain of each image.
        tokens: vocabulary size of tokens; 0 for other samples.
        content: `pfl.data.cache.content_checksum`, independent of order and container.
        identity: a phrase for reports: "original pixels", or how the data differ from them.
        notes: what was changed or left out and what is probably unintended, such as classes without images.
    """

    name: str
    images: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]
    n_train: int
    checksum: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    source: dict[str, Any]
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)
    tokens: int = 0
    content: str = ""
    identity: str = "own data"
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        samples = (
            f"{len(self.labels):,} {'images' if self.is_images else 'samples'} of {described(self.shape)}"
        )
        return f"Dataset({self.name}: {samples} in {len(self.classes)} classes)"

    @property
    def shape(self) -> Shape:
        """Shape of a sample: (channels, height, width) for images."""
        shape = self.images.shape[1:]
        return TokenShape(shape, self.tokens) if self.tokens else shape

    @property
    def is_images(self) -> bool:
        """Whether the samples are images with 8 bits per channel."""
        return cache.is_images(self.images)

    def save(self, path: str | Path) -> None:
        """Write the data set to an .npz file, which the command line and tables accept as a data set.

        Raises:
            InvalidInput: the name does not end in .npz, a column has the name of another array of the file,
                or the file cannot be written.
        """
        path = expanded(path, "path")
        if path.suffix != ".npz":
            raise InvalidInput("path", str(path), "a name that ends in .npz")
        for name in self.columns:
            if name in (*npz.SAMPLES, *npz.OWN):
                raise InvalidInput("columns", name, "another name, as an array of the file has this one")
        arrays: dict[str, Any] = {
            "images" if self.is_images and self.shape[0] in (1, 3) else "samples": self.images,
            "labels": self.labels,
            "classes": self.classes,
            "n_train": self.n_train,
            **self.columns,
        }
        # np.savez cannot write an array that is called "file".
        with writing(path), replacing(path) as file, zipfile.ZipFile(file, "w") as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)


def load(
    name_or_path: str | Path,
    source: str | Path | None = None,
    raw: str | Path = Path("data/raw"),
    progress: bool = True,
) -> Dataset:
    """Load a data set from the registry, or from a user's image folder, zip, tar or npz.

    >>> load("digits")
    Dataset(digits: 1,797 images of 1x8x8 in 10 classes)

    The first call decodes it into the cache (the folder PFL_CACHE, by default ~/.cache/pfl-repro). Later
    calls map the cached files, as long as the sizes and times of the original files are unchanged. The data
    set's notes are issued as warnings.

    Args:
        name_or_path: for example ``digits``, or ``photos.zip`` with train/<class>/* and test/<class>/*.
            Append ``,resize=HEIGHTxWIDTH`` to resize images, and ``,crop`` to keep their aspect ratio.
        source: a file, or a folder of archives, that is searched before ``raw`` and the official source; by
            default the environment variable DATA_SOURCE.
        raw: folder of the official files, with one subfolder per data set.
        progress: show a progress bar if downloading or decoding takes long.

    Raises:
        InvalidInput: the files do not exist or cannot be read.
    """
    raw = expanded(raw, "raw")
    name, size = resized(str(name_or_path))
    located = _located(name, source, raw) or download(name, raw, progress)
    with _reading(name):
        stamps: list[object] = [stamp for path in located.files for stamp in checksum.stamps(path)]
        stamps += [size] if size else []
        data = cache.entry(
            located.name,
            cache.key_of([located.name, located.kind, *stamps, _decoder(located)]),
            write=lambda folder: _decode(located, size, raw, folder, progress),
            read=lambda folder: _opened(located, size, folder),
        )
    warn(data)
    return data


def warn(data: Dataset) -> None:
    """Issue the notes of a data set as warnings."""
    for note in data.notes:
        warnings.warn(f"{data.name}: {note}", DataWarning, stacklevel=3)


def noted(data: Dataset) -> Dataset:
    """The data set with further notes: on its classes, and on values that float32 rounds away."""
    return dataclasses.replace(data, notes=(*data.notes, *class_notes(data), *_precision_notes(data)))


def class_notes(data: Dataset) -> list[str]:
    """Notes on classes without samples, on classes that only the training or the test set has, and on data of
    a single class."""
    labels, classes, n_train = data.labels, data.classes, data.n_train
    train, test = (np.bincount(part, minlength=len(classes)) for part in np.split(labels, [n_train]))
    kind = "images" if data.is_images else "samples"
    lacking = {
        kind: (train == 0) & (test == 0),
        f"training {kind}": (train == 0) & (test > 0),
        f"test {kind}": (train > 0) & (test == 0) & (n_train < len(labels)),
    }
    notes = [
        f"{amount(int(which.sum()), 'class', 'es')} of {len(classes)} without {which_kind}: "
        + listed([name for name, lacks in zip(classes, which, strict=True) if lacks])
        for which_kind, which in lacking.items()
        if which.any()
    ]
    if labels.min() == 1 and classes == tuple(map(str, range(len(classes)))):
        notes[0] += " (labels count from 0; subtract 1 if yours count from 1)"
    if len(classes) == 1:
        notes.append(f"all {kind} are of one class, {listed(classes)}: the accuracy of every model is 100 %")
    return notes


def is_rounded_away(mean: float, std: float) -> bool:
    """Whether values with this mean and deviation are indistinguishable in float32, the default dtype.

    They are standardised in float32, where the rounding error is proportional to the mean.
    """
    return 0 < std < abs(mean) * float(np.finfo(np.float32).eps) / _ROUNDING


def _precision_notes(data: Dataset) -> list[str]:
    moments = list(zip(data.mean, data.std, strict=True))
    lost = [place for place, (mean, std) in enumerate(moments) if is_rounded_away(mean, std)]
    if not lost:
        return []
    kind = "feature" if len(data.shape) == 1 else "channel"
    mean, std = moments[lost[0]]
    return [
        f"{amount(len(lost), kind)} of {len(moments)} with differences that float32 rounds away; "
        f"subtract the mean first: {kind} {lost[0]} has mean {mean:.10g} and standard deviation {std:.3g}"
    ]


def check_distinct(classes: Sequence[str], where: str) -> None:
    """Raise `InvalidInput` if two classes of the data set ``where`` have the same name, or a name is not
    valid Unicode."""
    for name in classes:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise InvalidInput("dataset", where, f"classes with names in Unicode, not {name!a}") from None
    twice = [name for name, count in Counter(classes).items() if count > 1]
    if twice:
        raise InvalidInput("dataset", where, f"classes with distinct names; {twice[0]!r} occurs twice")


def check_dataset(name_or_path: str, raw: Path = Path("data/raw")) -> Definition | None:
    """Check what can be checked quickly, without downloads and without decoding images.

    Returns:
        The definition of a data set of the registry; None for the user's own data.

    Raises:
        InvalidInput: the name, path or DATA_SOURCE does not exist, or a file cannot be read.
    """
    name_or_path, size = resized(name_or_path)
    located = _located(name_or_path, None, raw)
    with _reading(name_or_path):
        for path in located.files if located else ():
            check_archive(path)
    known = located.definition if located else DATASETS[name_or_path]
    if known and size:
        if len(known.shape) != 3:
            raise InvalidInput("resize", f"samples of {described(known.shape)}", "a data set of images")
        return dataclasses.replace(known, shape=(known.shape[0], size.height, size.width))
    return known


def _located(name_or_path: str, source: str | Path | None, raw: Path) -> Located | None:
    with _reading(name_or_path):
        return locate(name_or_path, source_place(source), raw)


@contextmanager
def _reading(name_or_path: str) -> Iterator[None]:
    """A context that turns an operating-system error while reading a file into an `InvalidInput`."""
    try:
        yield
    except OSError as error:
        unreadable = str(error.filename or name_or_path)
        raise InvalidInput("dataset", unreadable, f"readable files ({error.strerror or error})") from error


def _decoder(located: Located) -> str:
    """Identifies the code that decodes the images, including Pillow, as other code may give other values.

    Code that finds, downloads or checks the files is left out: an edit of it leaves the cache valid.
    """
    defined = [DATASETS.module(located.name)] if located.definition else []
    modules = [cache.__name__, located.read.__module__, *defined]
    return f"{digest_of_modules(modules)}, Pillow {version('pillow')}"


def _decode(located: Located, size: Resize | None, raw: Path, folder: Path, progress: bool) -> None:
    """Write the cache entry ``folder``; official files in ``raw`` can be downloaded again."""
    if located.kind == "official":  # verified before they are read, because some are pickles
        assert located.definition
        for path, file in zip(located.files, located.definition.files, strict=True):
            advice = "; delete it to download it again" if path.is_relative_to(raw) else ""
            checksum.verify(path, file, advice)
    source = {"kind": located.kind, "files": [checksum.describe(path) for path in located.files]}
    out = cache.ArrayWriter(folder, progress, size)
    try:
        out.finish(_content(located, out), source)
    finally:
        out.close()


def _content(located: Located, out: cache.ArrayWriter) -> Content:
    """The reader's description of the images that it appended, checked."""
    files, known = ", ".join(map(str, located.files)), located.definition
    try:
        content = located.read(located.files, out)
    except InvalidInput:
        raise
    except (ValueError, KeyError, IndexError, *DAMAGED) as error:
        # The format of the files does not match their names.
        raise InvalidInput("dataset", files, f"files in the format of {located.name} ({error})") from error
    labels, classes = out.columns().get("labels"), len(content.classes)
    if labels is None or not len(labels):
        raise InvalidInput("dataset", files, "at least one sample")
    if labels.min() < 0 or labels.max() >= classes:
        accepted = f"labels in [0, {classes - 1}], not from {labels.min()} to {labels.max()}"
        raise InvalidInput("dataset", files, accepted)
    n_train = content.n_train
    if n_train is not None and not (isinstance(n_train, int) and 1 <= n_train <= len(labels)):
        raise InvalidInput("dataset", files, f"n_train as an int in [1, {len(labels)}], not {n_train!r}")
    check_distinct(content.classes, files)
    if known and not out.size and (out.shape, classes) != (known.shape, known.classes):
        accepted = f"images of shape {known.shape} in {known.classes} classes for {located.name}"
        raise InvalidInput("dataset", files, f"{accepted}, not {out.shape} in {classes}")
    return content


def _opened(located: Located, size: Resize | None, folder: Path) -> Dataset:
    fields, meta = stored.read(folder)
    return noted(
        Dataset(
            name=located.name,
            **fields,
            source=meta["source"],
            content=meta["content"],
            identity=_identity(located, size, meta["content"], meta["source"].get("formats", ())),
            notes=tuple(meta["notes"]),
        )
    )


def _identity(located: Located, size: Resize | None, content: str, formats: Sequence[str]) -> str:
    """A phrase for reports that describes data with this ``content`` checksum."""
    if located.definition is None:
        return "own data"
    if size:
        return f"{'cropped and ' if size.crop else ''}resized to {size.height}x{size.width}"
    if located.definition.content == content:
        return "original pixels"
    if located.definition.content is None and located.kind in ("official", "embedded"):
        return "read from the official files"
    files = f" ({', '.join(formats)} files)" if formats else ""
    if located.definition.content is None:
        return f"a copy that was not compared with the original pixels{files}"
    return f"a copy that differs from the original pixels{files}"
