"""Definitions of data sets: metadata and readers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pfl.data.cache import ArrayWriter, Content
from pfl.data.shape import Shape

Reader = Callable[[Sequence[Path], ArrayWriter], Content]
"""Reads a data set's files and appends its images in pooled order, the training set first."""


MOST_UNNAMED = 100_000
"""Maximum number of classes without names; more are regarded as a mistake."""


@dataclass(frozen=True)
class RemoteFile:
    """A file of an official source.

    Attributes:
        url: its last part is the file's name.
        md5: published by the source, by torchvision or by other loaders.
    """

    url: str
    md5: str

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class Definition:
    """A data set of the registry.

    Attributes:
        shape: shape of a sample: channels, height and width of an image.
        classes: number of classes.
        samples: number of images in training and test set; None means that it depends on the source.
        read: reader of the official files, which are passed in the order of ``files``.
        files: the official files; empty for a data set that comes with a library.
        folder: name of the folder in data/raw, if several data sets share their files.
        alternative: reader of a folder or archive in another format, found under the data set's name; None
            means that an image folder is expected there.
        content: `pfl.data.cache.content_checksum` of the original pixels; None means unknown.
    """

    shape: Shape
    classes: int
    samples: int | None
    read: Reader
    files: tuple[RemoteFile, ...] = ()
    folder: str | None = None
    alternative: Reader | None = None
    content: str | None = None
