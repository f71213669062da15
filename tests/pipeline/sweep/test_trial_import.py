"""Searches that begin from trials of another search."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pfl.core.errors import InvalidInput
from pipeline.formatting import csv_text
from pipeline.spec.cells import cells
from pipeline.spec.imported_trials import PriorTrial, imported_trials, prior_file, prior_text
from pipeline.spec.search_space import Search
from pipeline.spec.table import load_table
from pipeline.store.ledger import Ledger
from pipeline.store.results import SEARCH_COLUMNS
from pipeline.sweep.budget import Outcome
from pipeline.sweep.check import check_searched
from pipeline.sweep.dependencies import dependencies
from pipeline.sweep.search import Proposer
from pipeline.sweep.trial_import import import_trials
from tests.pipeline.conftest import SOURCES, finish, scheduler_of
from tests.pipeline.sweep.test_search import pinned

PINNED = {"lr": 0.05, "mu": 0.1}


def prior_of(table: str) -> list[PriorTrial]:
    """The imported trials from which the searches of a table begin."""
    imported = imported_trials(cells(table, load_table(table)))
    return [trial for trials in imported.values() for trial in trials]


def search_csv(folder: Path, *steps: tuple[int, int, float | None, dict], cell: str = "dir/fedprox") -> str:
    """A report's search.csv with steps of (trial, round, accuracy, parameters)."""
    rows = [(cell, trial, 1000, *outcome, 10, json.dumps(params), None) for trial, *outcome, params in steps]
    file = folder / "search.csv"
    file.write_text(csv_text(SEARCH_COLUMNS, rows))
    return str(file)


@pytest.fixture
def source(project) -> str:
    """The search of another machine: of six trials, three fit the cell dir/fedprox."""
    return search_csv(
        project,
        *((trial, 5, 40.0, PINNED) for trial in (0, 1)),
        (5, 5, 30.0, {"lr": 0.2, "mu": 0.1}),
        (0, 20, 70.0, PINNED),
        (1, 20, 75.5, {"lr": 0.1, "mu": 0.2}),
        (2, 20, 60.0, {"lr": 0.01, "mu": 1.0, "momentum": 0.0}),
        (3, 20, 80.0, {"lr": 0.9, "mu": 0.2}),
        (4, 20, 81.0, {"lr": 0.1, "mu": 0.2, "momentum": 0.9}),
    )


def test_a_cell_takes_what_fits_and_says_what_it_leaves_out(source):
    lines = import_trials("small", [source])
    assert lines[0] == "dir/fedavg: 0 trials of search.csv: no such cell"
    assert lines[1] == (
        "dir/fedprox: 2 trials of search.csv; left out: not trained to the last round (1), "
        "lr lies outside its range (1), momentum is not searched (1)"
    )
    assert prior_of("small") == [
        PriorTrial("dir/fedprox", 5.5, {"lr": 0.1, "mu": 0.2}, "search.csv, trial 1"),
        PriorTrial("dir/fedprox", -10.0, {"lr": 0.01, "mu": 1.0}, "search.csv, trial 2"),
    ]


def test_the_same_trial_of_two_sources_is_taken_once(source):
    lines = import_trials("small", [source, source])
    assert "already taken (2)" in lines[5]
    assert len(prior_of("small")) == 2


def test_without_the_pinned_configuration_accuracies_cannot_be_compared(project):
    other = search_csv(project, (0, 20, 70.0, {"lr": 0.07, "mu": 0.1}), (1, 20, 75.5, {"lr": 0.1, "mu": 0.2}))
    with pytest.raises(InvalidInput, match=r"'dir/fedprox': 0 trials of .*: the pinned configuration is not"):
        import_trials("small", [other])
    assert not prior_file("small").exists()


@pytest.mark.parametrize(
    ("search", "reason"),
    [
        ("trials: 4, algorithm: random", "the algorithm random does not use results of other searches"),
        ("trials: 4, objectives: [accuracy, decile]", "the search has several objectives"),
    ],
)
def test_a_search_that_cannot_use_them_takes_no_trials(source, edit, search, reason):
    edit("trials: 4", search)
    with pytest.raises(InvalidInput, match=f"'two/fedprox': 0 trials of search.csv: {reason}"):
        import_trials("small", [source])


def test_cells_that_take_nothing_for_the_same_reason_are_one_entry(project):
    other = search_csv(project, (0, 20, 70.0, PINNED), cell="other/fedprox")
    cells_of_small = "'dir/fedavg', 'dir/fedprox', 'two/fedavg', 'two/fedprox'"
    said = rf"trials that fit \({cells_of_small}: 0 trials of search.csv: no such cell\)$"
    with pytest.raises(InvalidInput, match=said):
        import_trials("small", [other])


def test_a_file_of_another_kind_is_one_line(project):
    (project / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InvalidInput, match=r"other\.csv:1: the line .* \(no column cell\)"):
        import_trials("small", ["other.csv"])
    with pytest.raises(InvalidInput, match="expected a table with results, or a file search"):
        import_trials("small", ["absent.csv"])


