"""MLflow: one run per cell, with a child run per record. Each is written once.

The store is ``mlflow.db`` in the root, where plain ``mlflow ui`` finds it; MLFLOW_TRACKING_URI names another.
"""

from __future__ import annotations

import json
import logging
import math
import os
import secrets
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlencode

from pfl.core.errors import InvalidInput
from pfl.core.files import folder_lock
from pfl.core.text import without_password
from pfl.run.trials import Record
from pipeline.spec.paths import partition_file
from pipeline.store.results import CellResult
from pipeline.store.workspace import check_folder
from pipeline.trackers import Tracker
from pipeline.trackers import _mlflow_mapping as mapping
from pipeline.trackers._mlflow_mapping import Measure

if TYPE_CHECKING:
    from mlflow.entities import Run

SCHEMES = ("databricks", "http", "https", "mssql", "mysql", "postgresql", "sqlite", "uc")
"""Schemes of MLflow's stores, besides those of its plugins. It writes to files only on request."""

KIND = "custom_model_development"
"""Experiment kind whose pages show runs and charts; for other kinds MLflow asks the user."""

UI = "http://127.0.0.1:5000"
"""Default address of `mlflow ui`."""

VIEW = "mlflow.sharedViewState."
"""Prefix of the experiment tags that hold the state of a shared view of its page."""

SHARED = "viewStateShareKey"
"""The URL parameter that names such a view."""

COLUMN = "column."
"""Prefix of the name of a view of one setting."""

MOST_RUNS = 50_000  # requested from MLflow, far more than a table has
METRICS_PER_REQUEST = 900  # MLflow accepts 1000 metrics, parameters and tags together
ARTIFACT_COLUMNS = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
)
"""The tables and columns of MLflow's database that hold addresses of artifacts."""
DIGEST = 8  # characters of a data set's checksum, as in MLflow's own digests


