"""Writes are atomic."""

from __future__ import annotations

import errno
import io
import os
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from pfl.core.errors import InvalidInput
from pfl.core.files import (
    ABANDONED_SECONDS,
    append_lines,
    cache_root,
    check_writable,
    folder_lock,
    publish,
    read_lines,
    replacing,
    scratch_folder,
    write_text,
)


def test_a_pipe_is_written_to_and_stays_one(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    check_writable(pipe, "save")
    write_text(pipe, "text")
    assert os.read(reader, 10) == b"text"
    assert pipe.is_fifo()
    os.close(reader)


def test_a_file_that_cannot_be_written_stays_what_it_was(tmp_path, fill_disk):
    file = tmp_path / "results.json"
    write_text(file, "old")
    fill_disk(file)
    with pytest.raises(InvalidInput, match=r"results\.json is not accepted; .*\(No space left on device\)"):
        write_text(file, "new")
    assert file.read_text() == "old"


def test_what_is_being_written_is_not_seen(tmp_path):
    file = tmp_path / "results.json"
    with replacing(file) as out:
        out.write(b"half")
        assert not file.exists()
    assert file.read_bytes() == b"half"


def test_processes_that_write_one_file_write_it_whole(tmp_path):
    file = tmp_path / "overview.md"
    with replacing(file) as out:
        out.write(b"the ")
        write_text(file, "second")
        assert file.read_text() == "second"
        out.write(b"first")
    assert file.read_text() == "the first"
    assert [*tmp_path.iterdir()] == [file]


def test_what_a_killed_process_left_is_removed_once_nobody_can_be_writing_it(tmp_path):
    file, other = tmp_path / "rows[1].csv", tmp_path / "rows1.csv.partial-0"
    old, new = (tmp_path / f"rows[1].csv.partial-{i}" for i in range(2))
    for left in (old, new, other):
        left.touch()
    for left in (old, other):
        os.utime(left, (0, 0))
    write_text(file, "text")
    assert {*tmp_path.iterdir()} == {file, new, other}


def test_what_a_process_writes_is_not_removed_by_one_whose_clock_is_ahead(tmp_path, monkeypatch):
    file = tmp_path / "rows.csv"
    ahead = time.time() + 2 * ABANDONED_SECONDS
    with replacing(file) as out:
        out.write(b"first")
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda: ahead)
            write_text(file, "second")
    assert file.read_text() == "first"


def test_what_cannot_be_written_is_found_out_beforehand(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match=r"file/models\.pt is not accepted"):
        check_writable(tmp_path / "file/models.pt", "save")
    with pytest.raises(InvalidInput, match="File name too long"):  # of the temporary file
        check_writable(tmp_path / (250 * "a"), "save")
    with pytest.raises(InvalidInput, match="Is a directory"):
        check_writable(Path(), "save")
    check_writable(tmp_path / "folder/models.pt", "save")
    assert not (tmp_path / "folder/models.pt").exists()


def test_a_full_disk_is_waited_for_and_leaves_no_half_line(tmp_path, monkeypatch, caplog):
    file = tmp_path / "rows.jsonl"
    append_lines(file, [b"a"])
    file.rename(tmp_path / "kept")
    file.symlink_to("/dev/full")

    def free_some(_seconds: float) -> None:
        file.unlink()
        (tmp_path / "kept").rename(file)

    monkeypatch.setattr("time.sleep", free_some)
    with pytest.raises(InvalidInput, match="No space left on device"):
        append_lines(file, [b"b"])
    append_lines(file, [b"b"], wait=True)
    assert [line.content for line in read_lines(file)] == [b"a", b"b"]
    assert "rows.jsonl: no space left on the disk; waiting for space" in caplog.text


def test_a_failed_append_removes_no_line_that_another_process_appends(tmp_path, monkeypatch):
    file, write = tmp_path / "rows.jsonl", io.FileIO.write
    file.write_bytes(b"a\n")
    others: list[Future[None]] = []

    class Full(io.FileIO):
        def write(self, data: Any) -> int:
            others.append(pool.submit(append_lines, file, [b"of another"]))
            wait(others, timeout=0.2)
            write(self, data[:1])
            raise OSError(errno.ENOSPC, "No space left on device")

    with ThreadPoolExecutor() as pool:
        with monkeypatch.context() as patch, pytest.raises(InvalidInput, match="No space left"):
            opened = iter([Full(file, "a+")])
            usual = Path.open
            patch.setattr(
                Path, "open", lambda *args, **options: next(opened, None) or usual(*args, **options)
            )
            append_lines(file, [b"b"])
        others[0].result()
    assert file.read_bytes() == b"a\nof another\n"


@pytest.mark.usefixtures("without_locks")
def test_a_folder_is_used_on_a_file_system_without_locks(tmp_path):
    with folder_lock(tmp_path / "folder"):
        assert (tmp_path / "folder").is_dir()


def test_a_line_that_was_cut_off_is_ended_before_the_next_is_added(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b"a\n\n\x00\r\nb")
    append_lines(file, [b"c"])
    assert list(read_lines(file)) == [(1, 0, b"a"), (3, 3, b"\x00"), (4, 6, b"b"), (5, 8, b"c")]
    assert list(read_lines(tmp_path / "none.jsonl")) == []


def test_an_empty_name_of_the_cache_is_none(monkeypatch):
    monkeypatch.setenv("PFL_CACHE", "")
    assert cache_root() == Path.home() / ".cache" / "pfl-repro"


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o755), (0o002, 0o775), (0o077, 0o700)])
def test_others_can_read_a_published_folder_as_far_as_the_umask_allows(umask, mode, tmp_path):
    before = os.umask(umask)
    try:
        with scratch_folder(tmp_path, "new-") as folder:
            publish(folder, tmp_path / "entry")
    finally:
        os.umask(before)
    assert (tmp_path / "entry").stat().st_mode & 0o777 == mode
