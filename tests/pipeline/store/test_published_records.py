"""The rows that git keeps."""

from __future__ import annotations

from collections import Counter

import pytest

from pipeline.store.ledger import PUBLISHED
from pipeline.store.records import read_heads
from tests.repository import ROOT

FILES = sorted((ROOT / PUBLISHED).glob("*.jsonl"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_row_is_as_it_was_written_of_its_file_s_table_and_there_once(file):
    damaged: list[str] = []
    rows = list(read_heads(file, lambda place, reason: damaged.append(f"{place}: {reason}")))
    assert damaged == []
    lacking = [place.line for place, _, checksum in rows if checksum is None]
    assert lacking == [], f"`pfl ledger import {file.relative_to(ROOT)}` adds the checksums"
    assert {row.table for _, row, _ in rows} == {file.stem}
    times = Counter(checksum for *_, checksum in rows)
    assert max(times.values()) == 1, times.most_common(1)