class MLflowTracker(Tracker):
    """Writes to the experiment with the table's name; a partly written run is replaced."""

    def __init__(self, root: Path, table: str):
        super().__init__(root, table)
        self.check()
        _quieten()
        from mlflow import MlflowClient

        database = root.resolve() / "mlflow.db"
        address = os.environ.get("MLFLOW_TRACKING_URI")
        if not address and not database.exists():
            create(database)
        self._database = None if address else database
        self._address = address or f"sqlite:///{database}"
        self._client = MlflowClient(self._address)
        self._experiment = self._open_experiment()
        stored = self._client.search_runs([self._experiment], max_results=MOST_RUNS)
        self._runs = {_place(run): run for run in stored}

    @staticmethod
    def check() -> None:
        """Check the kind of store that MLFLOW_TRACKING_URI names, and the folder of a local one."""
        address = os.environ.get("MLFLOW_TRACKING_URI")
        if not address:
            check_folder("folder", Path())
            path = str(Path.cwd())
            if "?" in path or unquote(path) != path:  # MLflow would open a database elsewhere
                accepted = "a path without question marks and codes such as %20, or an MLFLOW_TRACKING_URI"
                raise InvalidInput("folder", path, accepted)
            return
        scheme, _, rest = address.partition("://")
        kind = scheme.partition("+")[0] if rest else ""
        if kind in ("", "file"):
            allowed = os.environ.get("MLFLOW_ALLOW_FILE_STORE", "").lower() in ("true", "1")
            known = allowed or address.startswith("databricks")
        else:
            known = kind in {*SCHEMES, *(point.name for point in entry_points(group="mlflow.tracking_store"))}
        if not known:
            database = f"sqlite:///{Path('mlflow.db').absolute()}"
            accepted = f"a database or a server, as in {database} or {UI} (unset, it is the former)"
            raise InvalidInput("MLFLOW_TRACKING_URI", without_password(address), accepted)
        if kind == "sqlite":
            check_folder("MLFLOW_TRACKING_URI", Path(rest[1:]).parent)

    def run(self, cell: str, record: Record, trial: int | None) -> None:
        place = (cell, record.key)
        if known := self._runs.get(place):
            if known.info.status in ("FINISHED", "FAILED") and "error" not in known.data.tags:
                return
            self._client.delete_run(self._runs.pop(place).info.run_id)
        began, ended = mapping.span_of([record])
        tags = mapping.cell_tags(self.table, cell, record)
        tags |= mapping.run_tags(record, trial) | {"mlflow.parentRunId": self._parent(cell, tags, began)}
        name = mapping.run_name(record, trial)
        run = self._client.create_run(self._experiment, began, tags, name).info.run_id
        self._log(run, mapping.measures(record), ended, mapping.parameters(record), record)
        if record.phase == "final" and not record.failed:
            self._client.log_text(run, mapping.per_client(record), "per_client.csv")
        self._end(place, run, "FAILED" if record.failure else "FINISHED", ended)

    def cell(self, result: CellResult) -> None:
        place = (result.cell, mapping.CELL)
        records = mapping.cell_records(result)
        began, ended = mapping.span_of(records)
        outcome = mapping.outcome_tags(result)
        tags = mapping.cell_tags(self.table, result.cell, records[0])
        known = self._runs.get(place)
        if known and known.data.tags.get("outcome", outcome["outcome"]) != outcome["outcome"]:
            # MLflow accepts one value per parameter, and keeps every point of a curve.
            self._client.delete_run(self._runs.pop(place).info.run_id)
        run = self._parent(result.cell, tags, began)
        for tag in outcome.items():  # first, so that another outcome replaces a partly written run
            self._client.set_tag(run, *tag)
        self._log(run, mapping.cell_measures(result), ended, mapping.cell_parameters(result), records[0])
        for name in (f"{result.setting}.{result.row}", result.setting):  # the row's own, or the column's
            plot = self.root / partition_file(self.table, name).with_suffix(".svg")
            if plot.exists():
                self._client.log_artifact(run, str(plot))
                break
        self._end(place, run, "FAILED" if result.status in ("diverged", "failed") else "FINISHED", ended)

    def report(self, folder: Path) -> str:
        """Attach the report to a separate run; return the URL of the page that compares the cells, and how to
        see a single setting."""
        if known := self._runs.get(("", mapping.REPORT)):
            run = known.info.run_id
        else:
            tags = {"table": self.table, "phase": mapping.REPORT}
            name = f"report of {self.table}"
            run = self._client.create_run(self._experiment, tags=tags, run_name=name).info.run_id
        self._client.log_artifacts(run, str(folder))
        self._client.set_terminated(run)
        base = without_password(self._address).rstrip("/") if self._address.startswith("http") else UI
        cells = f"tags.phase = '{mapping.CELL}'"
        settings = sorted({cell.split("/")[0] for cell, phase in self._runs if phase == mapping.CELL})
        for setting in settings:
            self._share_view(f"{COLUMN}{setting}", f"{cells} and tags.setting = '{setting}'")
        self._share_view(mapping.CELL, cells)
        query = {"workflowType": "machine_learning", "compareRunsMode": "CHART", SHARED: mapping.CELL}
        line = f"runs: mlflow ui, then {base}/#/experiments/{self._experiment}/runs?{urlencode(query)}"
        if len(settings) > 1:
            column = f"{SHARED}={COLUMN}{settings[0]}"
            line += f"\n      for one column, replace {SHARED}={mapping.CELL} in the URL, as in {column}"
        return line

    def _share_view(self, name: str, runs: str) -> None:
        """Share a view of the runs that match a filter, which ``SHARED`` selects in a URL."""
        # By default, a page shows ten runs. A filter in the URL would replace that of the view.
        view = {"searchFilter": runs, "runsHiddenMode": "SHOW_ALL"}
        self._client.set_experiment_tag(self._experiment, f"{VIEW}{name}", json.dumps(view))

    def _open_experiment(self) -> str:
        experiment = self._client.get_experiment_by_name(self.table)
        here = (self.root.resolve() / "mlruns" / self.table).as_uri()
        if experiment is None:
            local = self._address.startswith("sqlite:")  # a server chooses where it keeps artifacts
            location = here if local else None
            return str(self._client.create_experiment(self.table, location, {"mlflow.experimentKind": KIND}))
        if self._database and experiment.artifact_location != here:
            _relocate(self._database, experiment.artifact_location, here)
        if experiment.lifecycle_stage == "deleted":
            self._client.restore_experiment(experiment.experiment_id)
        return str(experiment.experiment_id)

    def _parent(self, cell: str, tags: dict[str, str], began: int) -> str:
        """The run of a cell, which is created if it is missing."""
        if (cell, mapping.CELL) not in self._runs:
            number = sum(phase == mapping.CELL for _, phase in self._runs)
            coloured = tags | {"mlflow.runColor": mapping.colour(number)}
            run = self._client.create_run(self._experiment, began, coloured, cell)
            # Not RUNNING, which a killed sweep would never end. `cell` ends it.
            self._client.update_run(run.info.run_id, status="SCHEDULED")
            for (owner, _), child in self._runs.items():
                if owner == cell:  # its former parent was replaced
                    self._client.set_tag(child.info.run_id, "mlflow.parentRunId", run.info.run_id)
            self._runs[cell, mapping.CELL] = run
        return str(self._runs[cell, mapping.CELL].info.run_id)

    def _log(
        self, run: str, measures: Sequence[Measure], time: int, parameters: Mapping[str, str], record: Record
    ) -> None:
        """Write numbers and parameters in as few requests as MLflow allows, and name the data set."""
        from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param

        metrics = [
            Metric(name, value, time, round)
            for name, value, round in measures
            if value is not None and math.isfinite(value)
        ]
        self._client.log_batch(
            run, metrics[:METRICS_PER_REQUEST], [Param(*item) for item in parameters.items()]
        )
        for start in range(METRICS_PER_REQUEST, len(metrics), METRICS_PER_REQUEST):
            self._client.log_batch(run, metrics[start : start + METRICS_PER_REQUEST])
        source = json.dumps({"dataset": record.dataset, "sha256": record.data_checksum})
        dataset = Dataset(record.dataset, record.data_checksum[:DIGEST], "pfl", source)
        self._client.log_inputs(run, [DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])])

    def _end(self, place: tuple[str, str], run: str, status: str, ended: int) -> None:
        self._client.set_terminated(run, status, ended)
        self._runs[place] = self._client.get_run(run)


