"""CSV files: every line is read or named."""

from __future__ import annotations

from pathlib import Path

import pytest

from pfl.core.errors import InvalidInput
from pipeline.spec.csv_file import read_csv


def test_a_file_from_a_spreadsheet_is_read(tmp_path: Path):
    (tmp_path / "mine.csv").write_bytes(b"\xef\xbb\xbfcell,gain\r\na,1\r\n")
    assert read_csv(tmp_path / "mine.csv", dict, ["cell"]) == [{"cell": "a", "gain": "1"}]


@pytest.mark.parametrize(
    ("content", "line", "cause"),
    [
        (b"cell\na\n", 1, "no column gain"),
        (b"cell,gain,cell\na,1,b\n", 1, "duplicate column"),
        (b"cell,gain\na,1\nb\n", 3, "number of fields differs"),
        (b"cell,gain\na,1\nb,x\n", 3, "could not convert string to float"),
        (b"", 1, "no column cell"),
    ],
)
def test_a_mistake_is_named_with_its_line(content, line, cause, tmp_path):
    file = tmp_path / "mine.csv"
    file.write_bytes(content)
    with pytest.raises(InvalidInput, match=rf"mine\.csv:{line}: the line .*columns cell, gain \({cause}"):
        read_csv(file, lambda row: float(row["gain"]), ["cell", "gain"])
