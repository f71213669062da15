"""Tracking of a sweep in MLflow, during and after the sweep.

Only the driver of a sweep writes there. Nothing is read back, because results are in the ledger. If the store
is locked or missing, the sweep logs a warning, and missing entries are written later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from types import TracebackType

from pfl.core.errors import InvalidInput
from pfl.run.trials import Record
from pipeline.store.mlflow_store import MLflowStore
from pipeline.store.results import CellResult, load_results

log = logging.getLogger(__name__)

SECONDS_BETWEEN_TRIES = 30.0  # for a store that has failed
SECONDS_TO_STOP = 3.0  # time that an interrupted sweep gives MLflow to finish


class Tracker:
    """Writes one table's sweep to MLflow in a separate thread, so that no worker waits for the database.

    If the store fails, the sweep continues and tries it again from time to time; two lines are logged.

    Args:
        root: the project's root folder.
        table: the table's id, which names the experiment.

    Attributes:
        lost: why the store takes no entries; None while it does.

    >>> with Tracker(root, "digits") as tracker:  # doctest: +SKIP
    ...     tracker.trial("dir-0.1/fedprox", record, trial_number=3, from_ledger=False)
    ...     tracker.cell(result)
    """

    def __init__(self, root: Path, table: str):
        self.lost: str | None = None
        self._table = table
        self._store = MLflowStore(root, table)
        self._entries = SimpleQueue[Callable[[], None] | None]()
        self._closing = Event()
        self._thread = Thread(target=self._write_all, daemon=True)

    def trial(
        self, cell: str, record: Record, trial_number: int | None = None, from_ledger: bool = False
    ) -> None:
        """Queue one record; see `MLflowStore.trial`."""
        self._entries.put(partial(self._store.trial, cell, record, trial_number, from_ledger))

    def cell(self, result: CellResult) -> None:
        """Queue the end of a cell; see `MLflowStore.cell`."""
        self._entries.put(partial(self._store.cell, result))

    def __enter__(self) -> Tracker:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entries.put(None)
        self._closing.set()
        # After an error the next sweep writes what is missing.
        self._thread.join(SECONDS_TO_STOP if error else None)

    def _write_all(self) -> None:
        while entry := self._entries.get():
            last_try = self._closing.is_set()
            while not self._write(entry):
                if last_try:
                    missing = self._entries.qsize()  # without this one, with the None at the end
                    log.warning(
                        "MLflow: %d entries are missing; `pfl track %s` adds them", missing, self._table
                    )
                    return
                last_try = self._closing.wait(SECONDS_BETWEEN_TRIES)

    def _write(self, entry: Callable[[], None]) -> bool:
        """Whether the store has taken an entry; the first failure and the recovery from it are logged."""
        try:
            entry()
        except Exception as error:
            known, self.lost = self.lost, self._store.cause(error)
            self._store.disconnect()
            if not known:
                log.warning(
                    "MLflow: %s; results are safe in the ledger, and the sweep retries every %.0f s; "
                    "`pfl track %s` adds missing entries once the store works",
                    self.lost,
                    SECONDS_BETWEEN_TRIES,
                    self._table,
                )
            return False
        if self.lost:
            log.warning("MLflow: the store works again")
        self.lost = None
        return True


def attach_report(root: Path, table: str, folder: Path) -> str:
    """Attach a table's report to its runs in MLflow; the returned line says where they are or what failed."""
    store = MLflowStore(root, table)
    try:
        return f"runs: mlflow ui, then {store.report(folder)}"
    except Exception as error:
        return f"MLflow: {store.cause(error)}; `pfl track {table}` attaches the report later"


def rebuild(root: Path, table: str, successes: Iterable[Record]) -> int:
    """Write all of a table's records to MLflow, and return the number of trials.

    Args:
        successes: the table's in the ledger; results of its earlier sweeps are written, too.

    Raises:
        InvalidInput: the table has no results yet, or none that can be read, or the store cannot be written.
    """
    results = load_results(table, root)
    store = MLflowStore(root, table)
    entered = set[tuple[str, str]]()
    try:
        for result in results.cells:
            for trial in (*result.searched, *result.configurations):
                for record in trial.records:
                    store.trial(result.cell, record, trial.number, from_ledger=True)
                    entered.add((result.cell, record.key))
            store.cell(result)
        for record in successes:
            if (record.cell, record.key) not in entered:
                store.trial(record.cell, record, from_ledger=True)
                entered.add((record.cell, record.key))
    except Exception as error:
        accepted = f"a store that can be written: {store.cause(error)}"
        raise InvalidInput("MLFLOW_TRACKING_URI", store.name, accepted) from error
    return len(entered)