@pytest.mark.parametrize("accuracy", ["nan", "inf", "1e999"])
def test_an_accuracy_that_is_no_number_is_one_line_before_any_compute(accuracy, source):
    imported = prior_file("small")
    import_trials("small", [source])
    imported.write_text(imported.read_text().replace("5.5,", f"{accuracy},"))
    table = load_table("small")
    with pytest.raises(InvalidInput, match=rf"small\.prior\.csv:2: .* \({accuracy} is not a finite number\)"):
        check_searched("small", table, table)
    Path(source).write_text(Path(source).read_text().replace("75.5", accuracy))
    with pytest.raises(InvalidInput, match=rf"search\.csv:6: .* \({accuracy} is not a finite number\)"):
        import_trials("small", [source])


def test_an_edit_of_the_table_after_an_import_is_found_before_any_compute(source, edit):
    import_trials("small", [source])
    table = load_table("small")
    check_searched("small", table, table)
    edit("search: {trials: 4}", "search: {trials: 4, space: {lr: [0.04, 0.06]}}")
    table = load_table("small")
    with pytest.raises(InvalidInput, match=r"lr lies outside its range\); repeat `pfl search import small`"):
        check_searched("small", table, table)


def test_the_sweep_depends_on_the_imported_trials(source):
    before = dependencies("small", load_table("small"), Ledger(SOURCES))
    import_trials("small", [source])
    after = dependencies("small", load_table("small"), Ledger(SOURCES))
    assert {name for name in before if before[name] != after[name]} == {"imported"}


@pytest.mark.parametrize(
    ("changes", "gains"),
    [
        ("title: A study", [5.5, -10.0]),
        ("schedule: {rounds: 4}", [5.5, -10.0]),
        ("search: {space: {lr: [0.04, 0.2]}}", [5.5]),
        ("methods: [fedavg, fedprox]", [5.5, -10.0]),
        ("methods: [{method: fedprox, params: {mu: 0.2}}]", []),
        ("schedule: {lr: 0.07}", []),
        ('settings: {other: "dirichlet:0.5"}', []),
    ],
)
def test_a_table_inherits_the_trials_of_cells_with_the_same_pinned_parameters(
    project, source, changes, gains
):
    import_trials("small", [source])
    (project / "tables/study.yaml").write_text(f"extends: small\n{changes}\n")
    assert [trial.gain for trial in prior_of("study")] == gains
    study = load_table("study")
    check_searched("study", study, study)
    before = dependencies("study", study, Ledger(SOURCES))["imported"]
    prior_file("small").write_text(prior_text([]))
    changed = dependencies("study", study, Ledger(SOURCES))["imported"] != before
    assert changed == bool(gains)


def test_a_table_s_own_imported_trials_take_the_place_of_inherited_ones(project, source):
    import_trials("small", [source])
    (project / "tables/study.yaml").write_text("extends: small\n")
    own = [PriorTrial("dir/fedprox", 1.25, {"lr": 0.012345678901234567, "mu": 0.5}, "other, trial 3")]
    prior_file("study").write_text(prior_text(own))
    assert prior_of("study") == own


def test_the_sweep_begins_from_imported_trials_and_counts_them(source, ledger):
    import_trials("small", [source])
    scheduler = scheduler_of(ledger)
    finish(scheduler)
    by_cell = {cell.cell.id: cell for cell in scheduler.cells}
    results = {name: cell.result(scheduler.outcomes) for name, cell in by_cell.items()}
    imported = {name: result.imported for name, result in results.items()}
    assert imported == {"dir/fedavg": 0, "dir/fedprox": 2, "two/fedavg": 0, "two/fedprox": 0}
    observed = [
        trial for trial in by_cell["dir/fedprox"].proposer._study.trials if "source" in trial.user_attrs
    ]
    pinned_value = results["dir/fedprox"].search[0].value
    assert [trial.value for trial in observed] == pytest.approx([pinned_value + 5.5, pinned_value - 10])


def test_trials_near_the_best_start_from_the_best_imported_one():
    prior = [PriorTrial("dir/local", gain, {"lr": lr}, "") for gain, lr in ((-5.0, 0.001), (8.0, 0.25))]
    near = {}
    for known in ((), prior):
        proposer = Proposer(pinned("local"), Search(trials=10), known)
        proposer.ask(10)
        near[len(known)] = sorted(params["lr"] for params in proposer.asked[2::2])
    assert near[2][2] > 0.1 > near[0][1]


def test_the_sampler_proposes_what_was_good_elsewhere_and_the_same_import_tries_the_same():
    def tried(prior: list[PriorTrial]) -> list[dict]:
        proposer = Proposer(pinned("local"), Search(trials=30), prior)
        for _ in range(10):
            for trial in proposer.ask(3):
                proposer.tell(trial, 20, Outcome(50.0, 1), ended=True)
        return proposer.asked

    good_at = {
        lr: [PriorTrial("", 20.0, {"lr": lr * (1 + n / 50)}, "") for n in range(8)] for lr in (0.002, 0.2)
    }
    low, high = (sorted(params["lr"] for params in tried(good_at[lr])[10:]) for lr in (0.002, 0.2))
    assert high[10] > 10 * low[10]
    assert tried(good_at[0.2]) == tried(good_at[0.2])
