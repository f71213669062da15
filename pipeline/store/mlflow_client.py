"""Wrappers of MLflow's client: less output, stores that are created completely, and few requests."""

from __future__ import annotations

import json
import logging
import math
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pfl.core.files import folder_lock
from pfl.run.trials import Record
from pipeline.store.mlflow_mapping import Measure

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

METRICS_PER_REQUEST = 900  # MLflow takes 1000 metrics, parameters and tags together
DIGEST = 8  # characters of a data set's checksum, as in MLflow's own digests


def quieten() -> None:
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


def create(database: Path) -> None:
    """Make an empty store unless there is one, all or nothing: MLflow cannot use one whose creation was cut
    off, and fails where two processes create the same one."""
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


def runs(client: MlflowClient, experiment: str) -> Iterator[Run]:
    token = None
    while True:
        page = client.search_runs([experiment], page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def log(
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


def log_dataset(client: MlflowClient, run: str, record: Record) -> None:
    """Name the data set of a record as a run's input."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    source = json.dumps({"dataset": record.dataset, "sha256": record.data_checksum})
    dataset = Dataset(record.dataset, record.data_checksum[:DIGEST], "pfl", source)
    client.log_inputs(run, [DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])])
