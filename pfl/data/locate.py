"""Find a data set's files: in DATA_SOURCE, in data/raw, or at the official source."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from pfl.core.errors import InvalidInput, unknown_name
from pfl.core.files import expanded
from pfl.data.datasets import DATASETS
from pfl.data.definition import Definition, Reader
from pfl.data.download import fetch
from pfl.data.formats import image_folder, npz

_ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".npz")


@dataclass(frozen=True)
class Located:
    """Existing files and their reader.

    Attributes:
        name: name of the data set.
        kind: official, copy (read by the definition's ``alternative``), image-folder, npz or embedded.
        definition: definition in the registry, if the data set is registered.
    """

    name: str
    kind: str
    read: Reader
    files: tuple[Path, ...] = ()
    definition: Definition | None = None


def locate(name_or_path: str, source: Path | None, raw: Path) -> Located | None:
    """Find a data set's files in ``source``, then in ``raw``; None if they are in neither.

    Raises:
        InvalidInput: the name or path does not exist, or the format of its files is not supported.
    """
    if name_or_path not in DATASETS:
        return _of_path(name_or_path)
    name, definition = name_or_path, DATASETS[name_or_path]
    if not definition.files:
        return Located(name, "embedded", definition.read, definition=definition)
    located = None
    if source is not None:
        if not source.exists():
            raise InvalidInput("DATA_SOURCE", str(source), "an existing file or folder")
        located = _in(source, name, definition)
    return located or _in(raw / (definition.folder or name), name, definition)


def source_place(given: str | Path | None = None) -> Path | None:
    """The file or folder to search first for data sets: ``given``, or the variable DATA_SOURCE.

    Raises:
        InvalidInput: it is not a path, or begins with the ~ of an unknown user.
    """
    given = given or os.environ.get("DATA_SOURCE")
    return expanded(given, "DATA_SOURCE") if given else None


def download(name: str, raw: Path, progress: bool) -> Located:
    """Download a data set's files from the official source.

    Raises:
        InvalidInput: a download failed.
    """
    definition = DATASETS[name]
    folder = raw / (definition.folder or name)
    files = tuple(fetch(file, folder, progress) for file in definition.files)
    return Located(name, "official", definition.read, files, definition)


def _of_path(text: str) -> Located:
    path = expanded(text, "dataset")
    if text and path.exists():
        return _unofficial(_without_ending(path.resolve().name), path)
    if len(path.parts) > 1 or path.name.endswith(_ARCHIVES):
        where = "" if path.is_absolute() else f" (there is no {path.absolute()})"
        raise InvalidInput("dataset", text, f"an existing folder, zip, tar or npz{where}")
    raise unknown_name("dataset", text, DATASETS)


def _without_ending(name: str) -> str:
    return name.removesuffix(next((end for end in (*_ARCHIVES, ".gz") if name.endswith(end)), ""))


def _in(place: Path, name: str, definition: Definition) -> Located | None:
    """Find the data set's files in ``place``, a file or a folder; None if there are none.

    A folder is searched first for the official files, then for the same files unpacked, each also in its
    subfolders ``name`` and, if data sets share their files, ``definition.folder``. Next comes the folder
    itself, if it has a subfolder train. Last comes an archive or folder called ``name``, with any suffix
    (``cifar10-imagefolder.zip``), or the official archive, unpacked.
    """
    official = [file.name for file in definition.files]
    unpacked = [_without_ending(file) for file in official]
    if place.is_file():
        if official == [place.name]:
            return Located(name, "official", definition.read, (place,), definition)
        return _unofficial(name, place, definition)
    homes = (place, place / name, place / (definition.folder or name))
    for home in homes:
        files = tuple(home / file for file in official)
        if all(file.is_file() for file in files):
            return Located(name, "official", definition.read, files, definition)
    for home in homes:
        if len(unpacked) > 1 and all((home / file).exists() for file in unpacked):
            return _unofficial(name, home, definition)
    if (place / "train").is_dir():
        return _unofficial(name, place, definition)
    called = re.compile(re.escape(name) + r"(?![A-Za-z0-9]).*")
    candidates = [
        path
        for path in (sorted(place.iterdir()) if place.is_dir() else [])
        if (called.fullmatch(path.name) and (path.is_dir() or path.name.endswith(_ARCHIVES)))
        or ([path.name] == unpacked and path.is_dir())
    ]
    if len(candidates) > 1:
        names = ", ".join(path.name for path in candidates)
        raise InvalidInput(str(place), names, f"one archive or folder of {name}")
    return _unofficial(name, candidates[0], definition) if candidates else None


def _unofficial(name: str, path: Path, definition: Definition | None = None) -> Located:
    """Files in a format other than the official one."""
    if path.suffix == ".npz":
        return Located(name, "npz", npz.read, (path,), definition)
    if not path.is_dir() and not path.name.endswith(_ARCHIVES):
        accepted = f"a folder or a file ending in {', '.join(_ARCHIVES)}"
        if path.suffix in (".csv", ".parquet"):
            accepted = "an .npz file; pfl.from_table reads this file, and `save` of the data set writes one"
        raise InvalidInput("dataset", str(path), accepted)
    if definition and definition.alternative:
        return Located(name, "copy", definition.alternative, (path,), definition)
    return Located(name, "image-folder", image_folder.read, (path,), definition)
