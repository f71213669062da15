"""Files are whole or not there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pfl.errors import InvalidInput
from pfl.files import append_lines, cache_root, check_writable, read_lines, replacing, write_text


def test_a_pipe_is_written_to_and_stays_one(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    check_writable(pipe, "save")
    write_text(pipe, "text")
    assert os.read(reader, 10) == b"text"
    assert pipe.is_fifo()
    os.close(reader)


def test_a_file_that_cannot_be_written_stays_what_it_was(tmp_path):
    file = tmp_path / "results.json"
    write_text(file, "old")
    (tmp_path / "results.json.partial").symlink_to("/dev/full")
    with pytest.raises(InvalidInput, match=r"results\.json is not accepted; .*\(No space left on device\)"):
        write_text(file, "new")
    assert file.read_text() == "old"


def test_what_is_being_written_is_not_seen(tmp_path):
    file = tmp_path / "results.json"
    with replacing(file) as out:
        out.write(b"half")
        assert not file.exists()
    assert file.read_bytes() == b"half"


def test_what_cannot_be_written_is_found_out_beforehand(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match=r"file/models\.pt is not accepted"):
        check_writable(tmp_path / "file/models.pt", "save")
    (tmp_path / "other.json.partial").mkdir()
    with pytest.raises(InvalidInput, match=r"other\.json is not accepted"):
        check_writable(tmp_path / "other.json", "save")
    with pytest.raises(InvalidInput, match="Is a directory"):
        check_writable(Path(), "save")
    check_writable(tmp_path / "folder/models.pt", "save")
    assert not (tmp_path / "folder/models.pt").exists()


def test_a_full_disk_is_waited_for_and_leaves_no_half_line(tmp_path, monkeypatch, caplog):
    file = tmp_path / "rows.jsonl"
    append_lines(file, [{"key": "a"}])
    file.rename(tmp_path / "kept")
    file.symlink_to("/dev/full")

    def free_some(_seconds: float) -> None:
        file.unlink()
        (tmp_path / "kept").rename(file)

    monkeypatch.setattr("time.sleep", free_some)
    with pytest.raises(InvalidInput, match="No space left on device"):
        append_lines(file, [{"key": "b"}])
    append_lines(file, [{"key": "b"}], wait=True)
    assert list(read_lines(file)) == [{"key": "a"}, {"key": "b"}]
    assert "rows.jsonl: no space left on the disk; waiting for space" in caplog.text


def test_lines_that_are_none_are_told_and_cost_only_themselves(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b'{"key": "a"}\n\x00\x00\xff\n[1]\n{"other": 1}\n\n{"key": "b')
    append_lines(file, [{"key": "c"}])
    damaged: list[str] = []
    assert [row["key"] for row in read_lines(file, damaged)] == ["a", "c"]
    assert damaged == [f"{file}:{number}" for number in (2, 3, 4, 6)]


def test_an_empty_name_of_the_cache_is_none(monkeypatch):
    monkeypatch.setenv("PFL_CACHE", "")
    assert cache_root() == Path.home() / ".cache" / "pfl-repro"
