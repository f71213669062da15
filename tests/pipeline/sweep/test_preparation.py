"""The stages before the sweep, and the way over a machine that has neither Ray nor DVC."""

from __future__ import annotations

import json
import subprocess
from importlib.metadata import EntryPoint, version
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from pfl.core.errors import InvalidInput
from pfl.data.partition import Partition
from pfl.data.partitions import PARTITIONS
from pipeline.spec.table import Table, load_table
from pipeline.store.ledger import Ledger
from pipeline.sweep import preparation
from pipeline.sweep.scheduler import scheduler_of
from tests.command import python
from tests.pipeline.conftest import SOURCES, finish, printed
from tests.pipeline.running import json_lines
from tests.repository import ROOT, copy_numbers


@pytest.fixture
def data(project: Path) -> Path:
    preparation.download("small")
    return project


def test_the_manifest_says_what_the_data_are(data):
    digits = json.loads((data / "data/manifests/small.json").read_text())["datasets"]["digits"]
    assert (digits["images"], digits["classes"], digits["shape"]) == (1797, 10, [1, 8, 8])
    assert len(digits["checksum"]) == len(digits["content"]) == 64
    assert digits["identity"] == "original pixels"


def test_the_manifest_names_data_sets_of_other_columns_that_are_not_here(project, edit):
    edit('  two: "pathological:2"', '  two: {partition: "pathological:2", dataset: mnist}')
    edit("search: {trials: 4}", "")
    (project / "params.yaml").write_text("tables: [small]\nsubset: {settings: [dir]}\n")
    preparation.download("small")
    assert json.loads((project / "data/manifests/small.json").read_text())["absent"] == ["mnist"]


def test_data_sets_in_a_folder_of_the_home_folder_are_here(project, edit, monkeypatch):
    edit('  two: "pathological:2"', '  two: {partition: "pathological:2", dataset: mnist}')
    assert preparation.available_settings(load_table("small")) == ["dir"]
    (project / "archives").mkdir()
    (project / "archives/mnist.zip").touch()
    monkeypatch.setenv("HOME", str(project))
    monkeypatch.setenv("DATA_SOURCE", "~/archives")
    assert preparation.available_settings(load_table("small")) == ["dir", "two"]


def test_a_setting_gets_its_index_lists_statistics_and_plot(data):
    preparation.partition("small")
    folder = data / "data/partitions/small"
    partition = Partition.load(folder / "two.npz")
    described = json.loads((folder / "two.json").read_text())
    assert (described["spec"], described["checksum"]) == (partition.spec, partition.checksum)
    assert described["clients"] == 5
    assert (folder / "two.svg").read_text().startswith("<svg")


@pytest.fixture
def divided_by_seed(data, edit) -> Path:
    """One setting, without a search, with a partition for each of its seeds 0 and 1."""
    edit('  dir: "dirichlet:0.5"\n  two: "pathological:2"', '  dir: "dirichlet:0.5,seed=run"')
    edit("search: {trials: 4}\n", "")
    preparation.partition("small")
    return data


def test_a_partition_that_follows_the_runs_seed_is_a_file_for_each(divided_by_seed):
    folder = divided_by_seed / "data/partitions/small"
    files = ["dir.json", "dir.svg", "dir@seed0.npz", "dir@seed1.npz"]
    assert sorted(path.name for path in folder.iterdir()) == files
    first, second = (Partition.load(folder / f"dir@seed{seed}.npz") for seed in (0, 1))
    assert (first.spec[-7:], second.spec[-7:]) == (",seed=0", ",seed=1")
    described = json.loads((folder / "dir.json").read_text())
    assert (described["spec"][-9:], described["checksum"]) == (",seed=run", first.checksum)
    assert described["notes"][0] == "each seed has its own partition; this is that of seed 0"


