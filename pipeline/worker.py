"""A trial in a process of Ray's."""

from __future__ import annotations

import json
import os
import shutil
from functools import cache
from pathlib import Path
from typing import Any

from ray import tune

from pfl.config import Execution
from pfl.data.dataset import Dataset, load
from pfl.data.partition import Partition
from pfl.trials import Trial, run_trial
from pipeline.config import partition_file
from pipeline.environment import SCRATCH


class Worker(tune.Trainable):
    """Runs one trial after another; starting a process costs more than a small simulation.

    A configuration is a JSON text with the trial, the project's folder, and how to carry the trial out.
    """

    def setup(self, config: dict[str, Any]) -> None:
        self.reset_config(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._job = json.loads(new_config["job"])
        return True

    def step(self) -> dict[str, Any]:
        """The rows of the trial, or why there are none: its failure is not the process's."""
        os.chdir(self._job["root"])
        trial = Trial.from_dict(self._job["trial"])
        checkpoints = SCRATCH / "trials" / trial.keys()[0]
        execution = Execution(**self._job["execution"], checkpoint_dir=str(checkpoints))
        try:
            rows = run_trial(trial, _dataset(trial.dataset), _partition(trial.table, trial.setting), execution)
        except Exception as error:
            lines = str(error).strip().splitlines()
            return {"done": True, "error": f"{type(error).__name__}: {lines[0] if lines else ''}"}
        shutil.rmtree(checkpoints, ignore_errors=True)
        return {"done": True, "rows": json.dumps(rows)}


@cache
def _dataset(name: str) -> Dataset:
    return load(name, progress=False)


@cache
def _partition(table: str, setting: str) -> Partition:
    return Partition.load(partition_file(table, setting))
