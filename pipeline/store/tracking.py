"""A sweep in MLflow, to browse: a parent run a cell, a child run a trial.

Only the driver of a sweep writes here, through a client with explicit ids. The store is ``mlflow.db`` in the
root, where plain ``mlflow ui`` finds it; MLFLOW_TRACKING_URI names another. Nothing is read back out of it:
results live in the ledger, so a store that is locked or gone costs a warning, and is filled in afterwards.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec
from urllib.parse import urlsplit

from pfl.errors import InvalidInput
from pfl.files import write_json
from pfl.trials import Record
from pipeline.spec.evaluation import Evaluation
from pipeline.spec.table import cells
from pipeline.store import mlflow_mapping as entries
from pipeline.store.mlflow_mapping import Measure
from pipeline.store.results import CellResult, load_results
from pipeline.store.scores import score

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

log = logging.getLogger(__name__)

P = ParamSpec("P")

SECONDS_BETWEEN_TRIES = 30  # at a store that has failed
METRICS_A_REQUEST = 900  # MLflow takes 1000 metrics, parameters and tags together


def _entry(
    method: Callable[Concatenate[Tracker, P], None],
) -> Callable[Concatenate[Tracker, P], None]:
    """Make ``method`` one that is carried out now or, where the store fails, once it answers again."""

    @functools.wraps(method)
    def entered(self: Tracker, /, *args: P.args, **kwargs: P.kwargs) -> None:
        self._waiting.append(functools.partial(method, self, *args, **kwargs))
        if time.monotonic() >= self._next_try:
            self.catch_up()

    return entered


class Tracker:
    """Enters the rows of one table's sweep into MLflow, each once, whatever is run again.

    A store that fails is tried again from time to time, and costs two lines: no sweep ends because nobody can
    watch it.

    Args:
        root: the project's root folder.
        table: the table's id, which names the experiment.

    Attributes:
        lost: why the store takes no entries; None while it does.

    >>> tracker = Tracker(root, "digits")
    >>> tracker.trial("dir-0.1/fedprox", record, trial_number=3, from_ledger=False)
    >>> tracker.cell(result, evaluation)
    >>> tracker.save()
    """

    def __init__(self, root: Path, table: str):
        self.table = table
        self.lost: str | None = None
        self._root = root.resolve()
        elsewhere = os.environ.get("MLFLOW_TRACKING_URI")
        self._local = None if elsewhere else self._root / "mlflow.db"
        self._uri = elsewhere or f"sqlite:///{self._local}"
        self._waiting: deque[Callable[[], None]] = deque()
        self._next_try = 0.0
        self._client: MlflowClient | None = None
        self._experiment = ""
        self._parents: dict[str, str] = {}  # cell: run id
        self._trials: dict[tuple[str, str], str] = {}  # cell and key: run id
        self._unsettled: dict[tuple[str, str], str] = {}  # likewise, of runs to be entered again

    @_entry
    def trial(
        self, cell: str, record: Record, trial_number: int | None = None, from_ledger: bool = False
    ) -> None:
        """Enter one record as a child run of its cell.

        Args:
            cell: "<setting>/<row>" in this table; the record itself may come from another table's ledger.
            trial_number: the search trial that the configuration comes from, 0 being the pinned one; None
                where the cell was not searched.
            from_ledger: the record was found there rather than computed now.
        """
        found = (cell, record.key)
        client = self._connect()
        if found in self._trials:
            return
        if found in self._unsettled:
            client.delete_run(self._unsettled.pop(found))
        parent = self._parent(client, cell, record)
        started, finished = entries.span(record)
        run = client.create_run(
            self._experiment,
            start_time=started,
            run_name=entries.run_name(record, trial_number),
            tags={
                **entries.tags(self.table, cell, record),
                **entries.trial_tags(record, trial_number, from_ledger),
                "mlflow.parentRunId": parent,
            },
        ).info.run_id
        status = "KILLED"  # until everything is in
        try:
            _log(client, run, entries.measures(record), finished, entries.parameters(record))
            if record.phase == "final" and not record.failed:
                client.log_text(run, entries.per_client(record), "per_client.csv")
            status = entries.status(record)
        finally:
            client.set_terminated(run, status, finished)
        (self._unsettled if record.failed else self._trials)[found] = run

    @_entry
    def cell(self, result: CellResult, evaluation: Evaluation) -> None:
        """Conclude a cell: its scores over the seeds onto the parent run.

        Args:
            evaluation: what is reported of the cell.
        """
        client = self._connect()
        parent = self._parents.get(result.cell)
        if parent is None:  # no row of it was entered: nothing has been run
            return
        measures: list[Measure] = []
        records: list[Record] = []
        for prefix, configuration in (("", result.pinned), ("selected_", result.selected)):
            if configuration:
                records += configuration.rows
                reached = score(configuration.rows, evaluation)
                if reached:
                    name = prefix + ("accuracy" if evaluation.is_accuracy else evaluation.metric)
                    measures += [(name, reached.mean, 0), (f"{name}_std", reached.std, 0)]
        measures.append(("wall_seconds", math.fsum(record.measured.wall_seconds for record in records), 0))
        tags = entries.tags(self.table, result.cell, records[0]) if records else {}
        tags["seeds"] = ",".join(map(str, sorted({record.seed for record in records})))
        tags["status"] = result.status
        # Of several values MLflow shows the one with the latest time, and the rows may be older than those
        # of a configuration that was tried in between.
        _log(client, parent, measures, round(1000 * time.time()), tags=tags)
        plot = self._root / "data" / "partitions" / self.table / f"{result.setting}.svg"
        if plot.exists():
            client.log_artifact(parent, str(plot))
        finished = max((entries.span(record)[1] for record in records), default=None)
        client.set_terminated(parent, "FAILED" if result.status == "failed" else "FINISHED", finished)

    def catch_up(self) -> None:
        """Enter what waits for the store, in order."""
        try:
            while self._waiting:
                self._waiting[0]()
                self._waiting.popleft()
        except Exception as error:
            known, self.lost = self.lost, self._cause(error)
            self._client = None  # what was entered by half is found, and entered anew
            self._next_try = time.monotonic() + SECONDS_BETWEEN_TRIES
            if not known:
                log.warning(
                    "MLflow: %s; results are safe in the ledger; they are entered when it answers, or by "
                    "`pfl track %s`",
                    self.lost,
                    self.table,
                )
        else:
            if self.lost:
                log.warning("MLflow: the store answers again, and has everything")
            self.lost = None

    def _cause(self, error: Exception) -> str:
        """One line of an error, without the password that the store's address may hold."""
        first = str(error).strip().partition("\n")[0] or type(error).__name__
        address = urlsplit(self._uri).netloc
        return (first.replace(address, self.store) if address else first)[:160]

    def run_ids(self) -> dict[str, Any]:
        """Experiment, store and the run ids of every cell and of its trials by key."""
        cells: dict[str, Any] = {c: {"run": run, "trials": {}} for c, run in self._parents.items()}
        for (cell, key), run in self._trials.items():
            if cell in cells:
                cells[cell]["trials"][key] = run
        return {"experiment": self.table, "store": self.store, "cells": cells}

    @property
    def store(self) -> str:
        """The database's file or the server's name, without what a committed file should not say."""
        url = urlsplit(self._uri)
        return url.hostname or Path(url.path).name or url.scheme

    def save(self) -> None:
        """Write `run_ids` to ``results/<table>/mlflow.json``."""
        self.catch_up()
        if self.lost:
            log.warning(
                "MLflow: %d entries are missing; `pfl track %s` makes them", len(self._waiting), self.table
            )
        write_json(self._root / "results" / self.table / "mlflow.json", self.run_ids())

    # ---- the store -------------------------------------------------------------------------------------

    def _connect(self) -> MlflowClient:
        """The client; the first call opens the store and finds what the experiment holds already."""
        if self._client is None:
            _quieten()
            from mlflow import MlflowClient

            if self._local and not self._local.exists():
                _create(self._local)
            client = MlflowClient(self._uri)
            for known in (self._parents, self._trials, self._unsettled):
                known.clear()
            self._experiment = self._open_experiment(client)
            for run in _runs(client, self._experiment):
                cell, key = run.data.tags.get("cell"), run.data.tags.get("key")
                if cell and key:
                    settled = run.info.status in ("FINISHED", "FAILED") and "error" not in run.data.tags
                    (self._trials if settled else self._unsettled)[cell, key] = run.info.run_id
                elif cell:
                    self._parents[cell] = run.info.run_id
            self._client = client
        return self._client

    def _open_experiment(self, client: MlflowClient) -> str:
        experiment = client.get_experiment_by_name(self.table)
        if experiment is None:
            local = self._uri.startswith("sqlite:")  # a server keeps the artifacts where it likes
            location = (self._root / "mlruns" / self.table).as_uri() if local else None
            return client.create_experiment(self.table, artifact_location=location)
        if experiment.lifecycle_stage == "deleted":
            client.restore_experiment(experiment.experiment_id)
        return experiment.experiment_id

    def _parent(self, client: MlflowClient, cell: str, record: Record) -> str:
        if cell not in self._parents:
            started, _ = entries.span(record)
            tags = entries.tags(self.table, cell, record)
            run = client.create_run(self._experiment, started, tags, cell).info.run_id
            # Not RUNNING: a killed sweep would leave it so for ever. `cell` concludes it.
            client.update_run(run, status="SCHEDULED")
            self._parents[cell] = run
        return self._parents[cell]


