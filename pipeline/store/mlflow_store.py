"""One table's runs in MLflow: a parent run per cell, a child run per trial, each written once.

The store is ``mlflow.db`` in the root, where plain ``mlflow ui`` finds it; MLFLOW_TRACKING_URI names another.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pfl.trials import Record
from pipeline.spec.evaluation import Evaluation
from pipeline.store import mlflow_mapping as mapping
from pipeline.store.mlflow_mapping import Measure
from pipeline.store.results import CellResult
from pipeline.store.scores import score

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

METRICS_PER_REQUEST = 900  # MLflow takes 1000 metrics, parameters and tags together


class MLflowStore:
    """Writes the runs of one table, each once, however often it is asked to.

    Its methods raise whatever MLflow raises. After an error call `disconnect`: the next call reads again what
    the experiment holds, and replaces a run that was written in part.

    Args:
        root: the project's root folder.
        table: the table's id, which names the experiment.

    >>> store = MLflowStore(root, "digits")
    >>> store.trial("dir-0.1/fedprox", record, trial_number=3, from_ledger=False)
    >>> store.cell(result, evaluation)
    """

    def __init__(self, root: Path, table: str):
        self._table = table
        self._root = root.resolve()
        elsewhere = os.environ.get("MLFLOW_TRACKING_URI")
        self._local = None if elsewhere else self._root / "mlflow.db"
        self._uri = elsewhere or f"sqlite:///{self._local}"
        self._client: MlflowClient | None = None
        self._experiment = ""
        self._parents: dict[str, str] = {}  # cell: run id
        self._trials: dict[tuple[str, str], str] = {}  # cell and key: run id
        self._unsettled: dict[tuple[str, str], str] = {}  # likewise, of runs to be written again

    def trial(
        self, cell: str, record: Record, trial_number: int | None = None, from_ledger: bool = False
    ) -> None:
        """Write one record as a child run of its cell.

        Args:
            cell: "<setting>/<row>" in this table; the record itself may come from another table's ledger.
            trial_number: the search trial that the configuration comes from, 0 being the pinned one; None
                where the cell was not searched.
            from_ledger: the record was found there rather than computed now.
        """
        known_as = (cell, record.key)
        client = self._connect()
        if known_as in self._trials:
            return
        if known_as in self._unsettled:
            client.delete_run(self._unsettled.pop(known_as))
        parent = self._parent(client, cell, record)
        started, finished = mapping.span(record)
        run = client.create_run(
            self._experiment,
            start_time=started,
            run_name=mapping.run_name(record, trial_number),
            tags={
                **mapping.tags(self._table, cell, record),
                **mapping.trial_tags(record, trial_number, from_ledger),
                "mlflow.parentRunId": parent,
            },
        ).info.run_id
        status = "KILLED"  # until everything is in
        try:
            _log(client, run, mapping.measures(record), finished, mapping.parameters(record))
            if record.phase == "final" and not record.failed:
                client.log_text(run, mapping.per_client(record), "per_client.csv")
            status = mapping.status(record)
        finally:
            client.set_terminated(run, status, finished)
        (self._unsettled if record.failed else self._trials)[known_as] = run

    def cell(self, result: CellResult, evaluation: Evaluation) -> None:
        """Write a cell's scores over the seeds to its parent run, and end that run.

        Args:
            evaluation: what is reported of the cell.
        """
        client = self._connect()
        parent = self._parents.get(result.cell)
        if parent is None:  # no record of it was written: nothing has run
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
        tags = mapping.tags(self._table, result.cell, records[0]) if records else {}
        tags["seeds"] = ",".join(map(str, sorted({record.seed for record in records})))
        tags["status"] = result.status
        # Of several values MLflow shows the one with the latest time, and the rows may be older than those
        # of a configuration that was tried in between.
        _log(client, parent, measures, round(1000 * time.time()), tags=tags)
        plot = self._root / "data" / "partitions" / self._table / f"{result.setting}.svg"
        if plot.exists():
            client.log_artifact(parent, str(plot))
        finished = max((mapping.span(record)[1] for record in records), default=None)
        client.set_terminated(parent, "FAILED" if result.status == "failed" else "FINISHED", finished)

    def disconnect(self) -> None:
        """Forget the connection and what was read through it."""
        self._client = None

    def cause(self, error: Exception) -> str:
        """One line of an error, without the password that the store's address may hold."""
        first = str(error).strip().partition("\n")[0] or type(error).__name__
        address = urlsplit(self._uri).netloc
        return (first.replace(address, self.name) if address else first)[:160]

    @property
    def name(self) -> str:
        """The database's file or the server's name, without what a committed file should not say."""
        url = urlsplit(self._uri)
        return url.hostname or Path(url.path).name or url.scheme

    def _connect(self) -> MlflowClient:
        """The client; the first call opens the store and reads which runs the experiment already has."""
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
        experiment = client.get_experiment_by_name(self._table)
        if experiment is None:
            local = self._uri.startswith("sqlite:")  # a server keeps the artifacts where it likes
            location = (self._root / "mlruns" / self._table).as_uri() if local else None
            return client.create_experiment(self._table, artifact_location=location)
        if experiment.lifecycle_stage == "deleted":
            client.restore_experiment(experiment.experiment_id)
        return experiment.experiment_id

    def _parent(self, client: MlflowClient, cell: str, record: Record) -> str:
        if cell not in self._parents:
            started, _ = mapping.span(record)
            tags = mapping.tags(self._table, cell, record)
            run = client.create_run(self._experiment, started, tags, cell).info.run_id
            # Not RUNNING: a killed sweep would leave it so for ever. `cell` ends it.
            client.update_run(run, status="SCHEDULED")
            self._parents[cell] = run
        return self._parents[cell]


def _quieten() -> None:
    """Set what MLflow reads when it is imported: no telemetry, little output, and seconds instead of minutes
    to wait for a server that is gone.
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
    """Make an empty store, all or nothing: MLflow cannot use one whose creation was cut off."""
    from mlflow import MlflowClient

    for left in database.parent.glob(f"{database.name}.partial*"):
        left.unlink()
    # A new name for every try: MLflow caches what it knows of a store by its address.
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
    client.log_batch(run, metrics[:METRICS_PER_REQUEST], *texts)
    for start in range(METRICS_PER_REQUEST, len(metrics), METRICS_PER_REQUEST):
        client.log_batch(run, metrics[start : start + METRICS_PER_REQUEST])
