"""Tables that keep the final models of their trials."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.spec.table import Subset, load_table
from pipeline.store.ledger import LOCAL
from pipeline.store.workspace import models_file
from pipeline.sweep.outputs import outcome, write
from tests.pipeline.conftest import fake_run, finish, scheduler_of
from tests.pipeline.running import csv_lines


@pytest.fixture
def keeping(edit) -> None:
    edit("search:", "keep: models\nsearch:")


def run_with_models(trial) -> list[dict]:
    """In the place of a worker."""
    if trial.phase == "final":
        for file in map(models_file, trial.keys):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
    return fake_run(trial)


@pytest.mark.usefixtures("keeping")
def test_with_its_models_a_trial_is_served_from_the_ledger(ledger):
    finish(scheduler_of(ledger), run_with_models)
    assert finish(scheduler_of(ledger), run_with_models) == []


def test_a_final_trial_without_its_models_is_run_again_and_its_row_stands(ledger, edit):
    finish(scheduler_of(ledger))
    before = (LOCAL / "small.jsonl").read_text()
    edit("search:", "keep: models\nsearch:")
    again = scheduler_of(ledger)
    done = finish(again, run_with_models)
    assert {trial.phase for trial in done} == {"final"}
    assert all(file.exists() for trial in done for file in map(models_file, trial.keys))
    assert (LOCAL / "small.jsonl").read_text() == before


@pytest.mark.usefixtures("keeping")
def test_where_the_models_lie_is_written_down(ledger):
    scheduler = scheduler_of(ledger)
    finish(scheduler, run_with_models)
    missing = scheduler.cells[0].pinned.keys[0]
    models_file(missing).unlink()
    write(outcome("small", load_table("small"), Subset(), scheduler, {}), scheduler)
    written = csv_lines(Path("results/small/models.csv"))
    assert len(written) == 4 * (2 + 2) - 2  # the missing run is of a pinned configuration that was selected
    assert {line["configuration"] for line in written} == {"pinned", "selected"}
    assert missing not in {Path(line["file"]).stem for line in written}
    assert all(Path(line["file"]).exists() for line in written)