def rebuild(root: Path, table: str, find: Callable[[str], Record | None]) -> int:
    """Enter everything that a table's last sweep used; how many trials that is.

    Args:
        find: the ledger's record with a key, be it a failure.

    Raises:
        InvalidInput: the table has no results yet, or none that can be read, or the store cannot be written.
    """
    results = load_results(table, root)
    evaluations = {cell.id: cell.evaluation for cell in cells(table, results.config)}
    tracker = Tracker(root, table)
    entered = 0
    for result in results.cells:
        for record, trial_number in _records_of(result, find):
            tracker.trial(result.cell, record, trial_number, from_ledger=True)
            entered += 1
        tracker.cell(result, evaluations[result.cell])
    tracker.catch_up()
    if tracker.lost:
        raise InvalidInput(
            "MLFLOW_TRACKING_URI", tracker.store, f"a store that can be written: {tracker.lost}"
        )
    tracker.save()
    return entered


def _records_of(
    result: CellResult, find: Callable[[str], Record | None]
) -> Iterator[tuple[Record, int | None]]:
    """The records behind a cell, each with the number of the search trial that its configuration is of."""
    for searched in result.search:
        if record := find(searched.key):
            yield record, searched.trial
    for configuration in (result.pinned, result.selected):
        if configuration:
            failed = filter(None, map(find, configuration.failed))
            yield from ((record, configuration.trial) for record in (*configuration.rows, *failed))