def test_each_seed_of_a_cell_runs_on_its_own_partition(divided_by_seed):
    folder = divided_by_seed / "data/partitions/small"
    printed("check")
    printed("trials", "small", "trials.jsonl")
    printed("run-trials", "trials.jsonl", "--rows", "rows.jsonl")
    rows = json_lines(divided_by_seed / "rows.jsonl")
    assert {(row["seed"], row["partition_checksum"]) for row in rows} == {
        (seed, Partition.load(folder / f"dir@seed{seed}.npz").checksum) for seed in (0, 1)
    }
    assert printed("ledger", "import", "rows.jsonl") == "new records: 4\n"
    assert "4 of 4 runs are done" in printed("trials", "small", "trials.jsonl")


@pytest.mark.parametrize("unseen", [0.5, 0.9])
def test_the_partition_stage_names_a_share_that_leaves_too_few_clients_to_train(edit, unseen):
    edit("clients: 5", "clients: 2")
    edit("lr: 0.05}", f"lr: 0.05, unseen: {unseen}}}")
    with pytest.raises(InvalidInput, match=f"^tables/small.yaml: .*unseen: {unseen} .* at least 2 of the"):
        preparation.partition("small")


def test_a_part_of_the_seeds_has_the_partitions_of_the_whole_table(divided_by_seed):
    folder = divided_by_seed / "data/partitions/small"
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}
    (divided_by_seed / "params.yaml").write_text("tables: [small]\nsubset: {seeds: [1]}\n")
    preparation.partition("small")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == whole
    printed("trials", "small", "trials.jsonl")
    assert [trial["seeds"] for trial in json_lines(divided_by_seed / "trials.jsonl")] == [[1], [1]]


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("stage", "report", "small"), "table: small is not accepted; expected a table whose data and"),
        (("track", "small"), "a table whose data and records are here"),
    ],
)
def test_a_stage_that_comes_too_early_is_one_line(arguments, said):
    with pytest.raises(InvalidInput, match=said):
        printed(*arguments)


@pytest.mark.parametrize(
    "content", ["[", "[]", "{}", '{"table": "small", "config": {}, "subset": {}, "cells": []}']
)
@pytest.mark.parametrize("command", [("stage", "report"), ("track",)])
def test_results_that_are_damaged_are_one_line(project, command, content):
    (project / "results/small").mkdir(parents=True)
    (project / "results/small/results.json").write_text(content)
    again = "`dvc repro --force --single-item train-sweep@small`"
    with pytest.raises(InvalidInput, match=rf"results/small/results\.json .*; {again} writes them again"):
        printed(*command, "small")


@pytest.mark.usefixtures("data")
def test_a_simulation_that_rows_share_goes_there_once_and_serves_them_all(edit):
    edit("- {method: fedprox, params: {mu: 0.1}}", "- {method: fedavg, as: again}")
    edit("search: {trials: 4}\n", "")
    preparation.partition("small")
    assert "2 trials in trials.jsonl; 0 of 4 runs are done" in printed("trials", "small", "trials.jsonl")
    printed("run-trials", "trials.jsonl", "--rows", "rows.jsonl")
    printed("ledger", "import", "rows.jsonl")
    assert "0 trials in trials.jsonl; 4 of 4 runs are done" in printed("trials", "small", "trials.jsonl")


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize("file", ["tables", "/proc/self/x/y"])
def test_a_file_that_cannot_be_written_is_one_line(file):
    preparation.partition("small")
    with pytest.raises(InvalidInput, match="a file that can be written"):
        printed("trials", "small", file)


@pytest.mark.usefixtures("project")
def test_tables_are_listed_with_their_size():
    line = printed("tables").splitlines()[1]
    # Of 5 clients, 2 train in each of the 2 rounds.
    assert line.split(maxsplit=4) == ["small", "4", "64", "208", "A table for tests"]


def test_tables_are_listed_in_a_project_only(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match=r"tables/\*\.yaml: .* expected a project"):
        printed("tables")
    with pytest.raises(InvalidInput, match="expected a project"):
        printed("tables", "digits")


