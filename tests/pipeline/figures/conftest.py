"""A project whose figures are those of the repository, without their results."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pipeline.spec.paths import PAPERS
from pipeline.sweep import cluster
from tests.repository import ROOT


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    """The working directory, in which the trials of a sweep run one after another in this process."""
    shutil.copytree(ROOT / PAPERS, tmp_path / PAPERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DATA_SOURCE", raising=False)
    monkeypatch.setattr(cluster, "run", run_here)
    return tmp_path


def run_here(scheduler, watch) -> None:
    from pfl.data.dataset import load
    from pfl.data.partition import make_division
    from pfl.run.trials import run_trials

    while trial := scheduler.next():
        dataset = load(trial.dataset)
        partition = make_division(trial.partition, dataset, trial.clients, trial.seeds)
        try:
            scheduler.record(trial, *run_trials([trial], dataset, partition))
        except ValueError as error:
            scheduler.fail(trial, str(error))
        watch(1, [])