def _quieten() -> None:
    """What mlflow reads when it is imported and connects: it tells its authors nothing and the screen little,
    and gives up a server that is gone after seconds instead of minutes.
    """
    for name, value in {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    }.items():
        os.environ.setdefault(name, value)
    for chatty in ("alembic", "mlflow.store.db.utils", "urllib3.connectionpool"):
        logging.getLogger(chatty).setLevel(logging.CRITICAL)


def _create(database: Path) -> None:
    """Make an empty store, all or nothing: MLflow itself cannot go on with one whose making was cut off."""
    from mlflow import MlflowClient

    for left in database.parent.glob(f"{database.name}.partial*"):
        left.unlink()
    # Another name for every try: MLflow keeps what it knows of a store by its address.
    partial = database.with_name(f"{database.name}.partial-{secrets.token_hex(4)}")
    MlflowClient(f"sqlite:///{partial}").search_experiments()
    partial.replace(database)


def _runs(client: MlflowClient, experiment: str) -> Iterator[Run]:
    token = None
    while True:
        page = client.search_runs([experiment], page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def _log(
    client: MlflowClient,
    run: str,
    measures: Sequence[Measure],
    timestamp: int,
    parameters: Mapping[str, str] = {},
    tags: Mapping[str, str] = {},
) -> None:
    """Write numbers, parameters and tags in one request, or as few as MLflow takes."""
    from mlflow.entities import Metric, Param, RunTag

    metrics = [
        Metric(name, value, timestamp, round)
        for name, value, round in measures
        if value is not None and math.isfinite(value)
    ]
    texts = [Param(*item) for item in parameters.items()], [RunTag(*item) for item in tags.items()]
    client.log_batch(run, metrics[:METRICS_A_REQUEST], *texts)
    for start in range(METRICS_A_REQUEST, len(metrics), METRICS_A_REQUEST):
        client.log_batch(run, metrics[start : start + METRICS_A_REQUEST])
