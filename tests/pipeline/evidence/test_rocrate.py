"""A table's results as an RO-Crate; `make validate` checks one against its profile."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from pfl.core.errors import InvalidInput
from pipeline.evidence.rocrate import METADATA, write_crate
from pipeline.report.table_report import write_report
from pipeline.spec.imported_trials import PriorTrial, prior_file, prior_text
from pipeline.spec.table import Table, load_table
from pipeline.sweep.collection import collect
from tests.pipeline.conftest import SOURCES, fill_ledger

pytestmark = pytest.mark.usefixtures("ran")


def crate_of(folder: Path) -> dict[str, dict]:
    """The entities of a crate, by identifier."""
    return {entity["@id"]: entity for entity in json.loads((folder / METADATA).read_text())["@graph"]}


@pytest.fixture
def reported(prepared: Path) -> Path:
    """A project whose table has results and a report."""
    fill_ledger("small")
    collect("small")
    write_report("small")
    return prepared


@pytest.fixture
def out(reported: Path) -> Path:
    (reported / "dvc.yaml").write_text("stages: {}\n")
    (reported / "requirements.lock").write_text("torch==2.11\n")
    out = reported / "crate"
    write_crate("small", out)
    return out


def test_every_file_is_described_with_its_checksum_and_every_reference_has_an_entity(out, reported):
    entities = crate_of(out)
    files = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    described = {name: entity for name, entity in entities.items() if "File" in entity["@type"]}
    assert described.keys() == files - {METADATA}
    for name, entity in described.items():
        assert entity["sha256"] == hashlib.sha256((out / name).read_bytes()).hexdigest()
    references = {
        reference["@id"]
        for entity in entities.values()
        for value in entity.values()
        for reference in (value if isinstance(value, list) else [value])
        if isinstance(reference, dict)
    }
    assert {name for name in references - entities.keys() if not name.startswith("https://")} == set()
    # The same results give the same crate.
    write_crate("small", reported / "again")
    assert (reported / "again" / METADATA).read_bytes() == (out / METADATA).read_bytes()


def test_a_crate_holds_table_records_partitions_lock_file_and_report_and_names_the_code(out):
    entities = crate_of(out)
    action = entities["#sweep"]
    inputs, results = ([reference["@id"] for reference in action[key]] for key in ("object", "result"))
    assert inputs == ["table.yaml", "partitions/", "requirements.lock"]
    assert results == ["rows.jsonl", "results.json", "report/"]
    assert entities[action["instrument"]["@id"]]["hasPart"] == {"@id": "#code-0"}
    assert entities["#code-0"]["version"] == SOURCES.commit
    assert len((out / "rows.jsonl").read_text().splitlines()) == 4
    assert (out / "report/README.md").exists()
    assert (out / "partitions/dir.csv").exists()
    table = Table.model_validate(YAML(typ="safe").load(out / "table.yaml"))
    assert table == load_table("small")


def test_a_crate_has_a_page_that_names_its_files(out):
    page = (out / "README.md").read_text()
    assert "Results of the table small: 2 cells from 4 runs." in page
    for name in ("table.yaml", "rows.jsonl", "partitions/", METADATA):
        assert f"`{name}`" in page
    assert crate_of(out)["README.md"]["about"] == {"@id": "./"}


def test_licence_authors_and_addresses_are_those_of_the_project(out, reported):
    assert crate_of(out)["./"]["license"] == "not stated"
    (reported / "CITATION.cff").write_text(
        "license: MIT\nrepository-code: https://example.org/code\nauthors:\n"
        "- {family-names: Doe, given-names: Jane}\n- {name: A group, website: https://example.org}\n"
    )
    write_crate("small", reported / "cited")
    entities = crate_of(reported / "cited")
    assert entities["./"]["license"] == {"@id": "https://spdx.org/licenses/MIT"}
    authors = [entities[author["@id"]] for author in entities["./"]["author"]]
    assert [(author["@type"], author["name"]) for author in authors] == [
        ("Person", "Jane Doe"),
        ("Organization", "A group"),
    ]
    assert entities["./"]["publisher"] == {"@id": authors[1]["@id"]}
    assert authors[1]["url"] == "https://example.org"
    assert entities["#code-0"]["url"] == "https://example.org/code"


def test_dvc_finds_no_stages_in_a_crate_that_is_written_into_the_project(out):
    assert not list(out.rglob("dvc.yaml"))
    assert (out / crate_of(out)["#sweep"]["instrument"]["@id"]).read_text() == "stages: {}\n"


def test_a_crate_needs_an_empty_folder_and_a_report(out, reported):
    with pytest.raises(InvalidInput, match=r"out: .* expected a folder that does not exist, or is empty"):
        write_crate("small", out)
    (reported / "results/small/report").rename(reported / "elsewhere")
    with pytest.raises(InvalidInput, match="`pfl report small` writes it"):
        write_crate("small", reported / "new")
    assert not (reported / "new").exists()


@pytest.mark.parametrize("inside", ["", "/crate", "/a/crate", "/../report/crate"])
def test_a_crate_is_not_written_into_the_report_that_it_copies(inside, reported):
    report = reported / "results/small/report"
    before = sorted(report.rglob("*"))
    if not inside:
        for file in before:
            file.unlink()  # an empty folder is otherwise accepted
    with pytest.raises(
        InvalidInput, match=r"^out: .* expected a folder outside of results/small/report, which"
    ):
        write_crate("small", Path(f"{report}{inside}"))
    assert sorted(report.rglob("*")) == (before if inside else [])


def test_a_crate_holds_the_trials_from_which_the_searches_begin(reported):
    (reported / "dvc.yaml").write_text("stages: {}\n")
    trials = [PriorTrial("dir/fedprox", 1.5, {"lr": 0.1, "mu": 0.2}, "another search, trial 3")]
    prior_file("small").write_text(prior_text(trials))
    write_crate("small", reported / "crate")
    assert (reported / "crate/table.prior.csv").read_text() == prior_text(trials)
    described = crate_of(reported / "crate")["table.prior.csv"]
    assert described["description"].startswith("Trials of other searches")