def create(database: Path) -> None:
    """Create an empty store atomically unless there is one: MLflow cannot use a partly created one, and fails
    if two processes create the same one."""
    from mlflow import MlflowClient

    with folder_lock(database.parent):
        if database.exists():
            return
        for left in database.parent.glob(f"{database.name}.partial*"):
            left.unlink()
        # A new name for every attempt, because MLflow caches a store's properties by its address.
        partial = database.with_name(f"{database.name}.partial-{secrets.token_hex(4)}")
        MlflowClient(f"sqlite:///{partial}").search_experiments()
        partial.replace(database)


def _relocate(database: Path, before: str, now: str) -> None:
    """Update the addresses of artifacts below a folder of a project that was moved or copied, because MLflow
    stores absolute ones."""
    with closing(sqlite3.connect(database)) as store, store:
        for table, column in ARTIFACT_COLUMNS:
            store.execute(
                f"UPDATE {table} SET {column} = ? || substr({column}, ?) WHERE {column} = ? "
                f"OR substr({column}, 1, ?) = ?",
                [now, len(before) + 1, before, len(before) + 1, f"{before}/"],
            )


def _quieten() -> None:
    """Set what MLflow reads on import: no telemetry, little output, and seconds instead of minutes of waiting
    for an unreachable server.
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


def _place(run: Run) -> tuple[str, str]:
    """The cell of a run, and the key of its record or its phase."""
    tags = run.data.tags
    return tags.get("cell", ""), tags.get("key") or tags.get("phase", "")
