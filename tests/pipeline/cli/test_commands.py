"""What the pipeline's commands do with their options, and what they print."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from pfl.core.errors import InvalidInput
from pipeline.cli.project import in_project
from pipeline.figures import make
from pipeline.figures.figure import FigureChanges
from pipeline.spec.table import Subset, Table
from pipeline.sweep import trial_import
from tests.command import pfl, refused
from tests.pipeline.conftest import printed
from tests.pipeline.fake_results import cell_of, fake_results, write_results
from tests.repository import commit, replace_text

pytestmark = pytest.mark.usefixtures("project")


def test_a_figure_is_made_with_the_changes_that_its_options_say(monkeypatch):
    calls = []
    monkeypatch.setattr(make, "make", lambda *arguments: calls.append(arguments) or ["a line"])
    options = "--rounds 2 --epochs 3 --dataset digits --model lenet5 --clients 4 --settings a,b --methods c"
    assert printed("figure", "fedcac-figure5", *options.split(), "--out", "elsewhere") == "a line\n"
    assert printed("figure", "fedcac-figure5") == "a line\n"
    changes = FigureChanges(2, 3, "digits", "lenet5", 4, Subset(settings=["a", "b"], methods=["c"]))
    assert calls == [
        ("fedcac-figure5", changes, Path("elsewhere").resolve()),
        ("fedcac-figure5", FigureChanges(), make.FOLDER),
    ]
    assert changes.options == f" {options}"
    assert FigureChanges().options == ""
    assert FigureChanges(dataset="my photos.zip").options == " --dataset 'my photos.zip'"


def test_a_table_that_cannot_be_used_does_not_hide_the_others():
    Path("tables/new.yaml").write_text("title: half\n")
    for name in ("a name", "method", "value"):
        Path(f"tables/{name}.yaml").write_bytes(Path("tables/small.yaml").read_bytes())
    for name, old, new in (("method", "fedprox", "fedporx"), ("value", "mu: 0.1", "nu: 0.1")):
        replace_text(Path(f"tables/{name}.yaml"), old, new)
    done = pfl("tables")
    assert done.stdout.splitlines()[1].startswith("small ")
    said = (
        "table: 'a name' is not accepted; expected a file name of at most 100 letters",
        "tables/method.yaml: cell dir/fedporx: method: fedporx",
        "tables/new.yaml",
        "tables/value.yaml: cell dir/fedprox: hyperparameter of FedProx: nu",
    )
    assert all(text in line for text, line in zip(said, done.stderr.splitlines(), strict=True))


def test_a_project_without_a_valid_table_is_one_line(edit):
    edit("title: A table for tests\n", "")
    with pytest.raises(InvalidInput, match=r"tables: small is not accepted; expected at least one valid"):
        printed("tables")


@pytest.mark.usefixtures("project")
def test_a_search_is_exported_as_a_table():
    results = fake_results(seeds=2, search=3)
    chosen = cell_of(results, "cifar10-0.1/pfedsim")
    chosen["searched"][1]["params"]["lr"] = 0.125
    chosen["selection"] = {"trial": 1, "comparisons": [{"trial": 1, "gain": 1.5, "error": None}]}
    write_results(results)
    table = Table.model_validate(YAML(typ="safe").load(printed("search", "export", "fake")))
    (row,) = (row for row in table.methods if row.id == "pfedsim")
    assert row.settings["cifar10-0.1"].schedule.lr == 0.125


def test_the_overview_says_where_it_is(project):
    assert printed("overview") == "overview: reports/README.md\n"
    assert (project / "reports/README.md").is_file()


def test_without_a_published_report_a_line_says_how_to_publish_one(project):
    assert refused("report", "--publish") == (
        "pfl: error: reports/tables: no report of a table; expected a published report; `pfl report TABLE "
        "--publish` publishes the first"
    )
    assert not (project / "reports").exists()


def test_a_published_report_of_which_the_ledger_holds_nothing_is_kept(project):
    (project / "reports/tables/small").mkdir(parents=True)
    (project / "reports/tables/small/README.md").touch()
    why = "the ledger has no cell of the current code; `pfl ledger why small` lists the runs"
    said = f"small: no cell to report: {why}; the published report is in reports/tables/small\n"
    named, all_published = pfl("report", "small"), pfl("report", "--publish")
    assert (named.returncode, all_published.returncode) == (1, 0)
    assert named.stderr == all_published.stderr == said
    assert [path.name for path in (project / "reports/tables/small").iterdir()] == ["README.md"]


@pytest.mark.usefixtures("prepared")
def test_what_is_exported_is_written_where_the_command_is_given():
    Path("below").mkdir()
    said = printed("export", "croissant", "small", "--out", "below/out")
    assert said == f"{Path('below/out').resolve()}: dir\n"
    assert sorted(path.name for path in Path("below/out").iterdir()) == ["dir.csv", "dir.json"]
    with pytest.raises(InvalidInput, match=r"table: smal is not accepted.*did you mean 'small'"):
        printed("export", "rocrate", "smal", "--out", "crate")
    assert not Path("crate").exists()


def test_paths_in_the_environment_are_relative_to_where_the_command_is_given(project, monkeypatch):
    Path("below").mkdir()
    monkeypatch.chdir("below")
    for name, path in (("DATA_SOURCE", "archives"), ("PFL_CACHE", "~/cache")):
        monkeypatch.setenv(name, path)
    in_project(lambda: None)()
    assert Path.cwd() == project
    assert os.environ["DATA_SOURCE"] == str(project / "below/archives")
    assert os.environ["PFL_CACHE"] == "~/cache"


def test_paths_that_may_also_be_names_are_relative_to_where_the_command_is_given(monkeypatch):
    figures, searches = [], []
    monkeypatch.setattr(make, "make", lambda *arguments: figures.append(arguments[1].dataset) or [])
    monkeypatch.setattr(trial_import, "import_trials", lambda *arguments: searches.append(arguments[1]) or [])
    Path("below/digits").mkdir(parents=True)
    outside = Path("photos.zip").resolve()
    for file in ("photos.zip", "below/photos.zip", "below/search.csv"):
        Path(file).touch()
    datasets = ("photos.zip,resize=32", "../photos.zip", str(outside), "digits", "absent.zip")
    for dataset in datasets:
        monkeypatch.chdir(outside.parent / "below")
        printed("figure", "fedcac-figure5", "--dataset", dataset)
    assert figures == ["below/photos.zip,resize=32", "photos.zip", str(outside), "digits", "absent.zip"]
    monkeypatch.chdir(outside.parent / "below")
    printed("search", "import", "small", "--from", "search.csv", "--from", "other")
    assert searches == [["below/search.csv", "other"]]


def test_a_refused_experiment_says_how_to_undo_its_options(monkeypatch):
    monkeypatch.setenv("DVC_EXP_BASELINE_REV", "0" * 40)  # as DVC does in `dvc exp run`
    commit(Path())
    Path("params.yaml").write_text("tables: [smal]\n")  # as `-S 'tables=[smal]'` does
    done = pfl("stage", "check")
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == "pfl: `git restore params.yaml` undoes the options -S"
    monkeypatch.delenv("DVC_EXP_BASELINE_REV")
    assert "git restore" not in pfl("stage", "check").stderr


def test_the_trials_of_a_table_are_written_without_the_files_of_earlier_stages():
    done = pfl("trials", "small", "trials.jsonl")
    assert done.stdout == "20 trials in trials.jsonl; 0 of 64 runs are done\n"
    assert len(Path("trials.jsonl").read_text().splitlines()) == 20
    assert not Path("data/partitions").exists()
