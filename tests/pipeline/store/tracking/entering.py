"""Made-up results, entered in MLflow as a sweep enters them, and what is there then."""

from __future__ import annotations

from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Run

from pipeline.store.tracking import Tracker
from tests.pipeline.fake_results import results_of

CELL = "cifar10-0.1/fedavg"


def client_of(root: Path) -> MlflowClient:
    return MlflowClient(f"sqlite:///{root / 'mlflow.db'}")


def runs_of(root: Path) -> list[Run]:
    if not (root / "mlflow.db").exists():  # a client would make one of its own, in the way of the sweep's
        return []
    client = client_of(root)
    experiment = client.get_experiment_by_name("fake")
    return list(client.search_runs([experiment.experiment_id])) if experiment else []


def trials_of(root: Path) -> list[Run]:
    return [run for run in runs_of(root) if "key" in run.data.tags]


def parent_of(root: Path) -> Run:
    (parent,) = [run for run in runs_of(root) if "key" not in run.data.tags]
    return parent


def enter(results: dict, root: Path) -> Tracker:
    """What the driver of a sweep does."""
    with Tracker(root, "fake") as tracker:
        for cell in results_of(results).cells:
            for configuration in cell.configurations:
                for record in configuration.rows:
                    tracker.trial(cell.cell, record, configuration.number)
            tracker.cell(cell)
    return tracker


def no_space_left(*_: object) -> None:
    raise OSError("no space left on device\nsecond line")
