"""The train-sweep stage: every cell of a table searched and run, out of the ledger where it can."""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from types import FrameType, TracebackType
from typing import Any

from pfl.errors import InvalidInput
from pfl.trials import Record
from pipeline.spec.params import selected_subset
from pipeline.spec.table import Resources, Table, cells, load_table
from pipeline.store.json_io import load_division, load_manifest
from pipeline.store.ledger import Ledger, publish
from pipeline.store.tracking import Tracker
from pipeline.store.workspace import MODELS, SCRATCH, checkpoints_of, current_sources
from pipeline.sweep import results
from pipeline.sweep.cell_scheduler import Candidate, CellScheduler
from pipeline.sweep.check import check_precisions
from pipeline.sweep.estimate import Estimate
from pipeline.sweep.progress import Progress
from pipeline.sweep.scheduler import Scheduler

SECONDS_TO_STOP = 3.0  # that an interrupted sweep grants MLflow


def sweep(name: str) -> None:
    """Run what is left of a table and write `results/<table>/`.

    A trial that fails becomes a failed cell, never the end of the sweep. Interrupted, it is to be started
    again: what is in the ledger is not run twice, and a trial goes on from its checkpoint.

    Raises:
        InvalidInput: the table, a stage before this one that has not run, another sweep of the table, or a
            file that cannot be written.
    """
    began = time.monotonic()
    whole, subset = load_table(name), selected_subset()
    table = whole.part(subset)
    with alone(name), stoppable(name):
        sources = current_sources(name)
        ledger = Ledger(sources)
        for place in ledger.damaged:
            print(f"ledger: {place} is no row and is passed over; its trial is run again")
        try:
            with Writer(name, table) as writer:
                scheduler = scheduler_of(name, table, ledger, writer)
                run(name, scheduler, ledger, load_manifest(name)["datasets"], table.resources)
        finally:
            publish(name)
        found = results.write(name, whole, subset, scheduler, sources, time.monotonic() - began)
    print(f"{name}: {scheduler.ran} trials run, {scheduler.served} out of the ledger; see results/{name}/")
    for cell in found.cells:
        if cell.errors:
            print(f"{cell.cell}: {cell.status} ({'; '.join(cell.errors)})")
    if table.keep:
        print(f"{name}: the final models are in {MODELS}/; results/{name}/models.csv says which are whose")
    # A trial that diverged would do so again.
    if any(record.failed for record in scheduler.outcomes.values()):
        print(f"To try trials again that failed: dvc repro --force --single-item train-sweep@{name}")
    elif table == whole:  # of what was under way when the table was another one
        shutil.rmtree(checkpoints_of(name), ignore_errors=True)


def scheduler_of(name: str, table: Table, ledger: Ledger, writer: Writer | None = None) -> Scheduler:
    """What a table consists of, with what the ledger already has of it.

    Raises:
        InvalidInput: the download or the partition stage has not run.
    """
    wanted, datasets = cells(name, table), load_manifest(name)["datasets"]
    partitions = {
        division: load_division(name, division, cell.partition, table.seeds)
        for division, cell in {cell.partition_name: cell for cell in wanted}.items()
    }
    callbacks = (writer.record, writer.cell) if writer else ()
    return Scheduler(wanted, table, partitions, datasets, ledger, *callbacks)


def run(
    name: str, scheduler: Scheduler, ledger: Ledger, datasets: Mapping[str, Any], resources: Resources
) -> None:
    """Say what is to come, and let Ray run it; Ray is not even imported where nothing is left to run.

    Args:
        name: of a table or a figure.
        datasets: shape and number of classes of each, as in the manifest.
        resources: of one trial.

    Raises:
        InvalidInput: this machine does not compute in a trial's precision.
    """
    from joblib import cpu_count

    from pipeline.sweep import cluster

    if scheduler.finished:
        return
    check_precisions({trial.config["precision"] for trial in scheduler.open()}, resources)
    slots = max(1, cpu_count() // resources.cpus)
    print(Estimate.of(scheduler, ledger, datasets, slots).text(name, slots), flush=True)
    with Progress(name, scheduler) as progress:
        cluster.run(scheduler, resources, progress.update)


class Writer:
    """MLflow's single writer: a thread, so that no worker waits for the database."""

    def __init__(self, name: str, table: Table):
        self._tracker = Tracker(Path.cwd(), name)
        self._entries = SimpleQueue[Callable[[], None] | None]()
        self._thread = Thread(target=self._enter, daemon=True)
        self._outcomes: dict[str, Record] = {}

    def record(self, cell: CellScheduler, candidate: Candidate, record: Record, from_ledger: bool) -> None:
        self._outcomes[record.key] = record
        self._entries.put(partial(self._tracker.trial, cell.cell.id, record, candidate.number, from_ledger))

    def cell(self, cell: CellScheduler) -> None:
        result = cell.result(self._outcomes)
        self._entries.put(partial(self._tracker.cell, result, cell.cell.evaluation))

    def _enter(self) -> None:
        while entry := self._entries.get():
            entry()

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entries.put(None)
        if error:  # the next sweep enters what is missing, and a store that hangs is not waited for
            self._thread.join(SECONDS_TO_STOP)
        else:
            self._thread.join()
            self._tracker.save()


@contextmanager
def alone(name: str) -> Iterator[None]:
    """Hold the lock of a table or a figure, which ends with the process however that ends.

    Raises:
        InvalidInput: another process holds it.
    """
    SCRATCH.mkdir(exist_ok=True)
    with (SCRATCH / f"lock-{name}").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            accepted = f"a table that no other sweep is at ({file.read()}); wait for it, or stop it"
            raise InvalidInput("sweep", name, accepted) from None
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}, since {datetime.now():%H:%M}")
        file.flush()
        yield


@contextmanager
def stoppable(name: str) -> Iterator[None]:
    """Answer Ctrl-C, and SIGTERM likewise, at once: Ray and MLflow take seconds to end."""

    def stop(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.default_int_handler)  # said once
        how = "The same command goes on from here: nothing that is done is run again."
        print(f"\n{name}: stopped. {how}", flush=True)
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # as in the background of a script
            signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