def test_no_command_s_summary_is_cut():
    for group in ((), ("stage",), ("ledger",)):
        lines = printed(*group, "--help").splitlines()
        assert not [line for line in lines if line.endswith("...") and not line.startswith("Usage")]


def test_a_check_prints_what_it_found_in_a_subfolder_too(project, monkeypatch):
    (project / "notes").mkdir()
    monkeypatch.chdir(project / "notes")
    assert printed("check") == "small: 4 cells, about 64 runs\n"


@pytest.mark.usefixtures("project")
def test_the_check_stage_writes_what_the_other_stages_depend_on():
    printed("stage", "check")
    written = sorted(str(path.relative_to("data/check")) for path in Path("data/check").rglob("*.*"))
    files = ["partition.txt", "report/small.txt", "sweep/small.json", "tables.txt", "tables/small.yaml"]
    assert written == files
    assert len(json.loads(Path("data/check/sweep/small.json").read_text())["behaviours"]) == 4


def checked() -> dict[str, str]:
    """What the check stage writes, by file."""
    printed("stage", "check")
    folder = Path("data/check")
    return {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*.*")}


def test_a_table_depends_on_the_one_that_it_extends_and_on_no_other(project):
    (project / "tables/study.yaml").write_text("extends: small\nmethods: [fedavg]\n")
    (project / "tables/other.yaml").write_text((project / "tables/small.yaml").read_text())
    (project / "params.yaml").write_text("tables: [study]\n")
    before = checked()
    assert Table.model_validate(YAML(typ="safe").load(before["tables/study.yaml"])) == load_table("study")
    for name in ("other", "small"):
        file = project / f"tables/{name}.yaml"
        file.write_text(file.read_text().replace("lr: 0.05", "lr: 0.1") + "# A comment changes nothing.\n")
        after = checked()
        changed = {file for file in after if after[file] != before[file]}
        assert changed == ({"tables/study.yaml"} if name == "small" else set())


def test_a_report_depends_on_its_own_findings_and_published_numbers(project, edit):
    copy_numbers(project)
    edit("clients: 5", "clients: 5\npublished: {paper: spfl, table: '1'}")
    before = checked()
    for file, changed in (
        ("tables/other.md", set()),
        ("papers/pfedsim/published.csv", set()),
        ("tables/small.md", {"report/small.txt"}),
        ("papers/spfl/published.csv", {"report/small.txt"}),
    ):
        with (project / file).open("a") as text:
            text.write("\n")
        after = checked()
        assert {name for name in after if after[name] != before[name]} == changed
        before = after


def test_a_report_depends_on_the_code_of_a_project_s_columns(project):
    column = "from pipeline.columns import Column\n\nslowest = Column('Slowest (s)', lambda record: 1.0)\n"
    (project / "plugins/columns").mkdir(parents=True)

    def content(text: str) -> str:
        (project / "plugins/columns/slowest.py").write_text(text)
        python("-m", "pfl", "stage", "check", cwd=project)
        return Path("data/check/report/small.txt").read_text()

    before = content(column)
    assert content(f"# A comment.\n{column}") == before
    assert content(column.replace("1.0", "2.0")) != before


def test_the_stages_of_dvc_depend_on_the_table_with_all_that_it_inherits():
    stages = YAML(typ="safe").load(ROOT / "dvc.yaml")["stages"]
    for name in ("partition", "train-sweep"):
        assert "data/check/tables/${item.table}.yaml" in stages[name]["deps"]
    assert "data/check/report/${item.table}.txt" in stages["report"]["deps"]


def test_git_ignores_everything_that_the_stages_write():
    stages = YAML(typ="safe").load(ROOT / "dvc.yaml")["stages"]
    outs = [
        out for stage in stages.values() for key in ("outs", "metrics", "plots") for out in stage.get(key, ())
    ]
    files = [next(iter(out)) if isinstance(out, dict) else out for out in outs]
    for file in files:
        path = f"{file.replace('${item.table}', 'digits')}/"
        checked = subprocess.run(["git", "-C", ROOT, "check-ignore", "-q", path], check=False)
        assert checked.returncode == 0, path


def test_a_partition_depends_on_the_code_that_divides_and_on_pillow(tmp_path, monkeypatch):
    (tmp_path / "my_rules.py").write_text("from pfl.data.rule import Rule\n\nSHARE = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = preparation.partition_code()
    mine = EntryPoint("mine", "my_rules:Mine", "pfl.data.partitions")
    monkeypatch.setattr(PARTITIONS, "_points", {"mine": mine})
    with_mine = preparation.partition_code()
    assert with_mine != before
    (tmp_path / "my_rules.py").write_text("from pfl.data.rule import Rule\n\nSHARE = 2\n")
    assert preparation.partition_code() not in (before, with_mine)
    assert before.endswith(f", Pillow {version('pillow')}")


@pytest.mark.usefixtures("project")
def test_an_edit_of_a_file_of_index_lists_divides_the_data_again(edit):
    edit('  two: "pathological:2"', '  two: "file:lists.json"')
    edit("clients: 5\n", "clients: 1\n")
    contents = set()
    for last in (3, 4):
        Path("lists.json").write_text(json.dumps({"0": {"train": [0, 1], "test": [2, last]}}))
        preparation.check()
        contents.add(Path("data/check/partition.txt").read_text())
    assert len(contents) == 2


@pytest.mark.usefixtures("data")
def test_a_client_with_one_training_sample_is_found_out_before_a_search(edit):
    edit('  two: "pathological:2"', '  two: "file:lists.json"')
    edit("clients: 5\n", "clients: 1\n")
    Path("lists.json").write_text(json.dumps({"0": {"train": [0], "test": [1]}}))
    expected = r"setting two: search.validation: 0.2 .*client 0 has only 1$"
    with pytest.raises(InvalidInput, match=expected):
        preparation.partition("small")
    edit("search: {trials: 4}\n", "")
    preparation.partition("small")


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize(
    ("evaluation", "said"),
    [
        ("every: 1, clients: [0, 2]", r"evaluation.clients: \[0, 2\] is not accepted; expected clients"),
        ("every: 1, metric: similarity, pair: [0, 2]", r"evaluation.pair: \[0, 2\] is not accepted"),
    ],
)
def test_a_reported_client_that_a_rule_does_not_make_is_found_out_before_the_runs(evaluation, said, edit):
    edit('  dir: "dirichlet:0.5"\n  two: "pathological:2"', '  two: "file:lists.json"')
    edit("clients: 5\n", "")
    edit("search: {trials: 4}\n", "")
    edit("every: 1", evaluation)
    lists = {client: {"train": [4 * client, 4 * client + 1], "test": [4 * client + 2]} for client in range(2)}
    Path("lists.json").write_text(json.dumps(lists))
    with pytest.raises(InvalidInput, match=f"setting two: {said}"):
        preparation.partition("small")


@pytest.mark.usefixtures("data")
def test_a_search_on_partitions_of_each_seed_has_partitions_of_its_own_seeds(edit):
    edit('  dir: "dirichlet:0.5"\n  two: "pathological:2"', '  dir: "dirichlet:0.5,seed=run"')
    preparation.partition("small")
    scheduler = scheduler_of("small", load_table("small"), Ledger(SOURCES))
    finish(scheduler)
    searched = [
        trial for cell in scheduler.cells for trial in (candidate.trial for candidate in cell.searched)
    ]
    assert {seed for trial in searched for seed in trial.seeds} == {1000, 1001, 1002, 1003}
    assert len({trial.partition_of(seed) for trial in searched for seed in trial.seeds}) == 4
