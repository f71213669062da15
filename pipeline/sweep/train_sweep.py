"""The train-sweep stage: search and run every cell of a table, except trials that are in the ledger."""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from pfl.core.errors import Conflict, InvalidInput
from pfl.core.text import amount
from pipeline.spec.cells import cells
from pipeline.spec.params import selected_subset
from pipeline.spec.paths import results_folder
from pipeline.spec.table import Resources, Subset, Table, load_table
from pipeline.store.ledger import Ledger, publish
from pipeline.store.results import failures
from pipeline.store.stage_files import load_division, load_manifest
from pipeline.store.tracking import Tracker
from pipeline.store.workspace import MODELS, SCRATCH, checkpoints_of, current_sources
from pipeline.sweep import outputs
from pipeline.sweep.calibration import Calibration
from pipeline.sweep.check import check_precisions, device_of, slots_here
from pipeline.sweep.display import Progress
from pipeline.sweep.environment import check_environment
from pipeline.sweep.estimate import Estimate
from pipeline.sweep.preparation import download, partition, settings_here
from pipeline.sweep.scheduler import Scheduler
from pipeline.sweep.stopping import stoppable


def sweep(name: str) -> str:
    """Run the pending trials of a table and write `results/<table>/`.

    A trial that fails becomes a failed cell, never the end of the sweep. To continue an
    interrupted sweep, start it again: what is in the ledger is not run twice, and a trial continues from its
    checkpoint.

    Returns:
        How many simulations failed, in a line; empty if none did. The next sweep tries them again.

    Raises:
        InvalidInput: the table is not valid, an earlier stage has not run, another sweep of the table is
            running, or a file cannot be written.
    """
    began = time.monotonic()
    whole, subset = load_table(name), selected_subset()
    table = whole.part(subset)
    with table_lock(name), stoppable(name):
        sources = current_sources(name)
        ledger = Ledger(sources)
        try:
            with Tracker(Path.cwd(), name) as tracker:
                scheduler = scheduler_of(name, table, ledger, tracker)
                run(name, scheduler, load_manifest(name)["datasets"], table.resources)
        finally:
            publish(name)
        outcome = outputs.write(name, whole, subset, scheduler, ledger, sources, time.monotonic() - began)
        if table == whole and not outcome.failed:  # left by trials that failed, or from before an edit
            shutil.rmtree(checkpoints_of(name), ignore_errors=True)
    ran = f"{amount(scheduler.ran, 'run')} computed, {scheduler.served} from the ledger"
    folder = results_folder(name)
    print(f"{name}: {ran}; see {folder}/")
    for cell in outcome.cells:
        if cell.errors:
            print(f"{cell.cell}: {cell.status} ({_by_cause(cell.errors)})")
    if table.keep:
        print(f"{name}: the final models are in {MODELS}/; {folder}/models.csv lists them")
    return failures(outcome)


def collect(name: str) -> int:
    """Write `results/<table>/` out of the ledger alone, and return how many cells it has; nothing is run.

    A cell is in it if the ledger has all that it needs, whatever `params.yaml` selects and whichever table it
    was run for. The seeds are those that all cells have, or the table's if there is a search. Without any
    cell, nothing is written.

    Raises:
        InvalidInput: the table is not valid, or a sweep of it is running.
    """
    whole = load_table(name)
    settings = settings_here(whole)
    if not settings:
        return 0
    with table_lock(name):
        sources = current_sources(name)
        ledger = Ledger(sources)
        scheduler = in_memory(name, whole.part(Subset(settings=settings)), ledger)
        seeds = shared_seeds(scheduler, whole.seeds)
        if whole.searched_rows or seeds == whole.seeds:
            seeds = []
        else:
            scheduler = in_memory(name, whole.part(Subset(settings=settings, seeds=seeds)), ledger)
        scheduler.cells = [cell for cell in scheduler.cells if cell.finished]
        if not scheduler.cells:
            return 0
        there = [cell.cell for cell in scheduler.cells]
        held = whole.subset({cell.setting for cell in there}, {cell.row for cell in there}, seeds)
        download(name, whole.part(held))
        partition(name, whole.part(held))
        # What the ledger lacks is missing, and not left out.
        outputs.write(name, whole, Subset(seeds=seeds), scheduler, ledger, sources, 0.0)
    return len(scheduler.cells)


