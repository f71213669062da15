"""The ledger: what is kept, what is found again and what is not believed."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import islice
from pathlib import Path

import pytest

from pfl.core.errors import InvalidInput
from pfl.core.files import append_lines, folder_lock
from pfl.engine.metrics import json_ready
from pfl.run.trials import Record, split_checksum
from pipeline.store import records
from pipeline.store.imports import import_records
from pipeline.store.ledger import Ledger, publish
from pipeline.store.records import read_record
from pipeline.store.refusals import FILE, Refusal, refusals, refuse
from tests.pipeline.conftest import SOURCES, fake_run, finish, metrics_of, scheduler_of, with_metrics
from tests.pipeline.running import LOCAL, PUBLISHED, json_lines
from tests.pipeline.store.conftest import stamped

EDITED = dataclasses.replace(SOURCES, dirty=True)


@pytest.fixture
def other(ledger) -> Record:
    """A record of another trial."""
    first, second = islice(iter(scheduler_of(ledger).next, None), 2)
    assert first.keys != second.keys
    return fake_run(second)[0]


def test_a_row_is_on_disk_as_soon_as_it_is_appended(ledger, row):
    ledger.append(row)
    assert LOCAL.read_bytes() == stamped(row).to_line() + b"\n"
    assert json_lines(LOCAL)[0].items() > stamped(row).to_json().items()
    assert Ledger(SOURCES).get(row.key) == stamped(row)


def test_a_record_is_decoded_when_it_is_asked_for(ledger, row, monkeypatch):
    ledger.append(row)
    decoded = []
    monkeypatch.setattr(records, "read_record", lambda line: decoded.append(line) or read_record(line))
    reopened = Ledger(SOURCES)
    assert [known.key for known in reopened.heads("small")] == [row.key]
    assert reopened.get("0" * 64) is None
    assert decoded == []
    assert reopened.get(row.key) == stamped(row)
    assert len(decoded) == 1


def test_a_row_is_found_in_the_file_of_any_table_and_in_either_folder(ledger, row):
    ledger.append(dataclasses.replace(row, table="another"))
    publish("another")
    Path(".sweeps/ledger/another.jsonl").unlink()
    assert Ledger(SOURCES).get(row.key).table == "another"


def test_a_row_that_came_with_results_is_served_and_kept_after_they_are_written_anew(row, other):
    failed = dataclasses.replace(other, result=None, error="ValueError: no")
    pulled = Path("results/another/rows.jsonl")
    pulled.parent.mkdir(parents=True)
    pulled.write_bytes(b"".join(stamped(record).to_line() + b"\n" for record in (row, failed)))
    assert Ledger(SOURCES).get(row.key) == stamped(row)
    pulled.unlink()
    assert Ledger(SOURCES).get(row.key) == stamped(row)
    assert LOCAL.read_bytes() == stamped(row).to_line() + b"\n"


@pytest.mark.parametrize("table", ["../escaped", ".."])
def test_a_row_that_came_with_results_is_ignored_if_its_table_is_not_a_name(row, table):
    pulled = Path("results/another/rows.jsonl")
    pulled.parent.mkdir(parents=True)
    pulled.write_bytes(stamped(dataclasses.replace(row, table=table)).to_line() + b"\n")
    ledger = Ledger(SOURCES)
    assert ledger.get(row.key) is None
    assert [damage.reason for damage in ledger.damaged] == [f"{table!r} is not the name of a table"]
    assert not LOCAL.parent.exists()


def test_a_row_with_an_error_is_kept_but_never_served(ledger, row):
    ledger.append(dataclasses.replace(row, result=None, error="ValueError: no"))
    assert ledger.get(row.key) is None
    assert Ledger(SOURCES).get(row.key) is None
    assert json_lines(LOCAL)[0]["error"] == "ValueError: no"


def test_what_is_known_of_a_key_is_its_result_or_else_its_last_failure(ledger, row):
    failed = dataclasses.replace(row, result=None, error="ValueError: no")
    ledger.append(failed)
    assert ledger.find(row.key).failure == "ValueError: no"
    ledger.append(row)
    ledger.append(failed)
    assert ledger.find(row.key) == stamped(row)
    assert ledger.find("0" * 64) is None


def test_a_line_that_was_cut_off_is_told_and_costs_only_itself(ledger, row, other):
    ledger.append(row)
    with LOCAL.open("ab") as file:
        file.write(other.to_line()[:-100])
    reopened = Ledger(SOURCES)
    (message,) = map(str, reopened.damaged)
    assert message.startswith(f"{LOCAL}:2: not a record")
    assert message.endswith(f"(key {other.key})")
    reopened.append(other)
    again = Ledger(SOURCES)
    assert again.get(row.key)
    assert again.get(other.key)
    assert list(map(str, again.damaged)) == [message]


@pytest.mark.parametrize("replace", [Path.unlink, lambda path: path.write_bytes(b'{"key":"another"}\n')])
def test_a_row_that_was_read_keeps_its_line_although_its_file_is_replaced(ledger, row, other, replace):
    rows = [ledger.append(row), ledger.append(dataclasses.replace(other, result=None, error="no"))]
    reopened = Ledger(SOURCES)
    read = [reopened.find(row.key) for row in rows]
    replace(LOCAL)
    assert list(map(reopened.line, read)) == [row.to_line() for row in rows]
    assert list(reopened.heads("small")) == []
    assert reopened.get(row.key) is None
    assert [damage.position.line for damage in reopened.damaged] == [1, 2]


def other_key(line: bytes) -> bytes:
    return line.replace(b'{"key":"' + line[8:9], b'{"key":"' + (b"0" if line[8:9] != b"0" else b"1"))


CHANGES = {
    "a digit of an accuracy": lambda line: line.replace(b'"pooled":8', b'"pooled":9', 1),
    "a digit of a duration": lambda line: line.replace(b'"wall_seconds":0.5', b'"wall_seconds":0.6'),
    "the key": other_key,
    "the seed": lambda line: line.replace(b'"seed":0', b'"seed":1'),
    "an option": lambda line: line.replace(b'"lr":0.05', b'"lr":0.06'),
    "the checksum": lambda line: line[:-3] + (b"0" if line[-3:-2] != b"0" else b"1") + line[-2:],
    "the checksum's end": lambda line: line[:-2],
    "a bracket": lambda line: line.replace(b'"plugins":[]', b'"plugins":[}'),
    "a field's name": lambda line: line.replace(b'"metrics"', b'"metrica"'),
    "a byte, and no checksum": lambda line: (
        line.replace(b'"phase"', b'"ph\xffse"').rpartition(b",")[0] + b"}"
    ),
    "brackets, and no checksum": lambda line: line[:80] + b"[" * 100_000,
    "a byte": lambda line: line.replace(b'"phase"', b'"ph\xffse"'),
}


@pytest.mark.parametrize("changed", CHANGES.values(), ids=list(CHANGES))
def test_a_row_that_was_changed_is_told_in_a_line_and_its_trial_runs_again(ledger, row, caplog, changed):
    ledger.append(row)
    line = LOCAL.read_bytes()
    LOCAL.write_bytes(changed(line.rstrip()) + b"\n")
    assert LOCAL.read_bytes() != line
    reopened = Ledger(SOURCES)
    assert reopened.get(row.key) is None
    assert list(reopened.successes("small")) == []
    (message,) = map(str, reopened.damaged)
    key = LOCAL.read_bytes()[8:72].decode()
    assert message.startswith(f"{LOCAL}:1: ")
    assert message.endswith(f"(key {key})")
    assert caplog.messages == [f"ledger: {message}; ignored; its trial runs again if it is needed"]
    ran = finish(scheduler_of(reopened))
    assert sum(row.key in trial.keys for trial in ran) == 1
    publish("small")
    assert json_lines(PUBLISHED)[-1]["key"] != key


def test_a_row_whose_key_is_not_that_of_its_content_is_told_when_it_is_asked_for(ledger, row, other, caplog):
    ledger.append(dataclasses.replace(row, key=other.key))
    reopened = Ledger(SOURCES)
    assert reopened.damaged == []
    assert reopened.get(other.key) is reopened.get(other.key) is None
    (message,) = map(str, reopened.damaged)
    assert message == f"{LOCAL}:1: of another version: its content has the key {row.key} (key {other.key})"
    assert len(caplog.messages) == 1


def test_a_row_with_the_default_of_a_removed_hyperparameter_is_served_and_no_other(ledger, row, former):
    usual, other = former
    assert usual.key == row.key != other.key
    ledger.append(other)
    assert Ledger(SOURCES).get(row.key) is None
    ledger.append(usual)
    publish("small")
    assert [line["key"] for line in json_lines(PUBLISHED)] == [row.key]
    reopened = Ledger(SOURCES)
    assert reopened.get(row.key) == stamped(usual)
    assert reopened.get(other.key) is None
    (message,) = map(str, reopened.damaged)
    assert message == f"{LOCAL}:1: of another version: its content has the key {row.key} (key {other.key})"
    reopened.append(dataclasses.replace(other, key=row.key))  # a key that was not made from its content
    assert Ledger(SOURCES).get(row.key) == stamped(usual)


def test_a_row_that_occurs_twice_counts_once(ledger, row):
    ledger.append(row)
    LOCAL.write_bytes(2 * LOCAL.read_bytes())
    reopened = Ledger(SOURCES)
    assert reopened.get(row.key) == stamped(row)
    assert reopened.damaged == []
    publish("small")
    assert len(json_lines(PUBLISHED)) == 1


def test_a_row_that_one_file_has_as_it_was_written_is_served_although_another_is_damaged(ledger, row):
    ledger.append(row)
    publish("small")
    PUBLISHED.write_bytes(PUBLISHED.read_bytes().replace(b'"pooled":8', b'"pooled":9'))
    reopened = Ledger(SOURCES)
    assert len(reopened.damaged) == 1
    assert reopened.get(row.key) == stamped(row)
    publish("small")
    assert [line["metrics"] == json_ready(row.metrics) for line in json_lines(PUBLISHED)] == [False, True]


def test_a_row_without_a_checksum_is_not_used_until_it_is_imported(ledger, row, caplog):
    ledger.append(row)
    without_checksums(LOCAL)
    assert Ledger(SOURCES).get(row.key) is None
    assert caplog.messages == [
        f"ledger: {LOCAL}: records without a checksum, not used: 1; "
        f"`pfl ledger import {LOCAL}` checks and adds them"
    ]
    assert import_records([LOCAL]) == 1
    caplog.clear()
    assert Ledger(SOURCES).get(row.key) == stamped(row)
    assert caplog.messages == []


def without_checksums(file: Path) -> None:
    file.write_bytes(b"".join(split_checksum(line)[0] + b"\n" for line in file.read_bytes().splitlines()))


def test_a_refused_row_is_kept_and_not_served_and_the_row_of_another_run_is(ledger, row):
    ledger.append(row)
    publish("small")
    (line,) = json_lines(PUBLISHED)
    refuse([Refusal("small", row.cell, "0", row.key, line["checksum"], "off by 3 points")])
    reopened = Ledger(SOURCES)
    assert reopened.get(row.key) is None
    assert reopened.refused == {row.key: "off by 3 points"}
    again = with_metrics(row, rounds=metrics_of(12.5).rounds)
    reopened.append(again)
    publish("small")
    assert Ledger(SOURCES).get(row.key).metrics == again.metrics
    assert [line["key"] for line in json_lines(PUBLISHED)] == [row.key, row.key]


def test_a_list_of_refused_rows_that_is_damaged_is_one_line(project):
    (project / "results/ledger").mkdir(parents=True)
    for content in (b"", b"key\n", b"table,cell,seed,key,checksum,reason\na,b\n", b"\xff"):
        (project / "results/ledger/refused.csv").write_bytes(content)
        with pytest.raises(InvalidInput, match=r"refused\.csv:\d: the line .* the columns table, cell"):
            Ledger(SOURCES)


def test_the_rows_of_a_table_are_read_without_their_numbers(ledger, row, other):
    ledger.append(row)
    publish("small")
    reopened = Ledger(SOURCES)
    reopened.append(other)
    reopened.append(dataclasses.replace(other, result=None, error="ValueError: no"))
    assert {(known.key, known.cell, known.seed) for known in reopened.heads("small")} == {
        (record.key, record.cell, record.seed) for record in (row, other)
    }
    assert list(reopened.heads("another")) == []


def test_a_key_can_have_a_row_with_further_moments(ledger, row):
    (last,) = row.metrics.rounds
    partial, whole = (
        with_metrics(row, rounds=(first, last))
        for first in (dataclasses.replace(last, round=1, post_local=None), dataclasses.replace(last, round=1))
    )
    ledger.append(partial)
    assert ledger.get(row.key).metrics == partial.metrics
    assert ledger.get(row.key, lambda known: "post_local" in known.metrics.always) is None
    assert not ledger.has(whole)
    ledger.append(whole)
    assert ledger.get(row.key, lambda known: "post_local" in known.metrics.always).metrics == whole.metrics
    assert ledger.has(partial)
    publish("small")
    kept = [json_ready(partial.metrics), json_ready(whole.metrics)]
    assert [line["metrics"] for line in json_lines(PUBLISHED)] == kept


def test_publishing_adds_what_is_missing_and_removes_nothing(ledger, row):
    PUBLISHED.parent.mkdir(parents=True)
    PUBLISHED.write_bytes(dataclasses.replace(stamped(row), key="e" * 64).to_line() + b"\n")
    ledger.append(row)
    publish("small")
    publish("small")
    assert [line["key"] for line in json_lines(PUBLISHED)] == ["e" * 64, row.key]


def test_processes_that_publish_one_table_take_turns(ledger, row):
    ledger.append(row)
    with ThreadPoolExecutor() as pool:
        with folder_lock(PUBLISHED.parent):
            other = pool.submit(publish, "small")
            wait([other], timeout=0.2)
            append_lines(PUBLISHED, [stamped(row).to_line()])
        other.result()
    assert [line["key"] for line in json_lines(PUBLISHED)] == [row.key]


@pytest.mark.usefixtures("project")
def test_processes_that_refuse_rows_take_turns():
    first, second = (Refusal("small", "dir/fedavg", seed, "key", f"checksum {seed}", "off") for seed in "01")
    refuse([first])
    content = FILE.read_text()
    FILE.unlink()
    with ThreadPoolExecutor() as pool:
        with folder_lock(FILE.parent):
            other = pool.submit(refuse, [second])
            wait([other], timeout=0.2)
            FILE.write_text(content)
        other.result()
    assert list(refusals().values()) == [first, second]


def test_a_published_file_that_a_checkout_has_shortened_loses_no_row(ledger, row):
    ledger.append(row)
    publish("small")
    PUBLISHED.unlink()
    assert Ledger(SOURCES).get(row.key)
    publish("small")
    assert [line["key"] for line in json_lines(PUBLISHED)] == [row.key]


def test_a_row_of_an_edited_tree_says_so_and_is_not_published(row):
    Ledger(EDITED).append(row)
    publish("small")
    assert json_lines(LOCAL)[0]["dirty"]
    assert not PUBLISHED.exists()


def test_a_row_counts_for_all_code_that_does_the_same(row):
    # What the code does is in its key, whatever the files say.
    Ledger(EDITED).append(row)
    assert Ledger(dataclasses.replace(SOURCES, sources="2" * 64)).get(row.key)
