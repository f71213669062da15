"""Small data sets that the tests make: image folders, and labels without images."""

from __future__ import annotations

import gzip
import io
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pfl.core.files import cache_root
from pfl.data.dataset import Dataset
from pfl.testing.synthetic import make_dataset

RNG = np.random.default_rng(0)


def zipped(folder: Path) -> Path:
    """What is in the folder, in a zip beside it."""
    return Path(shutil.make_archive(str(folder), "zip", folder))


def tarred(folder: Path, ending: str = "tar", compression: str = "") -> Path:
    """The folder in a tar beside it."""
    path = folder.with_name(f"{folder.name}.{ending}")
    with tarfile.open(path, f"w:{compression}") as archive:
        archive.add(folder, folder.name)
    return path


def write_tar(path: Path, members: Mapping[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def write_zip(path: Path, members: Mapping[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def random_bytes(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape, np.uint8)


def idx(array: np.ndarray) -> bytes:
    """An array as a file of MNIST's format."""
    header = np.array([0x0800 + array.ndim, *array.shape], ">u4").tobytes()
    return gzip.compress(header + array.tobytes(), mtime=0)


@pytest.fixture(autouse=True, scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of the session's own, with the kernels that are compiled already, and no DATA_SOURCE."""
    folder = tmp_path_factory.mktemp("cache")
    (cache_root() / "kernels").mkdir(parents=True, exist_ok=True)
    (folder / "kernels").symlink_to(cache_root() / "kernels")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PFL_CACHE", str(folder))
        patch.delenv("DATA_SOURCE", raising=False)
        yield folder


@pytest.fixture
def image_folder(tmp_path: Path) -> Path:
    """Two classes, three training images and one test image of each, 5 wide and 4 high, in colour.

    The n-th image, counted in pooled order, has red n, green 10 n and blue 200 - n throughout.
    """
    root = tmp_path / "photos"
    n = 0
    for split, count in (("train", 3), ("test", 1)):
        for label in ("cat", "dog"):
            (root / split / label).mkdir(parents=True)
            for i in range(count):
                Image.new("RGB", (5, 4), (n, 10 * n, 200 - n)).save(root / split / label / f"{i}.png")
                n += 1
    return root


@pytest.fixture
def labelled() -> Callable[..., Dataset]:
    """Makes a data set of the given labels whose images, one pixel each, take no memory."""

    def make(labels: Sequence[int] | np.ndarray, n_train: int | None = None, **columns: object) -> Dataset:
        values = np.asarray(labels, np.int64)
        return make_dataset(
            (1, 1, 1),
            int(values.max()) + 1,
            labels=values,
            blank=True,
            n_train=len(values) if n_train is None else n_train,
            **columns,
        )

    return make
