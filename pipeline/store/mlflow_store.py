"""One table's runs in MLflow: a parent run per cell, a child run per record, each written once.

The store is ``mlflow.db`` in the root, where plain ``mlflow ui`` finds it; MLFLOW_TRACKING_URI names another.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

from pfl.core.text import first_line
from pfl.run.trials import Record
from pipeline.spec.paths import partition_file
from pipeline.store import mlflow_client
from pipeline.store import mlflow_mapping as mapping
from pipeline.store.results import CellResult

if TYPE_CHECKING:
    from mlflow import MlflowClient

KIND = "custom_model_development"
"""Experiment kind whose pages show runs and charts; for other kinds MLflow asks the user."""

UI = "http://127.0.0.1:5000"
"""Default address of `mlflow ui`."""


class MLflowStore:
    """Writes the runs of one table, each once, however often it is asked to.

    Its methods raise whatever MLflow raises. After an error call `disconnect`: the next call reads again what
    the experiment holds, and replaces a run that was written in part.

    Args:
        root: the project's root folder.
        table: the table's id, which names the experiment.

    >>> store = MLflowStore(root, "digits")  # doctest: +SKIP
    >>> store.trial("dir-0.1/fedprox", record, trial_number=3, from_ledger=False)  # doctest: +SKIP
    >>> store.cell(result)  # doctest: +SKIP
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
        self._outcomes: dict[str, str] = {}  # cell: the outcome that its run has
        self._report: str | None = None  # run id
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
        started, finished = mapping.span_of([record])
        tags = mapping.tags(self._table, cell, record)
        parent = self._parent(client, cell, {**tags, "phase": mapping.CELL}, started)
        run = client.create_run(
            self._experiment,
            start_time=started,
            run_name=mapping.run_name(record, trial_number),
            tags={
                **tags,
                **mapping.trial_tags(record, trial_number, from_ledger),
                "mlflow.parentRunId": parent,
            },
        ).info.run_id
        status = "KILLED"  # until everything is written
        try:
            mlflow_client.log(client, run, mapping.measures(record), finished, mapping.parameters(record))
            mlflow_client.log_dataset(client, run, record)
            if record.phase == "final" and not record.failed:
                client.log_text(run, mapping.per_client(record), "per_client.csv")
            status = mapping.status(record)
        finally:
            client.set_terminated(run, status, finished)
        (self._unsettled if record.failed else self._trials)[known_as] = run

    def cell(self, result: CellResult) -> None:
        """Write a cell's scores over the seeds to its parent run, and end that run."""
        client = self._connect()
        records = mapping.cell_records(result)
        tags = mapping.cell_tags(self._table, result)
        if self._outcomes.get(result.cell, tags["outcome"]) != tags["outcome"]:
            # MLflow takes no second value of a parameter, and keeps every point of a curve.
            client.delete_run(self._parents.pop(result.cell))
        span = mapping.span_of(records) if records else None
        parent = self._parent(client, result.cell, tags, span and span[0])
        self._outcomes[result.cell] = tags["outcome"]
        mlflow_client.log(client, parent, [], 0, tags=tags)
        if span:
            measures = mapping.cell_measures(result)
            mlflow_client.log(client, parent, measures, span[1], mapping.cell_parameters(result))
            mlflow_client.log_dataset(client, parent, records[0])
        for name in (f"{result.setting}.{result.row}", result.setting):  # the row's own, or the column's
            plot = self._root / partition_file(self._table, name).with_suffix(".svg")
            if plot.exists():
                client.log_artifact(parent, str(plot))
                break
        status = "FAILED" if result.status in ("diverged", "failed") else "FINISHED"
        client.set_terminated(parent, status, span and span[1])

    def report(self, folder: Path) -> str:
        """Attach the table's report to a separate run; it replaces an earlier report.

        Args:
            folder: the report's files.

        Returns:
            The address of MLflow's page that compares the cells.
        """
        client = self._connect()
        if self._report is None:
            tags = {"table": self._table, "phase": mapping.REPORT}
            run = client.create_run(self._experiment, tags=tags, run_name=f"report of {self._table}")
            self._report = run.info.run_id
        client.log_artifacts(self._report, str(folder))
        client.set_terminated(self._report)
        return self._comparison()

    def disconnect(self) -> None:
        """Forget the connection and what was read through it."""
        self._client = None

    def cause(self, error: Exception) -> str:
        """One line of an error, without the password that the store's address may hold."""
        first = first_line(error) or type(error).__name__
        address = urlsplit(self._uri).netloc
        return first.replace(address, self.name) if address else first

    @property
    def name(self) -> str:
        """The database's file or the server's name, without what a committed file should not say."""
        url = urlsplit(self._uri)
        return url.hostname or Path(url.path).name or url.scheme

    def _connect(self) -> MlflowClient:
        """The client; the first call opens the store and reads which runs the experiment already has."""
        if self._client is None:
            mlflow_client.quieten()
            from mlflow import MlflowClient

            if self._local and not self._local.exists():
                mlflow_client.create(self._local)
            client = MlflowClient(self._uri)
            for known in (self._parents, self._outcomes, self._trials, self._unsettled):
                known.clear()
            self._report = None
            self._experiment = self._open_experiment(client)
            for run in mlflow_client.runs(client, self._experiment):
                cell, key = run.data.tags.get("cell"), run.data.tags.get("key")
                if cell and key:
                    settled = run.info.status in ("FINISHED", "FAILED") and "error" not in run.data.tags
                    (self._trials if settled else self._unsettled)[cell, key] = run.info.run_id
                elif cell:
                    self._parents[cell] = run.info.run_id
                    if "outcome" in run.data.tags:
                        self._outcomes[cell] = run.data.tags["outcome"]
                elif run.data.tags.get("phase") == mapping.REPORT:
                    self._report = run.info.run_id
            self._client = client
        return self._client

    def _open_experiment(self, client: MlflowClient) -> str:
        experiment = client.get_experiment_by_name(self._table)
        if experiment is None:
            local = self._uri.startswith("sqlite:")  # a server keeps the artifacts where it likes
            location = (self._root / "mlruns" / self._table).as_uri() if local else None
            return client.create_experiment(self._table, location, {"mlflow.experimentKind": KIND})
        if experiment.lifecycle_stage == "deleted":
            client.restore_experiment(experiment.experiment_id)
        return experiment.experiment_id

    def _parent(self, client: MlflowClient, cell: str, tags: dict[str, str], started: int | None) -> str:
        if cell not in self._parents:
            run = client.create_run(self._experiment, started, tags, cell).info.run_id
            # Not RUNNING: a killed sweep would leave it so for ever. `cell` ends it.
            client.update_run(run, status="SCHEDULED")
            for (of, _), trial in (self._trials | self._unsettled).items():
                if of == cell:  # its former parent was replaced
                    client.set_tag(trial, "mlflow.parentRunId", run)
            self._parents[cell] = run
        return self._parents[cell]

    def _comparison(self) -> str:
        """The address of the page with the charts of all cells, without the store's user and password."""
        server, base = urlsplit(self._uri), UI
        if server.scheme.startswith("http"):
            base = server._replace(netloc=server.netloc.rpartition("@")[2]).geturl().rstrip("/")
        query = {"workflowType": "machine_learning", "compareRunsMode": "CHART"}
        query |= {"searchFilter": f"tags.phase = '{mapping.CELL}'"}
        return f"{base}/#/experiments/{self._experiment}/runs?{urlencode(query)}"
