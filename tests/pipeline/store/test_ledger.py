"""The ledger: what is kept, what is found again and what is not believed."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from pfl.engine.metrics import Metrics
from pfl.errors import InvalidInput
from pfl.trials import Failure, Record, Sources
from pipeline.store.ledger import Ledger, import_rows, publish
from tests.pipeline.conftest import SOURCES, fake_run, scheduler_of
from tests.pipeline.fake_results import failed_row

LOCAL = Path(".sweeps/ledger/small.jsonl")
PUBLISHED = Path("results/ledger/small.jsonl")

EDITED = dataclasses.replace(SOURCES, dirty=True)


@pytest.fixture
def row(ledger) -> Record:
    """A record as a worker returns it."""
    return fake_run(scheduler_of(ledger).next())[0]


def here(_: str) -> Sources:
    """The code here, whichever table it runs."""
    return SOURCES


def stamped(row: Record) -> Record:
    return dataclasses.replace(row, sources=SOURCES)


def with_metrics(row: Record, metrics: Metrics) -> Record:
    return dataclasses.replace(row, outcome=dataclasses.replace(row.success, metrics=metrics))


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_row_is_on_disk_as_soon_as_it_is_appended(ledger, row):
    ledger.append(row)
    assert lines(LOCAL) == [stamped(row).to_json()]
    assert Ledger(SOURCES).get(row.key) == stamped(row)


def test_a_row_is_found_in_the_file_of_any_table_and_in_either_folder(ledger, row):
    ledger.append(dataclasses.replace(row, table="another"))
    publish("another")
    Path(".sweeps/ledger/another.jsonl").unlink()
    assert Ledger(SOURCES).get(row.key).table == "another"


def test_a_row_with_an_error_is_kept_but_never_served(ledger, row):
    ledger.append(dataclasses.replace(row, outcome=Failure("ValueError: no")))
    assert ledger.get(row.key) is None
    assert Ledger(SOURCES).get(row.key) is None
    assert lines(LOCAL)[0]["error"] == "ValueError: no"


def test_what_is_known_of_a_key_is_its_result_or_else_its_last_failure(ledger, row):
    failed = dataclasses.replace(row, outcome=Failure("ValueError: no"))
    ledger.append(failed)
    assert ledger.find(row.key).failure == "ValueError: no"
    ledger.append(row)
    ledger.append(failed)
    assert ledger.find(row.key) == stamped(row)
    assert ledger.find("0" * 64) is None


@pytest.mark.parametrize(
    "damage", [{"metrics": []}, {"metrics": {}}, {"measured": None}, {"commit": None, "versions": 5}]
)
def test_a_line_of_another_form_is_told_and_passed_over(ledger, row, damage):
    ledger.append(row)
    with LOCAL.open("a") as file:
        file.write(json.dumps({**row.to_json(), "key": "f" * 64, **damage}) + "\n")
    reopened = Ledger(SOURCES)
    assert reopened.damaged == [f"{LOCAL}: key {'f' * 64}"]
    assert [record.key for record in reopened.successes] == [row.key]


def test_a_line_that_was_cut_off_is_told_and_costs_only_itself(ledger, row):
    ledger.append(row)
    with LOCAL.open("a") as file:
        file.write('{"key": "abc", "metr')
    reopened = Ledger(SOURCES)
    assert reopened.damaged == [f"{LOCAL}:2"]
    other = dataclasses.replace(row, key="0" * 64)
    reopened.append(other)
    again = Ledger(SOURCES)
    assert again.get(row.key)
    assert again.get(other.key)
    assert again.damaged == [f"{LOCAL}:2"]


def test_a_key_can_have_a_row_with_further_moments(ledger, row):
    (last,) = row.metrics.rounds
    short = {"post_aggregation": last.moments["post_aggregation"]}
    partial, whole = (
        with_metrics(row, dataclasses.replace(row.metrics, rounds=(first, last)))
        for first in (
            dataclasses.replace(last, round=1, moments=short),
            dataclasses.replace(last, round=1),
        )
    )
    ledger.append(partial)
    assert ledger.get(row.key, ["post_aggregation"]).metrics == partial.metrics
    assert ledger.get(row.key, ["post_local"]) is None
    assert not ledger.has(whole)
    ledger.append(whole)
    assert ledger.get(row.key, ["post_local"]).metrics == whole.metrics
    assert ledger.has(partial)
    publish("small")
    assert [line["metrics"] for line in lines(PUBLISHED)] == [
        partial.metrics.to_json(),
        whole.metrics.to_json(),
    ]


def test_publishing_adds_what_is_missing_and_removes_nothing(ledger, row):
    PUBLISHED.parent.mkdir(parents=True)
    PUBLISHED.write_text(json.dumps(dataclasses.replace(stamped(row), key="e" * 64).to_json()) + "\n")
    ledger.append(row)
    publish("small")
    publish("small")
    assert [line["key"] for line in lines(PUBLISHED)] == ["e" * 64, row.key]


def test_a_published_file_that_a_checkout_has_shortened_loses_no_row(ledger, row):
    ledger.append(row)
    publish("small")
    PUBLISHED.unlink()
    assert Ledger(SOURCES).get(row.key)
    publish("small")
    assert [line["key"] for line in lines(PUBLISHED)] == [row.key]


def test_a_row_of_an_edited_tree_says_so_and_is_not_published(row):
    Ledger(EDITED).append(row)
    publish("small")
    assert lines(LOCAL)[0]["dirty"]
    assert not PUBLISHED.exists()


def test_a_row_counts_for_all_code_that_does_the_same(row):
    # What the code does is in its key, whatever the files say.
    Ledger(EDITED).append(row)
    assert Ledger(dataclasses.replace(SOURCES, sources="2" * 64)).get(row.key)


@pytest.fixture
def rows_file(project: Path, row: Record):
    """Writes rows as another machine would, with changes, to a file."""

    def write(**changes) -> Path:
        file = project / "rows.jsonl"
        file.write_text(json.dumps({**stamped(row).to_json(), **changes}) + "\n")
        return file

    return write


def test_imported_rows_are_found_and_published_once(rows_file, row):
    assert import_rows(rows_file(), here) == 1
    assert Ledger(SOURCES).get(row.key)
    assert [line["key"] for line in lines(PUBLISHED)] == [row.key]
    assert import_rows(rows_file(), here) == 0


def test_rows_from_a_plain_copy_of_these_sources_count_as_theirs(rows_file, row):
    assert import_rows(rows_file(commit="unknown", dirty=True), here) == 1
    assert Ledger(SOURCES).get(row.key).sources.commit == SOURCES.commit


def test_rows_of_another_commit_with_these_sources_keep_it(rows_file, row):
    assert import_rows(rows_file(commit="b" * 40), here) == 1
    assert Ledger(SOURCES).get(row.key).sources.commit == "b" * 40


def test_rows_of_other_files_that_are_in_no_commit_count_but_are_not_published(rows_file, row):
    assert import_rows(rows_file(dirty=True, sources="2" * 64), here) == 1
    assert Ledger(SOURCES).get(row.key)
    assert not PUBLISHED.exists()


def test_rows_of_two_tables_are_imported_into_the_file_of_each(project, ledger):
    shutil.copy(project / "tables/small.yaml", project / "tables/other.yaml")
    scheduler = scheduler_of(ledger)
    first, second = (stamped(fake_run(scheduler.next())[0]) for _ in range(2))
    second = dataclasses.replace(second, table="other")
    (project / "rows.jsonl").write_text("".join(json.dumps(one.to_json()) + "\n" for one in (first, second)))
    assert import_rows(project / "rows.jsonl", here) == 2
    files = (LOCAL, LOCAL.with_name("other.jsonl"), PUBLISHED, PUBLISHED.with_name("other.jsonl"))
    assert [[line["key"] for line in lines(file)] for file in files] == [[first.key], [second.key]] * 2


def test_a_row_of_a_failed_trial_is_not_imported(rows_file):
    file = rows_file()
    file.write_text(json.dumps(failed_row(json.loads(file.read_text()), "out of memory")) + "\n")
    with pytest.raises(InvalidInput, match=r"rows\.jsonl:1: the line .* a row of a ledger with its metrics"):
        import_rows(file, here)


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
