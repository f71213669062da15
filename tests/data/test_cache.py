"""Folders in the cache that a process did not finish."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from pfl.core.files import remove_abandoned, scratch_folder
from pfl.data.cache import entry
from pfl.data.dataset import load
from tests.command import python

SLOW = """
import sys, time
from pfl.data import cache
from pfl.data.dataset import load
append = cache.ArrayWriter.append
def slow(*args, **options):
    append(*args, **options)
    print("decoding", flush=True)
    time.sleep(60)
cache.ArrayWriter.append = slow
load(sys.argv[1], progress=False)
"""


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_what_a_killed_process_left_half_decoded_is_removed_by_the_next(end, image_folder, own_cache):
    command = [sys.executable, "-c", SLOW, str(image_folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"decoding\n"
        (half,) = _data_sets(own_cache)
        load("digits", progress=False)
        assert half.is_dir()  # its process is at work
        process.send_signal(end)
    load("digits", progress=False)
    assert [path.name.partition("-")[0] for path in _data_sets(own_cache)] == ["digits"]


def _data_sets(cache: Path) -> list[Path]:
    """What the cache has of data sets; the digests of code lie beside them."""
    return [path for path in cache.iterdir() if path.name != "digests"]


def test_the_scratch_folder_of_a_killed_process_is_removed_and_one_in_use_is_kept(tmp_path):
    code = "import os, sys, signal; from pathlib import Path; from pfl.core.files import scratch_folder\n"
    code += "with scratch_folder(Path(sys.argv[1]), 'x-'): os.kill(os.getpid(), signal.SIGKILL)"
    python("-c", code, tmp_path, check=False)
    assert len([*tmp_path.iterdir()]) == 1
    with scratch_folder(tmp_path, "x-") as folder:
        remove_abandoned(tmp_path, "x-")
        assert [*tmp_path.iterdir()] == [folder]
    assert [*tmp_path.iterdir()] == []


def test_a_scratch_folder_that_a_process_still_writes_to_is_removed_later(tmp_path, monkeypatch):
    def busy(path: str | Path, remove=os.rmdir, **options: Any) -> None:
        if Path(path).name == "session":
            raise OSError(errno.ENOTEMPTY, "Directory not empty")
        remove(path, **options)

    with monkeypatch.context() as patch, scratch_folder(tmp_path, "x-") as folder:
        (folder / "session").mkdir()
        patch.setattr("os.rmdir", busy)
    assert folder.is_dir()
    remove_abandoned(tmp_path, "x-")
    assert not folder.exists()


def test_folders_without_a_lock_and_links_are_not_taken_for_abandoned(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/.lock").touch()
    (tmp_path / "x-other").mkdir()
    (tmp_path / "x-link").symlink_to(tmp_path / "mine")
    remove_abandoned(tmp_path, "x-")
    assert {path.name for path in tmp_path.iterdir()} == {"mine", "x-other", "x-link"}
    assert (tmp_path / "mine/.lock").exists()


def test_a_damaged_entry_that_another_process_has_created_again_is_left_to_it(own_cache):
    written = 0

    def write(folder: Path) -> None:
        nonlocal written
        written += 1
        (folder / "images.bin").write_text(f"whole {written}")

    def opened(folder: Path) -> str:
        text = (folder / "images.bin").read_text()
        if not text.startswith("whole"):
            raise ValueError(text)
        return text.split()[0]

    def late(folder: Path) -> str:
        """Reads the damaged entry, and goes on after another process has finished the new one."""
        try:
            return opened(folder)
        except ValueError:
            entry("digits", "key", write, opened)
            raise

    entry("digits", "key", write, opened)
    (file,) = own_cache.glob("digits-*/images.bin")
    file.write_text("half")
    assert entry("digits", "key", write, late) == "whole"
    assert (file.read_text(), written) == ("whole 2", 3)
    assert [path.name for path in own_cache.iterdir()] == [file.parent.name]


def test_processes_that_find_the_same_damage_at_once_all_get_the_new_entry(own_cache):
    damaged, at_once = own_cache / "digits-key", threading.Barrier(4)
    damaged.mkdir(parents=True)

    def write(folder: Path) -> None:
        (folder / "images.bin").write_text("whole")
        at_once.wait()  # all have found the damage

    def opened(folder: Path) -> str:
        return (folder / "images.bin").read_text()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: entry("digits", "key", write, opened), range(4))) == ["whole"] * 4
    assert [*own_cache.iterdir()] == [damaged]


def test_a_file_that_was_replaced_with_its_size_and_time_is_decoded_again(image_folder):
    path = image_folder / "train/cat/9.bmp"
    Image.new("RGB", (5, 4), "red").save(path)
    first, before = load(str(image_folder), progress=False), path.stat()
    Image.new("RGB", (5, 4), "blue").save(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    assert load(str(image_folder), progress=False).checksum != first.checksum
