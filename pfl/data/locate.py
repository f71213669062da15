"""Where a data set's files are: in DATA_SOURCE, in data/raw, or at the official source."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pfl.data.datasets import DATASETS, _image_folder
from pfl.data.definition import Definition, Reader
from pfl.errors import InvalidInput, unknown_name

_TAR = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_ARCHIVES = (".zip", *_TAR, ".npz")


@dataclass(frozen=True)
class Located:
    """Files that are there, and what reads them.

    Attributes:
        name: of the data set.
        kind: official, image-folder, npz or embedded.
        definition: the registry's, for a data set that it names.
    """

    name: str
    kind: str
    read: Reader
    files: tuple[Path, ...] = ()
    definition: Definition | None = None


def locate(name_or_path: str, source: Path | None, raw: Path) -> Located:
    """The files of a data set, looked for in ``source``, in ``raw`` and then at the official source.

    Raises:
        InvalidInput: no such name or path, or nothing of the data set can be had.
    """
    path = Path(name_or_path)
    if name_or_path not in DATASETS:
        if path.exists():
            return _of_user(_stem(path), path)
        if len(path.parts) > 1 or path.name.endswith(_ARCHIVES):
            raise InvalidInput("dataset", name_or_path, "an existing folder, zip, tar or npz")
        raise unknown_name("dataset", name_or_path, DATASETS)
    definition = DATASETS[name_or_path]
    if not definition.files:
        return Located(name_or_path, "embedded", definition.read, definition=definition)
    raise NotImplementedError


def _of_user(name: str, path: Path, definition: Definition | None = None) -> Located:
    if path.suffix == ".npz":
        raise NotImplementedError
    if path.is_dir() or path.name.endswith(_ARCHIVES):
        return Located(name, "image-folder", _image_folder.read, (path,), definition)
    raise InvalidInput("dataset", str(path), f"a folder or a file ending in {', '.join(_ARCHIVES)}")


def _stem(path: Path) -> str:
    ending = next((end for end in _ARCHIVES if path.name.endswith(end)), "")
    return path.resolve().name.removesuffix(ending)
