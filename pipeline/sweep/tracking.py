"""Pass finished runs, cells and reports to the tracker, during a sweep and after it.

Nothing is read back, because results are in the ledger. If the tracker fails, the sweep logs a warning and
tries again; `pfl track` passes missing entries later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread

from pfl.core.errors import Conflict, InvalidInput
from pfl.core.text import first_line, without_password
from pfl.run.trials import Record
from pipeline.store.results import CellResult, load_results
from pipeline.store.workspace import table_lock
from pipeline.trackers import DEFAULT, OFF, TRACKERS, Tracker, tracker_name

log = logging.getLogger(__name__)

SECONDS_BETWEEN_TRIES = 30.0  # after a failure
SECONDS_TO_STOP = 3.0  # time that an interrupted sweep gives the tracker to finish

Entries = dict[tuple[str, str], tuple[Record, int | None]]
"""Each record with the number of its search trial, by cell and key."""


class BackgroundTracker(Tracker):
    """Passes entries to the tracker in a separate thread, so that no worker waits for it.

    Attributes:
        lost: why the tracker fails; None while it works.

    >>> with BackgroundTracker("digits") as tracker:  # doctest: +SKIP
    ...     tracker.run("dir-0.1/fedprox", record, trial=3)
    ...     tracker.cell(result)
    """

    def __init__(self, table: str):
        super().__init__(Path.cwd(), table)
        self.lost: str | None = None
        self._name = tracker_name()
        self._kind = TRACKERS[self._name]
        self._entries = SimpleQueue[Callable[[Tracker], None] | None]()
        self._closing = Event()
        self._thread = Thread(target=self._pass_all, daemon=True)

    def run(self, cell: str, record: Record, trial: int | None) -> None:
        self._entries.put(lambda tracker: tracker.run(cell, record, trial))

    def cell(self, result: CellResult) -> None:
        self._entries.put(lambda tracker: tracker.cell(result))

    def __enter__(self) -> BackgroundTracker:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._entries.put(None)
        self._closing.set()
        # After an error, the next sweep passes missing entries.
        self._thread.join(SECONDS_TO_STOP if error else None)

    def _pass_all(self) -> None:
        """Pass every entry; after a failure, pass it again to a new tracker until it is accepted."""
        tracker: Tracker | None = None
        while entry := self._entries.get():
            while True:
                last_try = self._closing.is_set()
                try:
                    tracker = tracker or self._kind(self.root, self.table)
                    entry(tracker)
                    break
                except Exception as error:
                    known, self.lost, tracker = self.lost, _cause(error), None
                if not known:
                    later = f"`pfl track {self.table}` adds missing entries once it works"
                    again = f"the sweep retries every {SECONDS_BETWEEN_TRIES:.0f} s"
                    self._warn(f"{self.lost}; results are safe in the ledger, and {again}; {later}")
                if last_try:
                    missing = self._entries.qsize()  # this one and those in the queue, which ends with None
                    self._warn(f"{missing} entries are missing; `pfl track {self.table}` adds them")
                    return
                self._closing.wait(SECONDS_BETWEEN_TRIES)
            if self.lost:
                self._warn("works again")
                self.lost = None

    def _warn(self, message: str) -> None:
        log.warning("%s: %s", self._name, message)


def track_report(table: str, folder: Path) -> str:
    """Pass a table's report to the tracker; the returned line says where it is or what failed."""
    try:
        return TRACKERS[tracker_name()](Path.cwd(), table).report(folder)
    except Exception as error:
        return f"{tracker_name()}: {_cause(error)}; `pfl track {table}` adds the report later"


def track_again(table: str, successes: Iterable[Record]) -> int:
    """Pass all of a table's records to the tracker, and return their number.

    Args:
        successes: the table's successful records in the ledger, including those of earlier sweeps.

    Raises:
        InvalidInput: tracking is off, the table has no readable results, another command is using it, or
            the tracker fails.
    """
    if tracker_name() == OFF:
        turn_on = f"unset it for {DEFAULT}, or set it to the name of another tracker"
        raise Conflict("PFL_TRACKER", f"{OFF} means that tracking is off", turn_on)
    results, kind = load_results(table), TRACKERS[tracker_name()]
    earlier: Entries = {(record.cell, record.key): (record, None) for record in successes}
    latest: Entries = {
        (cell.cell, record.key): (record, trial.number)
        for cell in results.cells
        for trial in cell.trials
        for record in trial.records
    }
    entries = earlier | latest
    with table_lock(table):  # a tracker reads once which entries it has
        try:
            tracker = kind(Path.cwd(), table)
            for (cell, _), (record, number) in entries.items():
                tracker.run(cell, record, number)
            for result in results.cells:
                tracker.cell(result)
        except Exception as error:
            raise InvalidInput("tracker", tracker_name(), f"a working tracker: {_cause(error)}") from error
    return len(entries)


def _cause(error: Exception) -> str:
    return without_password(first_line(error) or type(error).__name__)
