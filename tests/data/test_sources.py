"""Where a data set's files are looked for, and how they are downloaded."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from pfl.core.errors import InvalidInput
from pfl.data import download
from pfl.data.dataset import load
from pfl.data.datasets import DATASETS
from pfl.data.definition import RemoteFile
from tests.data.conftest import idx
from tests.refusal import refusal

CONTENT = bytes(range(256)) * 400
MD5 = hashlib.md5(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves the files of ``contents``, with the faults asked for; ``ranges`` lists the ranges that were."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.contents = {"/data.bin": CONTENT}
        self.cuts: list[int] = []
        """After how many bytes to cut the next connections."""
        self.honours_ranges = True
        self.ranges: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        asked = self.headers["Range"]
        self.server.ranges.append(asked)
        content = self.server.contents.get(self.path)
        if content is None:
            self.send_error(404)
            return
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.server.honours_ranges else 0
        if start >= len(content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        cut = self.server.cuts.pop(0) if self.server.cuts else None
        self.wfile.write(content[start:][:cut])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch) -> Iterator[Server]:
    monkeypatch.setattr(download, "_PAUSE", 0)
    server = Server()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def fetch(server: Server, folder: Path, md5: str = MD5, name: str = "data.bin") -> bytes:
    return download.fetch(RemoteFile(f"{server.url}/{name}", md5), folder, progress=False).read_bytes()


# ---- downloads -----------------------------------------------------------------------------------------


def test_a_download_arrives_whole_and_happens_once(server, tmp_path):
    assert fetch(server, tmp_path) == CONTENT
    assert fetch(server, tmp_path) == CONTENT
    assert len(server.ranges) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["data.bin"]


def test_a_download_is_on_disk_before_it_has_its_name(server, tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(Path(f"/proc/self/fd/{file}").readlink()))
    fetch(server, tmp_path)
    assert synced == [tmp_path / "data.bin.part"]


def test_a_cut_connection_goes_on_where_it_stopped(server, tmp_path):
    server.cuts = [1000, 500]
    assert fetch(server, tmp_path) == CONTENT
    assert server.ranges == [None, "bytes=1000-", "bytes=1500-"]


def test_connections_that_bring_something_are_never_too_many(server, tmp_path):
    server.cuts = [100] * 20
    assert fetch(server, tmp_path) == CONTENT


def test_connections_that_bring_nothing_are_given_up_and_what_came_is_kept_for_the_next_call(
    server, tmp_path
):
    server.cuts = [1000] + [0] * 20
    with pytest.raises(InvalidInput, match=r"data\.bin could not be downloaded .* in DATA_SOURCE$"):
        fetch(server, tmp_path)
    server.cuts, server.ranges = [], []
    assert fetch(server, tmp_path) == CONTENT
    assert server.ranges == ["bytes=1000-"]


def test_a_server_that_ignores_ranges_is_read_from_the_start(server, tmp_path):
    server.honours_ranges = False
    server.cuts = [1000]
    assert fetch(server, tmp_path) == CONTENT


def test_a_part_longer_than_the_file_is_thrown_away(server, tmp_path):
    (tmp_path / "data.bin.part").write_bytes(bytes(len(CONTENT) + 1))
    assert fetch(server, tmp_path) == CONTENT


def test_a_part_that_is_the_whole_file_is_kept(server, tmp_path):
    (tmp_path / "data.bin.part").write_bytes(CONTENT)
    assert fetch(server, tmp_path) == CONTENT
    assert server.ranges == [f"bytes={len(CONTENT)}-"]


def test_a_folder_that_cannot_be_written_is_one_line(server, tmp_path):
    (tmp_path / "raw").write_text("a file")
    with pytest.raises(InvalidInput, match=r"^dataset: .*raw is not accepted; expected a file that can be"):
        fetch(server, tmp_path / "raw")


def test_a_wrong_checksum_is_one_line_and_nothing_of_the_download_stays(server, tmp_path):
    assert f"md5 {'0' * 32}, as recorded in pfl" in refusal(fetch, server, tmp_path, md5="0" * 32)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_the_server_does_not_have_is_asked_for_once(server, tmp_path):
    with pytest.raises(InvalidInput, match=r"missing\.bin could not be downloaded \(.*404"):
        fetch(server, tmp_path, name="missing.bin")
    assert len(server.ranges) == 1


def test_a_server_that_is_not_there_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(download, "_PAUSE", 0)
    nowhere = RemoteFile("http://127.0.0.1:9/data.bin", MD5)
    with pytest.raises(InvalidInput, match=r"data\.bin could not be downloaded .*; place data\.bin in "):
        download.fetch(nowhere, tmp_path, progress=False)


# ---- where files are looked for ------------------------------------------------------------------------


@pytest.fixture
def mnist(server, monkeypatch) -> dict[str, bytes]:
    """MNIST's official files, ten images each, on the server."""
    files = {
        f"{split}-{kind}-ubyte.gz": idx(array)
        for split in ("train", "t10k")
        for kind, array in (
            ("images-idx3", np.arange(7840, dtype=np.uint8).reshape(10, 28, 28)),
            ("labels-idx1", np.arange(10, dtype=np.uint8)),
        )
    }
    server.contents = {f"/{name}": content for name, content in files.items()}
    definition = DATASETS["mnist"]
    remote = tuple(
        RemoteFile(f"{server.url}/{file.name}", hashlib.md5(files[file.name]).hexdigest())
        for file in definition.files
    )
    monkeypatch.setattr("pfl.data.datasets.mnist.mnist", dataclasses.replace(definition, files=remote))
    return files


