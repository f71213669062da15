"""Made-up results that are tracked as a sweep tracks them, and what MLflow has then."""

from __future__ import annotations

from contextlib import chdir
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Run

from pipeline.sweep.tracking import BackgroundTracker
from pipeline.trackers.mlflow import MLflowTracker
from tests.pipeline.fake_results import cell_of, fake_results, record_of, results_of

CELL = "cifar10-0.1/fedavg"


def client_of(root: Path) -> MlflowClient:
    return MlflowClient(f"sqlite:///{root / 'mlflow.db'}")


def runs_of(root: Path, phase: str = "") -> list[Run]:
    """The runs in MLflow, or those of one phase."""
    client = client_of(root)
    experiment = client.get_experiment_by_name("fake")
    query = f"tags.phase = '{phase}'" if phase else ""
    return list(client.search_runs([experiment.experiment_id], query))


def entered(root: Path, row: dict[str, Any], trial: int | None = None) -> Run:
    """The run of a record, the only one of its phase, that is entered by a tracker of its own."""
    MLflowTracker(root, "fake").run(row["cell"], record_of(row), trial)
    (run,) = runs_of(root, row["phase"])
    return run


def parent_of(root: Path) -> Run:
    (parent,) = runs_of(root, "cell")
    return parent


def one_cell(name: str = "cifar10-0.1/local", **options: int) -> dict[str, Any]:
    """The results of a table of one cell."""
    results = fake_results(methods=2, settings=1, **options)
    return {**results, "cells": [cell_of(results, name)]}


def enter(results: dict[str, Any], root: Path) -> BackgroundTracker:
    """What the driver of a sweep does."""
    cells = results_of(results).cells
    with chdir(root), BackgroundTracker("fake") as tracker:
        for cell in cells:
            for configuration in cell.configurations:
                for record in configuration.records:
                    tracker.run(cell.cell, record, configuration.number)
            tracker.cell(cell)
    return tracker
