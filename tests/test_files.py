"""Files are whole or not there."""

from __future__ import annotations

import pytest

from pfl.errors import InvalidInput
from pfl.files import check_writable, replacing, write_text


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
        check_writable(tmp_path / "file/models.pt")
    check_writable(tmp_path / "folder/models.pt")
    assert not (tmp_path / "folder/models.pt").exists()
