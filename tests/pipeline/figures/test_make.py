"""Making figures, each family once, with digits in the place of the papers' data; and a figure's numbers."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pfl.core.errors import InvalidInput
from pfl.engine.metrics import ClientResult
from pfl.run import trials
from pipeline.figures import figure_runs
from pipeline.figures.figure import FigureChanges, load_figure
from pipeline.figures.make import answered, make, write_figures
from pipeline.figures.numbers import Numbers, Point
from pipeline.figures.plots import clients, distances, heads
from pipeline.spec.paths import table_file
from pipeline.spec.table import Subset
from pipeline.store.ledger import LOCAL
from pipeline.store.records import read_heads, read_record
from pipeline.store.workspace import table_lock
from pipeline.sweep import cluster
from tests.pipeline.conftest import with_metrics
from tests.pipeline.fake_results import ledger_row, record_of
from tests.pipeline.figures.conftest import run_here
from tests.repository import replace_text

OUT = Path("reports/figures")
SMALL = {"rounds": 2, "epochs": 1, "dataset": "digits", "model": "cnn_digits"}

pytestmark = pytest.mark.usefixtures("project")
slow = partial(pytest.param, marks=pytest.mark.slow)


def drawn(name: str, **changes) -> dict:
    subset = Subset(**{key: changes.pop(key) for key in ("settings", "methods") if key in changes})
    make(name, FigureChanges(**changes, subset=subset), OUT)
    return json.loads((OUT / f"{name}.json").read_text())


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("fedsimsup-figure3", {"clients": 10}),
        slow("fedcac-figure6", {"clients": 4, "settings": ["cifar10"], "methods": ["beta-0.1", "beta-0.2"]}),
        slow("spfl-figure6", {"settings": ["cifar10-iid"], "methods": ["fedavg", "spfl"]}),
        slow("pfedsim-figure3", {"clients": 5}),
        slow("pfedsim-figure1", {"clients": 3}),
        ("pfedsim-figure2", {}),
        slow("pfedsim-similarities", {}),
        slow("pfedcs-figure1", {}),
        slow("fedcac-figure1b", {}),
        slow("fedsimsup-figure4", {"clients": 5}),
        slow("spfl-figure5", {"settings": ["cifar10-iid", "cifar10-noniid"]}),
    ],
)
def test_each_family(project, name, changes):
    options = SMALL | changes
    if name == "spfl-figure5":
        replace_text(project / table_file(name), "iid:6", "iid:4")
    if name == "fedcac-figure6":
        replace_text(project / table_file(name), "dirichlet_client:0.1", "dirichlet:1.0")
    content = drawn(name, **options)
    picture = (OUT / f"{name}.svg").read_text()
    assert "Reduced" in picture and "digits" in picture
    assert content["changes"]
    assert {claim["answer"] for claim in answered(content, OUT)} == {"open"}
    rows = (OUT / f"{name}.csv").read_text().splitlines()
    assert rows[0] == "panel,series,x,value,std" and len(rows) > 2
    overview = (OUT / "README.md").read_text()
    assert f"]({name}.svg)" in overview and "**Data**: digits" in overview


def test_accuracies_of_a_client_are_averaged_also_if_the_seeds_have_other_clients():
    record = record_of(ledger_row())

    def run(**accuracies: float | None):
        clients = tuple(ClientResult(int(name[1:]), 8, 8, value) for name, value in accuracies.items())
        return with_metrics(record, per_client=clients)

    runs = [run(c0=50.0, c2=60.0, c3=None), run(c1=20.0, c2=70.0, c3=40.0)]
    cell = SimpleNamespace(setting="iid", row="spfl")
    numbers = clients.measure(SimpleNamespace(records=lambda: [(cell, runs)]))
    assert {(point.series, point.x, point.value) for point in numbers.points} == {
        *(("spfl", 1, 50.0), ("spfl", 2, 20.0), ("spfl", 3, 65.0), ("spfl", 4, 40.0))
    }


@pytest.mark.parametrize(("at", "shown"), [([1, 3], [1]), ([], [2]), ([3], [2])])
def test_distances_are_shown_at_the_rounds_named_or_else_at_the_last(at, shown):
    figure = load_figure("pfedcs-figure1").model_copy(update={"at": at})
    matrix, same = [[0.0, 1.0], [1.0, 0.0]], [[True, True], [True, True]]
    measured = [{"round": number, "distances": matrix, "same": same} for number in (1, 2)]
    numbers = distances.measure(SimpleNamespace(figure=figure, measurements=lambda _: [(None, [measured])]))
    assert [panel for panel in numbers.panels if panel != distances.GROUPS] == [f"round {n}" for n in shown]
    assert len(distances.draw(figure, numbers).axes) == 3  # the matrix, the means by round, and the colours


def test_a_figure_with_failed_trials_is_written_and_then_is_an_error(monkeypatch):
    def failing(scheduler, watch) -> None:
        scheduler.fail(scheduler.next(), "ValueError: no")
        run_here(scheduler, watch)

    monkeypatch.setattr(cluster, "run", failing)
    with pytest.raises(InvalidInput, match=r"figure fedsimsup-figure3: 1 run failed; .* retries them"):
        drawn("fedsimsup-figure3", **SMALL, clients=4)
    assert "ValueError: no" in (OUT / "README.md").read_text()


def test_parts_are_made_together():
    make("fedcac-figure1", FigureChanges(**SMALL | {"rounds": 1, "clients": 2}), OUT)
    assert {path.stem for path in OUT.glob("*.svg")} == {"fedcac-figure1a", "fedcac-figure1b"}


def test_nothing_is_run_twice(monkeypatch):
    for name in ("fedsimsup-figure3", "pfedsim-figure2"):
        first = drawn(name, **SMALL, clients=4)
        with monkeypatch.context() as patch:
            patch.setattr("pfl.run.trials.run_trials", lambda *_: pytest.fail("run again"))
            assert drawn(name, **SMALL, clients=4) == first


def test_a_figure_has_the_keys_of_its_records_in_the_ledger():
    keys = drawn("fedsimsup-figure3", **SMALL, clients=4)["keys"]
    assert sorted(keys) == sorted(row.key for _, row, _ in read_heads(LOCAL / "fedsimsup-figure3.jsonl"))
    assert drawn("pfedsim-figure2", **SMALL)["keys"] == []  # its run was measured


@pytest.mark.parametrize("what", ["digest_of_modules", "code_digest"])
def test_what_looked_on_and_at_what_decide_whether_it_has_to_look_again(what, monkeypatch):
    def keys() -> set[str]:
        return {path.stem for path in Path(".sweeps/figures").glob("*.json")}

    drawn("pfedcs-figure1", **SMALL)
    monkeypatch.setattr(figure_runs, what, lambda *_: "other code")
    before = keys()
    drawn("pfedcs-figure1", **SMALL)
    assert len(keys()) == len(before) + 1


def test_the_measured_run_of_another_trial_is_not_taken_for_one():
    drawn("pfedcs-figure1", **SMALL)
    (file,) = Path(".sweeps/figures").glob("*.json")
    row = read_record(file.read_bytes().rstrip())
    file.write_bytes(replace(row, key="0" * 64).to_line())
    drawn("pfedcs-figure1", **SMALL)
    assert read_record(file.read_bytes().rstrip()).key == row.key


def test_a_reduced_figure_does_not_take_the_place_of_one_as_pinned(project):
    file = project / "papers/pfedsim/figures/pfedsim-figure3.yaml"
    replace_text(file, "cifar10", "digits")
    replace_text(file, "clients: 100", "clients: 5")
    assert drawn("pfedsim-figure3")["changes"] == []
    with pytest.raises(InvalidInput, match="is already there, as pinned"):
        drawn("pfedsim-figure3", clients=4)
    assert "Reduced" not in (OUT / "pfedsim-figure3.svg").read_text()


@pytest.mark.parametrize(("out", "option"), [(OUT, ""), (Path("my figures"), " --out 'my figures'")])
def test_a_figure_has_the_command_that_draws_it_there(out, option):
    make("pfedsim-figure3", FigureChanges(dataset="digits", clients=4), out.resolve())
    content = json.loads((out / "pfedsim-figure3.json").read_text())
    assert content["command"] == f"pfl figure pfedsim-figure3 --dataset digits --clients 4{option}"


def test_a_figure_is_replaced_by_one_that_is_reduced_alike_only():
    drawn("pfedsim-figure3", dataset="digits", clients=5)
    assert drawn("pfedsim-figure3", dataset="digits", clients=5)["changes"]
    with pytest.raises(InvalidInput, match="is already there, reduced differently"):
        drawn("pfedsim-figure3", dataset="digits", clients=4)


def test_the_page_has_the_texts_of_the_figure_s_file_as_they_are_now(project):
    drawn("pfedsim-figure3", dataset="digits", clients=4)
    file = project / table_file("pfedsim-figure3")
    figure = load_figure("pfedsim-figure3")
    replace_text(file, f"title: {figure.title}", "title: Another title")
    replace_text(file, "shows: ", "note: A new note.\nshows: Newly, ")
    write_figures(OUT)
    page = (OUT / "README.md").read_text()
    assert "## Another title" in page and "Newly, " in page and " A new note. Numbers: " in page


def test_other_files_of_the_folder_are_left_alone():
    OUT.mkdir(parents=True)
    (OUT / "notes.json").write_text("[1, 2]")
    (OUT / "pfedsim-figure3.json").write_text("[]")
    assert drawn("pfedsim-figure3", dataset="digits", clients=4)["changes"]
    assert (OUT / "notes.json").read_text() == "[1, 2]"


def test_a_figure_that_another_process_is_at_is_refused():
    with (
        table_lock("pfedsim-figure3"),
        pytest.raises(InvalidInput, match=r"pfedsim-figure3: in use by another command \(process \d+"),
    ):
        drawn("pfedsim-figure3", dataset="digits", clients=4)


def test_a_mistake_is_found_before_anything_runs(monkeypatch):
    monkeypatch.setattr(figure_runs.FigureRuns, "records", lambda _: pytest.fail("has run"))
    with pytest.raises(InvalidInput, match="rounds"):
        drawn("fedsimsup-figure3", rounds=0, dataset="digits")
    with pytest.raises(InvalidInput, match="model"):
        drawn("fedsimsup-figure3", model="lenet7", dataset="digits")
    with pytest.raises(InvalidInput, match="clients"):
        drawn("fedsimsup-figure3", clients=0, dataset="digits")


def test_runs_that_all_fail_are_one_clear_line(monkeypatch):
    def fail(*_, **__):
        raise ValueError("no luck")

    monkeypatch.setattr("pfl.run.trials.run_trials", fail)
    with pytest.raises(InvalidInput, match=r"runs with a result \(dir-0.1/fedsimsup, seed 0: no luck"):
        drawn("fedsimsup-figure3", **SMALL, clients=4)


def test_a_seed_that_diverges_is_left_out_and_said(monkeypatch):
    failing = {1}

    def diverged(row):
        return with_metrics(row, diverged_at=1 if row.seed in failing else None)

    real = trials.run_trials
    monkeypatch.setattr(trials, "run_trials", lambda *args: [list(map(diverged, *real(*args)))])
    curves = drawn("fedsimsup-figure3", **SMALL, clients=4)
    assert any("fedsimsup, seed 1: diverged in round 1" in warning for warning in curves["warnings"])
    assert any("fedsimsup, seed 1: diverged in round 1" in missing for missing in curves["missing"])
    failing.add(0)  # its only one
    with pytest.raises(InvalidInput, match="seed 0: diverged in round 1"):
        drawn("fedsimsup-figure4", **SMALL, clients=4)


@pytest.mark.parametrize(
    ("content", "answer", "shown"),
    [
        ({"provenance": {"Seeds": ["0, 1"]}}, "confirmed", "CIFAR-10: fedcac is highest at 0.5"),
        ({}, "confirmed", "CIFAR-10: fedcac is highest at 0.5"),
        ({"provenance": {"Seeds": ["0"]}}, "open", "holds with one seed: CIFAR-10"),
        ({"changes": ["rounds 40 instead of 500"]}, "open", "holds in these reduced runs: CIFAR-10"),
        (
            {"missing": ["cifar10/fedavg, seed 1: diverged in round 3"]},
            "open",
            "holds without 1 run that failed or diverged: CIFAR-10",
        ),
    ],
)
def test_figures_that_are_reduced_of_one_seed_or_incomplete_leave_claims_open(content, answer, shown):
    OUT.mkdir(parents=True)
    (OUT / "fedcac-figure5.csv").write_text(
        "panel,series,x,value,std\ncifar10,fedcac,0.1,60,\ncifar10,fedcac,0.5,70,\ncifar10,fedcac,0.9,65,\n"
    )
    (claim,) = answered({"name": "fedcac-figure5", "changes": [], "provenance": {}} | content, OUT)
    assert claim["answer"] == answer
    assert claim["shown"].startswith(shown)


def test_two_values_at_one_place_are_refused():
    with pytest.raises(InvalidInput, match=r"points: a, b, 0\.0 is not accepted; expected one value"):
        Numbers([Point("a", "b", 0.0, 1.0), Point("a", "b", 0.0, 2.0)])


def test_every_class_of_every_pair_counts_as_owned_by_both_or_by_one():
    owns = [[True, True, False], [True, False, False], [False, True, True]]
    measured = {"cosines": np.arange(27.0).reshape(3, 3, 3), "owns": owns}
    runs = SimpleNamespace(measurements=lambda _: [(None, [[measured]])])
    panel = heads.measure(runs).values[heads.KINDS]
    assert sorted(panel["both or neither"].values()) == [1.0, 11.0, 19.0]
    assert sorted(panel["one only"].values()) == [2.0, 5.0, 10.0, 14.0, 20.0, 23.0]
