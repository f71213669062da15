"""A checkout into whose small sweep faults are injected, and what it has lost then."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from tests.pipeline.running import environment_of, kill_all
from tests.pipeline.running import workers as workers_of
from tests.repository import commit, copy_files, replace_text

TABLE = """\
title: A table for faults
dataset: digits
model: cnn_digits
clients: 5
schedule: {participation: 0.5, rounds: 80, epochs: 1, batch_size: 64, lr: 0.05}
settings:
  dir: "dirichlet:0.5"
methods:
- fedavg
- {method: fedprox, params: {mu: 0.1}, search: {trials: 2}}
seeds: [0, 1]
evaluation: {every: 10}
"""

DVC = ("dvc", "repro", "--single-item", "train-sweep@small")
STAGE = ("pfl", "stage", "sweep", "small")


class Checkout:
    """A repository with one table, prepared up to the sweep.

    Attributes:
        root: its folder.
        elsewhere: another folder, for what must not be on its disk.
        table: the table's file.
        ledger: where the rows of its trials are first.
        store: the URI of the MLflow store that has its runs.
        sweep: the command of its sweep.
    """

    def __init__(self, root: Path):
        self.root = root
        self.elsewhere = root.with_name(f"{root.name}-elsewhere")
        self.elsewhere.mkdir()
        self.table = root / "tables/small.yaml"
        self.ledger = root / ".sweeps/ledger/small.jsonl"
        self.store = f"sqlite:///{root / 'mlflow.db'}"
        self.sweep = DVC
        self._output = self.elsewhere / "output"
        self._processes: list[subprocess.Popen[bytes]] = []

    @classmethod
    def make(cls, root: Path) -> Checkout:
        """This repository's files as they are, committed, with one small table whose data are divided."""
        copy_files(root, "dvc.lock", "reports/", "results/", "tests/")
        checkout = cls(root)
        checkout.table.write_text(TABLE)
        replace_text(root / "params.yaml", "- digits", "- small")
        commit(root)
        assert checkout.run("dvc", "repro", "--quiet", "partition@small") == 0, checkout.output
        return checkout

    def copy(self, root: Path) -> Checkout:
        shutil.copytree(self.root, root, symlinks=True, dirs_exist_ok=True)
        return Checkout(root)

    # ---- its processes ---------------------------------------------------------------------------------

    def start(self, *command: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start ``command``, by default the sweep's, in a process group as a terminal does."""
        process = subprocess.Popen(
            (
                "env",
                "--default-signal=INT",
                *(command or self.sweep),
            ),  # which shells ignore in the background
            cwd=self.root,
            env=environment_of(self.root) | environment,
            stdout=self._output.open("ab"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._processes.append(process)
        return process

    def run(self, *command: str, **environment: str) -> int:
        """`start`, and wait for the end; the exit status."""
        return self.start(*command, **environment).wait(timeout=600)

    @property
    def output(self) -> str:
        """All that its commands have printed so far."""
        return self._output.read_text(errors="replace") if self._output.exists() else ""

    def driver(self) -> psutil.Process:
        """The process of the stage."""
        for process in psutil.process_iter(["cmdline", "cwd"]):
            command = process.info["cmdline"] or []
            here = process.info["cwd"] == str(self.root)
            if here and command[-3:] == ["stage", "sweep", "small"] and "python" in command[0]:
                return process
        raise LookupError("no sweep is running")

    def workers(self) -> list[psutil.Process]:
        """The processes in which trials run, on a Ray of its own."""
        return workers_of(self.driver())

    def is_under_way(self) -> bool:
        """Whether trials have ended and others have a checkpoint: the worst moment for a fault."""
        return len(self.rows()) >= 3 and bool(self.under_way())

    def stop(self) -> None:
        """End what is left of its processes."""
        for process in self._processes:
            kill_all(process.pid)
            process.wait()
        with suppress(LookupError):
            kill_all(self.driver().pid)

    # ---- what it has -----------------------------------------------------------------------------------

    def lines(self) -> list[bytes]:
        """Of the ledger."""
        return self.ledger.read_bytes().splitlines() if self.ledger.exists() else []

    def rows(self) -> list[dict[str, Any]]:
        """The rows of the ledger that are whole."""
        rows = []
        for line in self.lines():
            with suppress(ValueError):
                rows.append(json.loads(line))
        return rows

    def checkpoints(self) -> list[Path]:
        return list((self.root / ".sweeps/trials").rglob("checkpoint.pt"))

    def under_way(self) -> set[str]:
        """The folders of trials that have a checkpoint and have not ended."""
        ended = {folder_of_key(row["key"]) for row in self.rows()}
        return {path.parent.name for path in self.checkpoints()} - ended

    def cells(self) -> dict[str, Any]:
        """The cells of the results, by id, with the keys of their records."""
        path = self.root / "results/small/results.json"
        cells = json.loads(path.read_text())["cells"] if path.exists() else []
        return {cell["cell"]: cell for cell in cells}

    def runs(self) -> list[tuple[str, str, str]]:
        """The runs in MLflow, without the report's: cell, key ("" for a cell's own run) and status."""
        from mlflow import MlflowClient

        client = MlflowClient(self.store)
        experiment = client.get_experiment_by_name("small")
        runs = client.search_runs([experiment.experiment_id]) if experiment else []
        tagged = [(run.data.tags, run.info.status) for run in runs if "cell" in run.data.tags]
        return sorted((tags["cell"], tags.get("key", ""), status) for tags, status in tagged)

    def lost(self, whole: Checkout) -> list[str]:
        """What this checkout lacks of one whose sweep had no fault; it may have further cells."""
        cells, expected = self.cells(), whole.cells()
        metrics = {row["key"]: row["metrics"] for row in self.rows() if "error" not in row}
        trials = {row["key"]: row["metrics"] for row in whole.rows()}
        missing = {
            "results": any(cells.get(cell) != expected[cell] for cell in expected),
            "finished trials": any(metrics.get(key) != trials[key] for key in trials),
            "runs in MLflow": [run for run in self.runs() if run[0] in expected] != whole.runs(),
            "room in the scratch": bool(self.checkpoints()) and cells.keys() == expected.keys(),
        }
        return [name for name, is_missing in missing.items() if is_missing]


def folder_of_key(key: str) -> str:
    """The folder of what is under way of a trial of one seed."""
    return hashlib.sha256(key.encode()).hexdigest()