def put(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def test_a_data_set_that_is_nowhere_is_downloaded_to_raw(mnist, server, tmp_path):
    loaded = load("mnist", raw=tmp_path / "raw", progress=False)
    assert len(loaded.labels) == 20
    assert {path.name for path in (tmp_path / "raw" / "mnist").iterdir()} == set(mnist)
    assert len(server.ranges) == 4


def test_files_placed_in_raw_by_hand_are_used_and_never_deleted(mnist, server, tmp_path):
    folder = put(tmp_path / "raw" / "mnist", mnist)
    load("mnist", raw=tmp_path / "raw", progress=False)
    assert server.ranges == []
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == mnist


def test_a_file_placed_by_hand_with_another_checksum_is_refused_and_kept(mnist, tmp_path):
    folder = put(tmp_path / "raw" / "mnist", mnist | {"t10k-labels-idx1-ubyte.gz": b"other"})
    recorded = r"t10k-labels-idx1-ubyte\.gz of md5 .* as recorded in pfl"
    with pytest.raises(InvalidInput, match=f"{recorded}; delete it to download it again$"):
        load("mnist", raw=tmp_path / "raw", progress=False)
    with pytest.raises(InvalidInput, match=f"{recorded}$"):
        load("mnist", source=tmp_path / "raw", progress=False)
    assert (folder / "t10k-labels-idx1-ubyte.gz").read_bytes() == b"other"


@pytest.mark.parametrize("below", [".", "mnist"])
def test_official_files_in_the_source_come_before_the_download(mnist, server, tmp_path, below, monkeypatch):
    put(tmp_path / "source" / below, mnist)
    monkeypatch.setenv("DATA_SOURCE", str(tmp_path / "source"))
    assert len(load("mnist", raw=tmp_path / "raw", progress=False).labels) == 20
    assert server.ranges == []
    assert not (tmp_path / "raw").exists()


@pytest.fixture
def digits_zip(tmp_path) -> Path:
    """Ten grey 28x28 training images, an image folder of MNIST's shape and classes."""
    from PIL import Image

    for c in range(10):
        folder = tmp_path / "folder" / "train" / str(c)
        folder.mkdir(parents=True)
        Image.new("L", (28, 28), c).save(folder / "0.png")
    return Path(shutil.make_archive(str(tmp_path / "made"), "zip", tmp_path / "folder"))


@pytest.mark.parametrize("name", ["mnist.zip", "mnist-imagefolder.zip", "mnist_small.zip"])
def test_an_image_folder_called_after_the_data_set_serves_as_well(digits_zip, tmp_path, name):
    source = tmp_path / "source"
    source.mkdir()
    shutil.copy(digits_zip, source / name)
    shutil.copy(digits_zip, source / "mnist2.zip")  # another data set's
    loaded = load("mnist", source=source, progress=False)
    assert (loaded.name, loaded.images[:, 0, 0, 0].tolist()) == ("mnist", [*range(10)])
    assert loaded.source["kind"] == "copy"
    assert loaded.source["files"][0]["name"] == name


def test_a_source_that_is_a_file_is_the_data_set(digits_zip):
    assert len(load("mnist", source=digits_zip, progress=False).labels) == 10


def test_a_source_of_another_shape_than_the_data_set_is_refused(image_folder):
    with pytest.raises(InvalidInput, match=r"\(1, 28, 28\) in 10 classes for mnist, not \(3, 4, 5\) in 2"):
        load("mnist", source=image_folder, progress=False)


def test_two_archives_of_a_data_set_are_told_apart_by_the_user(digits_zip, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for name in ("mnist-a.zip", "mnist-b.zip"):
        shutil.copy(digits_zip, source / name)
    with pytest.raises(InvalidInput, match=r"mnist-a\.zip, mnist-b\.zip"):
        load("mnist", source=source, progress=False)


def test_a_source_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="DATA_SOURCE"):
        load("mnist", source=tmp_path / "typo", progress=False)


# ---- real data -----------------------------------------------------------------------------------------

FOLDER = Path(os.environ.get("PFL_TEST_DATA", "no such folder"))
"""Where archives of original pixels may lie: cifar10*.zip, cifar100*.zip, mnist*.zip."""

# images, training images, mean of the channels in [0, 1], first labels
KNOWN = {
    "digits": (1797, 1442, [0.305], [0, 1, 2, 3]),
    "cifar10": (60_000, 50_000, [0.4914, 0.4822, 0.4465], [6, 9, 9, 4]),
    "cifar100": (60_000, 50_000, [0.5071, 0.4865, 0.4409], [0, 0, 0, 0]),  # its files have no official index
    "mnist": (70_000, 60_000, [0.1307], [5, 0, 4, 1]),
}
HERE = [name for name in KNOWN if [*FOLDER.glob(f"{name}.zip"), *FOLDER.glob(f"{name}-*.zip")]]


@pytest.mark.parametrize("name", ["digits", *(pytest.param(name, marks=pytest.mark.slow) for name in HERE)])
def test_real_data_are_the_original_pixels_of_known_sizes_means_and_order(name):
    loaded = load(name, source=FOLDER if FOLDER.exists() else None, progress=False)
    images, n_train, mean, first = KNOWN[name]
    assert loaded.identity == "original pixels"
    assert (len(loaded.images), loaded.n_train) == (images, n_train)
    assert loaded.mean == pytest.approx(mean, abs=5e-4)
    assert loaded.labels[:4].tolist() == first
    assert sorted(set(loaded.labels.tolist())) == [*range(len(loaded.classes))]


@pytest.mark.slow
def test_published_checksums_are_those_that_torchvision_holds_to():
    from torchvision import datasets

    def ours(name: str) -> set[tuple[str, str]]:
        return {(file.name, file.md5) for file in DATASETS[name].files}

    for name, theirs in (("cifar10", datasets.CIFAR10), ("cifar100", datasets.CIFAR100)):
        assert ours(name) == {(theirs.filename, theirs.tgz_md5)}
    assert ours("mnist") == set(datasets.MNIST.resources)
    for name in ("emnist_byclass", "emnist_balanced"):
        assert ours(name) == {("gzip.zip", datasets.EMNIST.md5)}
