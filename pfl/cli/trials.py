"""Trials that the pipeline wrote down, run where there is no pipeline: ``pfl run --trials FILE``."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pfl.config import Execution
from pfl.errors import InvalidInput
from pfl.files import append_lines, read_lines
from pfl.progress import progress

if TYPE_CHECKING:
    from pfl.data.dataset import Dataset
    from pfl.trials import Trial


def run_trials(file: Path, rows: Path, execution: Execution) -> None:
    """Run one trial after another and add its rows to ``rows`` as it ends; those already there stay.

    A trial that fails is told and passed over; one that was interrupted goes on from its checkpoint.

    Raises:
        InvalidInput: ``file`` does not hold trials.
        typer.Exit: some trial failed.
    """
    from pfl.data.dataset import load
    from pfl.data.partition import make_division
    from pfl.trials import cause_of, folder_of, run_trial

    checkpoints = Path(execution.checkpoint_dir) if execution.checkpoint_dir else None
    done = {row["key"] for row in read_lines(rows)}
    found = {tuple(trial.keys()): trial for trial in _read(file)}  # one simulation can stand in two tables
    pending = [trial for keys, trial in found.items() if not done.issuperset(keys)]
    datasets: dict[str, Dataset] = {}
    failed = 0
    for number, trial in enumerate(pending, start=1):
        folder = checkpoints and checkpoints / folder_of(trial)
        own = dataclasses.replace(execution, checkpoint_dir=str(folder) if folder else None)
        try:
            if trial.dataset not in datasets:
                datasets[trial.dataset] = load(trial.dataset)
            data = datasets[trial.dataset]
            split = make_division(trial.partition, data, trial.clients, trial.seeds)
            title = f"{number}/{len(pending)} {trial.cell}"
            with progress(trial.config["rounds"], title, trial.moment) as on_round:
                finished = run_trial(trial, data, split, own, on_round)
        except Exception as error:
            failed += 1
            print(f"pfl: {trial.cell}, seeds {trial.seeds}: {cause_of(error)}", file=sys.stderr)
            continue
        append_lines(rows, [record.to_json() for record in finished], wait=True)
        if folder:
            shutil.rmtree(folder)
    print(f"{len(pending) - failed} trials run; rows in {rows}")
    if failed:
        print(f"pfl: {failed} trials failed; the same command tries them again", file=sys.stderr)
        raise typer.Exit(1)


def _read(file: Path) -> list[Trial]:
    """The trials of a file.

    Raises:
        InvalidInput: it is none that `pfl trials` wrote, or names what there is not here.
    """
    from pfl.trials import Trial

    try:
        trials = [Trial.from_dict(json.loads(line)) for line in file.read_text().splitlines()]
        for trial in trials:
            trial.keys()
    except InvalidInput:
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise InvalidInput("trials", str(file), "a file that `pfl trials` wrote") from None
    return trials