def in_memory(name: str, table: Table, ledger: Ledger) -> Scheduler:
    """The trials of a table, with what the ledger has, before the download and partition stages have run."""
    from pfl.data.dataset import load
    from pfl.data.partition import make_division

    wanted = cells(name, table)
    datasets = {dataset: load(dataset) for dataset in {cell.dataset for cell in wanted}}
    images = {
        dataset: {"shape": loaded.shape, "classes": len(loaded.classes)}
        for dataset, loaded in datasets.items()
    }
    partitions = {
        division: make_division(cell.partition, datasets[cell.dataset], cell.clients, table.drawn_seeds)
        for division, cell in {cell.partition_name: cell for cell in wanted}.items()
    }
    return Scheduler(wanted, table, partitions, images, ledger)


def shared_seeds(scheduler: Scheduler, seeds: Sequence[int]) -> list[int]:
    """The seeds that all cells have which have the first one; none if no cell has it."""
    held = [
        {seed for seed, key in zip(seeds, cell.pinned.keys, strict=True) if key in cell.seen}
        for cell in scheduler.cells
    ]
    begun = [of_cell for of_cell in held if seeds[0] in of_cell]
    return [seed for seed in seeds if all(seed in of_cell for of_cell in begun)]


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


def scheduler_of(name: str, table: Table, ledger: Ledger, tracker: Tracker | None = None) -> Scheduler:
    """The trials of a table, with the records that the ledger already has.

    Raises:
        InvalidInput: the download or the partition stage has not run since the table was edited.
    """
    wanted = cells(name, table)
    datasets = load_manifest(name, {cell.dataset for cell in wanted})["datasets"]
    partitions = {
        division: load_division(name, division, cell.partition, cell.clients, table.drawn_seeds)
        for division, cell in {cell.partition_name: cell for cell in wanted}.items()
    }
    callbacks = (tracker.trial, tracker.cell) if tracker else ()
    return Scheduler(wanted, table, partitions, datasets, ledger, *callbacks)


def run(name: str, scheduler: Scheduler, datasets: Mapping[str, Any], resources: Resources) -> None:
    """Print an estimate and run the pending trials on Ray, which is imported only if there are any.

    Args:
        name: of a table or a figure.
        datasets: shape and number of classes of each, as in the manifest.
        resources: of one trial.

    Raises:
        InvalidInput: this machine lacks what a sweep needs, or does not support a trial's precision.
    """
    from pipeline.sweep import cluster

    if scheduler.finished:
        return
    check_environment()
    check_precisions({trial.config["precision"] for trial in scheduler.open()}, resources)
    slots, device = slots_here(resources), device_of(resources).type
    calibration = Calibration(datasets)
    with suppress(InvalidInput):  # raised if it cannot be stored: the next sweep then measures again
        calibration.measure([one.cell for one in scheduler.cells], [device], lambda _: None)
    print(Estimate.of(scheduler, calibration, slots, device).text(name, slots), flush=True)
    with Progress(name, scheduler) as progress:
        cluster.run(scheduler, resources, progress.update)
    assert scheduler.finished


@contextmanager
def table_lock(name: str) -> Iterator[None]:
    """Hold the lock of a table or a figure; the system releases it when the process ends, even if killed.

    Raises:
        InvalidInput: another process holds it.
    """
    SCRATCH.mkdir(exist_ok=True)
    with (SCRATCH / f"lock-{name}").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            running = f"another sweep of this table is running ({file.read()})"
            raise Conflict(f"sweep of {name}", running, "wait for it, or stop it") from None
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}, since {datetime.now():%H:%M}")
        file.flush()
        yield
