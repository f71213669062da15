"""The ledger: what is kept, what is found again and what is not believed."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from pfl.errors import InvalidInput
from pipeline.store.ledger import Ledger, import_rows, publish
from pipeline.store.workspace import Sources
from tests.pipeline.conftest import SOURCES, fake_run, scheduler_of

LOCAL = Path(".sweeps/ledger/small.jsonl")
PUBLISHED = Path("results/ledger/small.jsonl")

EDITED = dataclasses.replace(SOURCES, dirty=True)


@pytest.fixture
def row(ledger) -> dict:
    """A row as a worker returns it."""
    return fake_run(scheduler_of(ledger).next())[0]


def here(_: str) -> Sources:
    """The code here, whichever table it runs."""
    return SOURCES


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_row_is_on_disk_as_soon_as_it_is_appended(ledger, row):
    ledger.append(row)
    assert lines(LOCAL) == [SOURCES.stamp(row)]
    assert Ledger(SOURCES).get(row["key"])["metrics"] == row["metrics"]


def test_a_row_is_found_in_the_file_of_any_table_and_in_either_folder(ledger, row):
    ledger.append({**row, "table": "another"})
    publish("another")
    Path(".sweeps/ledger/another.jsonl").unlink()
    assert Ledger(SOURCES).get(row["key"])["table"] == "another"


def test_a_row_with_an_error_is_kept_but_never_served(ledger, row):
    failed = {name: value for name, value in row.items() if name != "metrics"} | {"error": "ValueError: no"}
    ledger.append(failed)
    assert ledger.get(row["key"]) is None
    assert Ledger(SOURCES).get(row["key"]) is None
    assert lines(LOCAL)[0]["error"] == "ValueError: no"


def test_a_line_that_was_cut_off_is_told_and_costs_only_itself(ledger, row):
    ledger.append(row)
    with LOCAL.open("a") as file:
        file.write('{"key": "abc", "metr')
    reopened = Ledger(SOURCES)
    assert reopened.damaged == [f"{LOCAL}:2"]
    other = {**row, "key": "0" * 64}
    reopened.append(other)
    again = Ledger(SOURCES)
    assert again.get(row["key"])
    assert again.get(other["key"])
    assert again.damaged == [f"{LOCAL}:2"]


def test_a_key_can_have_a_row_with_further_moments(ledger, row):
    first = {**row["metrics"]["rounds"][0], "round": 1}
    short = {name: value for name, value in first.items() if name != "post_local"}
    partial, whole = (
        {**row, "metrics": {**row["metrics"], "rounds": [entry, *row["metrics"]["rounds"]]}}
        for entry in (short, first)
    )
    ledger.append(partial)
    assert ledger.get(row["key"], ["post_aggregation"])["metrics"] == partial["metrics"]
    assert ledger.get(row["key"], ["post_local"]) is None
    assert not ledger.has(whole)
    ledger.append(whole)
    assert ledger.get(row["key"], ["post_local"])["metrics"] == whole["metrics"]
    assert ledger.has(partial)
    publish("small")
    assert [found["metrics"] for found in lines(PUBLISHED)] == [partial["metrics"], whole["metrics"]]


def test_publishing_adds_what_is_missing_and_removes_nothing(ledger, row):
    PUBLISHED.parent.mkdir(parents=True)
    PUBLISHED.write_text(json.dumps(SOURCES.stamp({**row, "key": "e" * 64})) + "\n")
    ledger.append(row)
    publish("small")
    publish("small")
    assert [found["key"] for found in lines(PUBLISHED)] == ["e" * 64, row["key"]]


def test_a_published_file_that_a_checkout_has_shortened_loses_no_row(ledger, row):
    ledger.append(row)
    publish("small")
    PUBLISHED.unlink()
    assert Ledger(SOURCES).get(row["key"])
    publish("small")
    assert [found["key"] for found in lines(PUBLISHED)] == [row["key"]]


def test_a_row_of_an_edited_tree_says_so_and_is_not_published(row):
    Ledger(EDITED).append(row)
    publish("small")
    assert lines(LOCAL)[0]["dirty"]
    assert not PUBLISHED.exists()


def test_a_row_counts_for_all_code_that_does_the_same(row):
    # What the code does is in its key, whatever the files say.
    Ledger(EDITED).append(row)
    assert Ledger(dataclasses.replace(SOURCES, sources="2" * 64)).get(row["key"])


@pytest.fixture
def rows_file(project: Path, row: dict):
    """Writes rows as another machine would, with changes, to a file."""

    def write(**changes) -> Path:
        file = project / "rows.jsonl"
        file.write_text(json.dumps({**SOURCES.stamp(row), **changes}) + "\n")
        return file

    return write


def test_imported_rows_are_found_and_published_once(rows_file, row):
    assert import_rows(rows_file(), here) == 1
    assert Ledger(SOURCES).get(row["key"])
    assert [found["key"] for found in lines(PUBLISHED)] == [row["key"]]
    assert import_rows(rows_file(), here) == 0


def test_rows_from_a_plain_copy_of_these_sources_count_as_theirs(rows_file, row):
    assert import_rows(rows_file(commit="unknown", dirty=True), here) == 1
    assert Ledger(SOURCES).get(row["key"])["commit"] == SOURCES.commit


def test_rows_of_other_files_that_are_in_no_commit_count_but_are_not_published(rows_file, row):
    assert import_rows(rows_file(dirty=True, sources="2" * 64), here) == 1
    assert Ledger(SOURCES).get(row["key"])
    assert not PUBLISHED.exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seed": 7}, "rows.jsonl:1: key:"),
        ({"table": "smal"}, "did you mean 'small'?"),
        ({"table": "../small"}, "rows.jsonl:1: table: ../small is not accepted"),
        ({"behaviour": "fedavg-0"}, "rows.jsonl:1: key:"),
        ({"config": {}}, "a row of a ledger with its metrics"),
        ({"config": {"method": "fedavg", "hyperparameters": []}}, "a row of a ledger with its metrics"),
        ({"metrics": []}, "a row of a ledger with its metrics"),
        ({"table": 5}, "rows.jsonl:1: table: 5 is not accepted"),
    ],
)
def test_a_row_that_cannot_be_trusted_is_refused_and_nothing_is_added(rows_file, changes, said):
    with pytest.raises(InvalidInput, match=r"rows\.jsonl") as caught:
        import_rows(rows_file(**changes), here)
    assert said in str(caught.value)
    assert not LOCAL.exists()


@pytest.mark.parametrize("content", [b"PK\x03\x04\xff\xfe", b"[" * 100_000])
def test_a_file_of_something_else_is_refused(project, content):
    (project / "photos.zip").write_bytes(content)
    with pytest.raises(
        InvalidInput, match=r"photos\.zip.* is not accepted; expected a (file of rows|row of)"
    ):
        import_rows(project / "photos.zip", here)
