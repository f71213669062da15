"""What is known of a data set before any of its files is read, and what reading them yields."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pfl.data.cache import ArrayWriter, Content

Reader = Callable[[Sequence[Path], ArrayWriter], Content]
"""Appends a data set's images in their pooled order (training set first), out of its files."""


@dataclass(frozen=True)
class RemoteFile:
    """A file of an official source.

    Attributes:
        url: where it is fetched; its last part is the file's name.
        md5: as published by the source or by torchvision; None means that none is published.
            The sha256 of the first download is then recorded and checked from then on.
    """

    url: str
    md5: str | None = None

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class Definition:
    """A data set of the registry.

    Attributes:
        shape: of an image: channels, height, width.
        classes: their number.
        samples: the number of images, train and test; None means that it depends on the source.
        read: reads the official files, in the order of ``files``.
        files: the official files; empty for a data set that is embedded in a library.
        folder: the name of its folder in data/raw, where two data sets share their files.
        alternative: reads a folder or archive of another form that is found under the data set's name; None:
            an image folder is expected there.
        content: `pfl.data.cache.content_checksum` of the original pixels; None means unknown.
    """

    shape: tuple[int, int, int]
    classes: int
    samples: int | None
    read: Reader
    files: tuple[RemoteFile, ...] = ()
    folder: str | None = None
    alternative: Reader | None = None
    content: str | None = None
