"""The train-sweep stage: search and run every cell of a table, except trials that are in the ledger."""

from __future__ import annotations

import math
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from pfl.core.text import amount
from pfl.run.sources import git
from pfl.run.trials import Trial
from pipeline.spec.params import subset_of
from pipeline.spec.paths import results_folder
from pipeline.spec.table import Subset, load_table
from pipeline.store.ledger import PUBLISHED, Ledger, publish
from pipeline.store.results import failures
from pipeline.store.workspace import MODELS, checkpoints_of, current_sources, table_lock
from pipeline.sweep import outputs
from pipeline.sweep.check import check_precisions, device_of, slots_here
from pipeline.sweep.display import Progress
from pipeline.sweep.environment import check_environment
from pipeline.sweep.estimate import Expected, TimeLeft, dry_runs, first_line
from pipeline.sweep.preparation import described
from pipeline.sweep.scheduler import Scheduler, scheduler_of
from pipeline.sweep.stopping import stoppable
from pipeline.sweep.tracking import BackgroundTracker


def sweep(name: str, subset: Subset | None = None) -> str:
    """Run the pending trials of a table and write `results/<table>/`.

    A failed trial results in a failed cell and does not end the sweep. To continue an interrupted sweep,
    start it again: runs in the ledger are not repeated, and a trial continues from its checkpoint.

    Args:
        subset: the part that is run; by default the one that `params.yaml` selects.

    Returns:
        A line with the number of failed simulations, or of those whose models could not be written; empty if
        there are none. The next sweep retries them.

    Raises:
        InvalidInput: the table is not valid, another command is using the table, or a file cannot be
            written.
    """
    began = time.monotonic()
    whole, subset = load_table(name), subset or subset_of(name)
    table = whole.part(subset)
    with table_lock(name), stoppable(name):
        ledger, manifest = Ledger(current_sources(name)), described(name, table)
        with BackgroundTracker(name) as tracker:
            scheduler = scheduler_of(name, table, ledger, on_record=tracker.run, on_cell=tracker.cell)
            less = (
                f"dvc exp run -S 'tables=[{name}]' -S 'subset.settings=[...]' -S 'subset.methods=[...]' "
                "-S 'subset.seeds=[...]'"
            )
            run(name, scheduler, less=less)
        outcome = outputs.outcome(name, whole, subset, scheduler, manifest, time.monotonic() - began)
        outputs.write(outcome, scheduler)
        failed = failures(outcome)
        if scheduler.unsaved and not failed:
            count = amount(scheduler.unsaved, "run")
            failed = f"the models of {count} could not be written; the next `dvc repro` retries them"
        if table == whole and not failed:  # left by failed trials, or from before an edit
            shutil.rmtree(checkpoints_of(name), ignore_errors=True)
    ran = f"{amount(scheduler.ran, 'run')} computed, {scheduler.served} from the ledger"
    folder = results_folder(name)
    print(f"{name}: {ran}; see {folder}/")
    if scheduler.ran:
        push, records = "`dvc push` while params.yaml selects the table", f"{PUBLISHED}/{name}.jsonl"
        if ledger.sources.dirty:
            share = f"use {push}; {PUBLISHED}/ gets no records of uncommitted files"
        elif git(Path(), "check-ignore", records):
            share = f"use {push}; git ignores {records}"
        else:
            share = f"commit {records}, or use {push}"
        print(f"{name}: to share the results, {share}")
    for cell in outcome.cells:
        if cell.errors:
            print(f"{cell.cell}: {cell.status} ({_by_cause(cell.errors)})")
    if table.keep:
        print(f"{name}: the final models are in {MODELS}/; {folder}/models.csv lists them")
    return failed


def _by_cause(errors: Sequence[str]) -> str:
    """The errors of a cell, each cause once: "final, seed 0 and search, seed 0 (4 runs): out of memory"."""
    causes: dict[str, Counter[str]] = {}
    for error in errors:
        trial, _, cause = error.partition(": ")
        causes.setdefault(cause, Counter())[trial] += 1
    return "; ".join(
        " and ".join(trial + f" ({count} runs)" * (count > 1) for trial, count in trials.items())
        + f": {cause}"
        for cause, trials in causes.items()
    )


class OutOfTime(Exception):  # noqa: N818 - reads as what it is
    """The time for a sweep is over; finished trials are in the ledger, and others have checkpoints."""


def run(
    name: str,
    scheduler: Scheduler,
    expected: Mapping[str, Expected] | None = None,
    seconds: float = math.inf,
    less: str = "",
) -> None:
    """Print an estimate and run the pending trials on Ray, which is imported only if there are any.

    At the end, even after an error, the records are published.

    Args:
        name: name of a table or a figure.
        expected: the outcome of `dry_runs`; by default they are run here.
        seconds: time limit.
        less: how to run a part, shown if this takes long.

    Raises:
        InvalidInput: this machine lacks what a sweep needs, or does not support a trial's precision.
        OutOfTime: some trials have not ended after ``seconds``.
    """
    from pipeline.sweep import cluster

    try:
        if scheduler.finished:
            return
        check_environment()
        resources = scheduler.resources
        check_precisions({trial.config["precision"] for trial in scheduler.open()}, resources)
        slots, device = slots_here(resources), device_of(resources).type
        deadline = time.monotonic() + seconds
        with Progress(name, scheduler) as progress:

            def watch(slots: int, under_way: Sequence[Sequence[Trial]]) -> None:
                progress.update(slots, under_way)
                if time.monotonic() > deadline:
                    raise OutOfTime

            if expected is None:
                expected = dry_runs(scheduler, device)
            left = TimeLeft(scheduler, expected)
            progress.expect(left, first_line(name, left, slots, device, less))
            cluster.run(scheduler, watch)
        assert scheduler.finished
    finally:
        publish(name)
