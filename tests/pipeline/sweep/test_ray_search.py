"""What a worker process does with the trials that it is given, and what the sweep takes of it."""

from __future__ import annotations

import dataclasses
import gc
import re
from pathlib import Path

import pytest

from pfl.core.config import Execution
from pfl.core.errors import InvalidInput
from pfl.run.sources import running_code
from pfl.run.trials import Record
from pipeline.store.heartbeat import reached
from pipeline.store.workspace import checkpoint_folder
from pipeline.sweep import ray_search as tune
from tests.conftest import CONFIG, make_trial
from tests.pipeline.conftest import fake_run, scheduler_of


@pytest.fixture
def alike(ledger, edit):
    """The scheduler of a table without a search whose rows can share a stack."""
    edit("search: {trials: 4}\n", "")
    edit("- fedavg\n", "- {method: fedprox, as: stronger, params: {mu: 1.0}}\n")
    return scheduler_of(ledger)


@pytest.fixture
def job(dataset, partition, tmp_path, monkeypatch):
    """What a worker is told, for trials on the tests' data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tune, "_dataset", lambda *_: dataset)
    monkeypatch.setattr(tune, "_division", lambda *_: partition)
    trial = make_trial(dataclasses.replace(CONFIG, rounds=1), dataset, partition, phase="search")
    execution = Execution(device="cpu", backend="stacked")
    worker_job = tune.Job(str(tmp_path), None, running_code().sources, False, execution)
    yield lambda *changes: {
        "job": worker_job,
        "trials": [dataclasses.replace(trial, config={**trial.config, **change}) for change in changes],
    }
    gc.unfreeze()
    tune._import_simulator.cache_clear()


def outcomes_of(job) -> list[list[Record] | str]:
    return tune.Worker(job).step()["outcomes"]


def test_a_stack_of_trials_ends_with_the_rows_of_each(job):
    outcomes = outcomes_of(job({"lr": 0.1}, {"lr": 0.2}))
    assert [row.config["lr"] for rows in outcomes for row in rows] == [0.1, 0.2]


def test_garbage_collections_between_trials_ignore_what_the_worker_has_imported(job):
    before = len(gc.get_objects())
    outcomes_of(job({}))
    assert len(gc.get_objects()) < before / 10


def test_trials_under_way_leave_their_round(job):
    assignment = job({"lr": 0.1}, {"lr": 0.2})
    outcomes_of(assignment)
    assert reached(assignment["trials"]) == 1


def test_a_trial_that_fails_does_not_fail_those_in_its_stack(job):
    (first,), second = outcomes_of(job({"lr": 0.1}, {"lr": -1.0}))
    assert first.config["lr"] == 0.1
    assert "lr" in second


def test_the_cause_of_a_failure_names_the_file_of_its_traceback(job, monkeypatch):
    def fails(*_):
        raise KeyError("fc\udcff")

    monkeypatch.setattr(tune, "run_trials", fails)
    first, second = outcomes_of(job({"lr": 0.1}, {"lr": 0.2}))
    assert first == second  # so that the sweep's summary counts them in one line
    cause, file = re.fullmatch(r"(.*) \(traceback in (.*)\)", first).groups()
    assert cause == "KeyError: 'fc\\udcff'"
    trace = Path(file).read_text()
    assert trace.startswith("Traceback (most recent call last):\n")
    assert "in fails" in trace


def test_a_cause_that_tells_how_to_fix_it_comes_without_a_traceback(job, monkeypatch):
    monkeypatch.setattr(tune, "run_trials", lambda *_: (_ for _ in ()).throw(InvalidInput("lr", -1, "more")))
    assert outcomes_of(job({})) == ["lr: -1 is not accepted; expected more"]


def test_the_cause_is_named_if_a_worker_cannot_begin(job, ledger, tmp_path):
    assignment = job({})
    assignment["job"] = dataclasses.replace(assignment["job"], root=str(tmp_path / "gone"))
    search = tune.SchedulerSearcher(scheduler := scheduler_of(ledger), {})
    for attempt in range(tune.ATTEMPTS):
        search.suggest(str(attempt))
        search.on_trial_complete(str(attempt), tune.Worker(assignment).step())
    (record,) = scheduler.outcomes.values()
    assert record.error.startswith("FileNotFoundError: ")
    assert record.error.endswith("gone' (started 3 times)")


def test_the_sweep_takes_note_of_every_trial_of_a_stack(alike):
    alike.stacks = True
    search = tune.SchedulerSearcher(alike, {})
    stacks = []
    while (suggestion := search.suggest(str(len(stacks)))) != search.FINISHED:
        search.on_trial_complete(str(len(stacks)), {"outcomes": list(map(fake_run, suggestion["trials"]))})
        stacks.append(len(suggestion["trials"]))
    assert alike.finished
    assert max(stacks) == 2


@pytest.mark.parametrize(
    ("failed", "kept"),
    [((), ()), (("fedprox",), ("fedprox",)), (("stronger", "fedprox"), ("both", "stronger", "fedprox"))],
)
def test_only_checkpoints_that_may_be_continued_are_kept(alike, failed, kept):
    alike.stacks = True
    search = tune.SchedulerSearcher(alike, {})
    search.suggest("stack")
    (trials,) = search.under_way
    folders = {trial.row: checkpoint_folder(trial) for trial in trials} | {"both": checkpoint_folder(*trials)}
    for folder in folders.values():
        folder.mkdir(parents=True)
    outcomes = ["no" if trial.row in failed else fake_run(trial) for trial in trials]
    search.on_trial_complete("stack", {"outcomes": outcomes})
    assert {name for name, folder in folders.items() if folder.exists()} == set(kept)


def test_the_checkpoint_of_a_trial_whose_models_could_not_be_written_is_kept(ledger, edit):
    edit("search:", "keep: models\nsearch:")
    search = tune.SchedulerSearcher(scheduler_of(ledger), {})
    search.suggest("first")
    ((trial,),) = search.under_way
    checkpoint_folder(trial).mkdir(parents=True)
    search.on_trial_complete("first", {"outcomes": [fake_run(trial)]})
    assert checkpoint_folder(trial).exists()


def test_deaths_of_other_trials_do_not_count(ledger):
    search = tune.SchedulerSearcher(scheduler := scheduler_of(ledger), {})
    for attempt in range(2):
        names = [f"{attempt}, {place}" for place in range(3)]
        for name in names:
            search.suggest(name)
        for name in names:
            search.on_trial_complete(name, error=True)
    assert not scheduler.outcomes


def test_a_stack_whose_process_dies_stays_as_it_was_for_its_checkpoint(alike):
    search = tune.SchedulerSearcher(alike, {})
    alone = search.suggest("first")
    alike.stacks = True  # from now on, more trials could share its stack
    search.on_trial_complete("first", error=True)
    assert search.suggest("second") == alone
