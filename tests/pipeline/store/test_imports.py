"""Rows of other machines, and of versions that wrote no checksums."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from pfl.core.errors import InvalidInput
from pfl.engine.metrics import json_ready
from pfl.run.trials import Record
from pipeline.store.imports import import_records
from pipeline.store.ledger import Ledger
from pipeline.store.refusals import Refusal, refuse
from tests.pipeline.conftest import SOURCES, fake_run, metrics_of, scheduler_of
from tests.pipeline.fake_results import failed_row
from tests.pipeline.running import LOCAL, PUBLISHED, json_lines
from tests.pipeline.store.conftest import stamped


@pytest.fixture
def rows_file(project: Path, row: Record):
    """Writes rows as another machine would, with changes, to a file."""

    def write(**changes) -> Path:
        file = project / "rows.jsonl"
        file.write_text(json.dumps({**stamped(row).to_json(), **changes}) + "\n")
        return file

    return write


def test_imported_rows_are_found_and_published_once(rows_file, row):
    assert import_records([rows_file()]) == 1
    assert Ledger(SOURCES).get(row.key)
    assert [line["key"] for line in json_lines(PUBLISHED)] == [row.key]
    assert import_records([rows_file()]) == 0


def test_rows_from_a_plain_copy_of_these_sources_count_as_theirs(rows_file, row):
    assert import_records([rows_file(commit="unknown", dirty=True)]) == 1
    assert Ledger(SOURCES).get(row.key).sources.commit == SOURCES.commit


def test_rows_of_another_commit_with_these_sources_keep_it(rows_file, row):
    assert import_records([rows_file(commit="b" * 40)]) == 1
    assert Ledger(SOURCES).get(row.key).sources.commit == "b" * 40


def test_rows_of_other_files_that_are_in_no_commit_count_but_are_not_published(rows_file, row):
    assert import_records([rows_file(dirty=True, sources="2" * 64)]) == 1
    assert Ledger(SOURCES).get(row.key)
    assert not PUBLISHED.exists()


def test_rows_of_two_tables_are_imported_into_the_file_of_each(project, ledger):
    shutil.copy(project / "tables/small.yaml", project / "tables/other.yaml")
    scheduler = scheduler_of(ledger)
    first, second = (stamped(fake_run(scheduler.next())[0]) for _ in range(2))
    second = dataclasses.replace(second, table="other")
    (project / "rows.jsonl").write_text(
        "".join(json.dumps(record.to_json()) + "\n" for record in (first, second))
    )
    assert import_records([project / "rows.jsonl"]) == 2
    files = (LOCAL, LOCAL.with_name("other.jsonl"), PUBLISHED, PUBLISHED.with_name("other.jsonl"))
    assert [[line["key"] for line in json_lines(file)] for file in files] == [[first.key], [second.key]] * 2


def test_rows_of_failed_trials_are_left_out_which_is_said(rows_file, row, caplog):
    file = rows_file()
    failed = failed_row({**json.loads(file.read_text()), "key": row.key})
    file.write_text(file.read_text() + json.dumps(failed) + "\n")
    assert import_records([file]) == 1
    assert caplog.messages == [f"{file}: ignored records of failed trials: 1"]
    assert len(json_lines(LOCAL)) == 1


@pytest.mark.parametrize("commit", ["0" * 40, "b" * 40])
def test_a_refused_row_is_not_imported_again_which_is_said(commit, rows_file, row, caplog, monkeypatch):
    file = rows_file(commit="unknown", dirty=True)
    import_records([file])
    (line,) = json_lines(LOCAL)
    refuse([Refusal("small", row.cell, "0", row.key, line["checksum"], "off by 3 points")])
    now = dataclasses.replace(SOURCES, commit=commit)
    monkeypatch.setattr("pipeline.store.imports.current_sources", lambda *_: now)
    assert import_records([file]) == 0
    assert caplog.messages == [f"{file}: ignored records that are refused in results/ledger/refused.csv: 1"]
    assert Ledger(now).get(row.key) is None
    assert json_lines(LOCAL) == [line]


def test_an_imported_row_with_a_checksum_is_compared_with_it(rows_file, row):
    file = rows_file()
    line = stamped(row).to_line()
    file.write_bytes(line.replace(b'"pooled":8', b'"pooled":9', 1) + b"\n")
    with pytest.raises(InvalidInput, match=r"rows\.jsonl:1: checksum: .* checksum of the record"):
        import_records([file])
    assert not LOCAL.exists()
    file.write_bytes(line + b"\n")
    assert import_records([file]) == 1


def test_rows_of_a_figure_are_imported(project, rows_file):
    (project / "papers/mine/figures").mkdir(parents=True)
    (project / "papers/mine/figures/curves.yaml").touch()
    assert import_records([rows_file(table="curves")]) == 1
    assert len(json_lines(PUBLISHED.with_name("curves.jsonl"))) == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seed": 7}, "rows.jsonl:1: key:"),
        ({"table": "smal"}, "did you mean 'small'?"),
        ({"table": "../small"}, "rows.jsonl:1: table: ../small is not accepted"),
        ({"behaviour": "fedavg-0"}, "rows.jsonl:1: key:"),
        ({"config": {}}, "the line is not accepted; expected a record of the ledger"),
        ({"config": {"method": "fedavg", "hyperparameters": []}}, "the line is not accepted"),
        ({"metrics": []}, "the line is not accepted; expected a record of the ledger"),
        ({"table": 5}, "a record of the ledger: no record (Expected `str`, got `int` - at `$.table`)"),
        (
            {"metrics": json_ready(dataclasses.replace(metrics_of(80), per_client=()))},
            "a record of the ledger: no client has an accuracy",
        ),
    ],
)
def test_a_row_that_cannot_be_trusted_is_refused_and_nothing_is_added(rows_file, changes, said):
    with pytest.raises(InvalidInput, match=r"rows\.jsonl") as caught:
        import_records([rows_file(**changes)])
    assert said in str(caught.value)
    assert not LOCAL.exists()


def test_a_row_with_the_default_of_a_removed_hyperparameter_is_imported_and_no_other(rows_file, former):
    usual, other = former
    with pytest.raises(InvalidInput, match=rf"key: {other.key} is not accepted; expected {usual.key}"):
        import_records([rows_file(**other.to_json())])
    assert import_records([rows_file(**usual.to_json())]) == 1
    assert Ledger(SOURCES).get(usual.key).config == usual.config


def test_intact_rows_of_another_version_are_left_out_which_is_said(rows_file, row, former, caplog):
    _, other = former
    gone = dataclasses.replace(row, config={**row.config, "method": "gone"})
    file = rows_file()
    file.write_bytes(b"".join(stamped(each).to_line() + b"\n" for each in (other, row, gone)))
    assert import_records([file]) == 1
    assert caplog.messages == [f"{file}: ignored records of other versions: 2"]
    assert [line["key"] for line in json_lines(LOCAL)] == [row.key]


def test_of_several_files_a_damaged_one_is_named_and_none_is_added(rows_file, project):
    whole, damaged = rows_file(), project / "damaged.jsonl"
    damaged.write_bytes(whole.read_bytes().replace(b'"seed": 0', b'"seed": 1'))
    with pytest.raises(InvalidInput, match=r"damaged\.jsonl:1: key: "):
        import_records([whole, damaged])
    assert not LOCAL.exists()


@pytest.mark.parametrize(
    "left", [lambda line: line[: len(line) // 2], lambda line: line[:-2], lambda _: b"\0\0"]
)
def test_a_line_that_was_cut_off_is_ignored_which_is_said(rows_file, caplog, left):
    file = rows_file()
    line = file.read_bytes()
    for content in (line + left(line), line + left(line) + b"\n" + line):
        file.write_bytes(content)
        import_records([file])
        assert caplog.messages.pop() == f"{file}: ignored incomplete lines: 1"
        caplog.clear()
    assert len(json_lines(LOCAL)) == 1


def test_a_record_in_two_files_is_imported_once(rows_file, project):
    copy = shutil.copy(rows_file(), project / "copy.jsonl")
    assert import_records([project / "rows.jsonl", copy]) == 1
    assert len(json_lines(LOCAL)) == 1


@pytest.mark.parametrize("content", [b"PK\x03\x04\xff\xfe", b"[" * 100_000])
def test_a_file_of_something_else_is_refused(project, content):
    (project / "photos.zip").write_bytes(content)
    with pytest.raises(InvalidInput, match=r"photos\.zip.* expected a (file of records|record of)"):
        import_records([project / "photos.zip"])
