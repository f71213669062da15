"""A project folder with a small table, and trials that cost nothing."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from pfl.cli import app
from pfl.data.partition import Partition
from pfl.engine.metrics import Accuracy, ClientResult, Evaluated, Measured, Metrics
from pfl.engine.result import Hardware, Result, Versions
from pfl.run.sources import Sources
from pfl.run.trials import Record, Trial
from pipeline.cli import add_commands
from pipeline.spec.cells import cells
from pipeline.spec.table import load_table
from pipeline.store.ledger import Ledger
from pipeline.sweep import preparation
from pipeline.sweep.scheduler import Scheduler
from pipeline.sweep.scheduler import scheduler_of as own_scheduler_of
from tests.pipeline.running import BIN
from tests.repository import replace_text

TABLE = """\
title: A table for tests
dataset: digits
model: cnn_digits
clients: 5
schedule: {participation: 0.5, rounds: 2, epochs: 1, batch_size: 16, lr: 0.05}
settings:
  dir: "dirichlet:0.5"
  two: "pathological:2"
methods:
- fedavg
- {method: fedprox, params: {mu: 0.1}}
seeds: [0, 1]
evaluation: {every: 1}
search: {trials: 4}
"""

SOURCES = Sources(commit="0" * 40, dirty=False, sources="1" * 64)

MEASURED = Measured(0.5, 0.4, 1000.0, 1e8)
HARDWARE = Hardware("a CPU", 2, 1, None, "cpu", "loop")
VERSIONS = Versions("3.11.9", "2.15.0", "0.1.0")

Edit = Callable[[str, str], str]
Run = Callable[[Trial], list[Record]]

add_commands(app)  # as the entry point does in a process of its own


@pytest.fixture(autouse=True, scope="session")
def _made_up_records_are_current() -> Iterator[None]:
    """The code that made-up records name does not exist; reports of a whole session are made of them, too."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("pipeline.report.notices.is_current", lambda *_: True)
        yield


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of a project whose only table is called small."""
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables/small.yaml").write_text(TABLE)
    (tmp_path / "params.yaml").write_text("tables: [small]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DATA_SOURCE", raising=False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return tmp_path


@pytest.fixture
def edit(project: Path) -> Edit:
    """Replaces a text in the table's file."""
    return partial(replace_text, project / "tables/small.yaml")


def prepare(edit: Edit) -> None:
    """Make data and partitions of a small table: 2 cells of 2 seeds, no search."""
    edit('  two: "pathological:2"\n', "")
    edit("search: {trials: 4}\n", "")
    preparation.download("small")
    preparation.partition("small")


@pytest.fixture
def prepared(project: Path, edit: Edit) -> Path:
    """A project after `prepare`."""
    prepare(edit)
    return project


@pytest.fixture
def start(prepared: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a sweep as a process of its own."""
    running = []

    def begin(**environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [BIN / "pfl", "stage", "sweep", "small"],
            cwd=prepared,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        running.append(process)
        return process

    yield begin
    for process in running:
        process.kill()


@pytest.fixture
def ledger(project: Path) -> Ledger:
    assert project == Path.cwd()
    return Ledger(SOURCES)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Trial]:
    """The trials that sweeps run, which cost nothing; the code is that of made-up records."""
    for module in ("collection", "train_sweep"):
        monkeypatch.setattr(f"pipeline.sweep.{module}.current_sources", lambda _: SOURCES)
    monkeypatch.setenv("PFL_TRACKER", "none")
    ran: list[Trial] = []
    monkeypatch.setattr("pipeline.sweep.cluster.run", lambda scheduler, *_: ran.extend(finish(scheduler)))
    return ran


def printed(*arguments: str) -> str:
    """What ``pfl`` prints with these arguments; what is wrong with them is raised."""
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def scheduler_of(ledger: Ledger, **callbacks: Any) -> Scheduler:
    """The scheduler of the project's table over five clients of a made-up data set."""
    table = load_table("small")
    partitions = {}
    for place, (name, setting) in enumerate(table.settings.items()):
        indices = tuple(np.arange(8) + 8 * client + place for client in range(5))
        spec = f"{setting.partition},min=10,test=0.25,seed=0"
        partitions[name] = Partition(spec, indices, indices, data_checksum="d" * 64)
    return Scheduler(cells("small", table), table, partitions, ledger, **callbacks)


def fill_ledger(table: str) -> None:
    """Put made-up records of all runs of a table into the ledger."""
    finish(own_scheduler_of(table, load_table(table), Ledger(SOURCES)))


def fake_run(trial: Trial) -> list[Record]:
    """Records whose accuracy depends on the configuration alone: best at a learning rate of 0.1."""
    distance = abs(np.log10(trial.config["lr"] / 0.1))
    return [row_of(trial, seed, 90 - 10 * distance + 0.1 * (seed % 1000)) for seed in trial.seeds]


def row_of(trial: Trial, seed: int, accuracy: float, diverged_at: int | None = None) -> Record:
    """The record of a simulation that reached ``accuracy`` in its last round, the second."""
    return Record.of(
        trial, seed, Result(seed, metrics_of(accuracy, diverged_at), MEASURED, HARDWARE, VERSIONS)
    )


def metrics_of(accuracy: float, diverged_at: int | None = None) -> Metrics:
    reached = Accuracy(accuracy, accuracy, accuracy, loss=1.0)
    moments = {"post_aggregation": reached, "post_local": reached}
    entry = Evaluated(round=2, train_loss=1.0, bytes_down=0, bytes_up=0, **moments)
    client = ClientResult(0, train=8, test=8, accuracy=accuracy)
    return Metrics("post_aggregation", (entry,), (client,), 0, 0, diverged_at=diverged_at)


def with_metrics(record: Record, **changes: Any) -> Record:
    """The record with other fields of its metrics."""
    metrics = replace(record.metrics, **changes)
    return replace(record, result=replace(record.success, metrics=metrics))


def finish(
    scheduler: Scheduler, run: Run = fake_run, last_first: bool = False, at_once: int = 1
) -> list[Trial]:
    """Run a scheduler to its end, ``at_once`` trials side by side; the trials that were run."""
    done, under_way = [], []
    while not scheduler.finished:
        while len(under_way) < at_once and (trial := scheduler.next()):
            under_way.append(trial)
        trial = under_way.pop(-1 if last_first else 0)
        scheduler.record(trial, run(trial))
        done.append(trial)
    return done
