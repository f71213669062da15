"""Ray Tune integration: a searcher that suggests a scheduler's trials, and a worker that runs them."""

from __future__ import annotations

import gc
import importlib
import logging
import os
import queue
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from logging.handlers import QueueHandler
from typing import TYPE_CHECKING, Any

from ray import tune
from ray.tune.search import Searcher

from pfl.core.config import Execution
from pfl.core.digests import Edited
from pfl.run.errors import cause_of
from pfl.run.sources import running_code
from pfl.run.trials import Record, Trial, run_trials
from pipeline.store import heartbeat
from pipeline.store.workspace import MODELS, checkpoint_folder, explained

if TYPE_CHECKING:
    from pathlib import Path

    from pfl.data.dataset import Dataset
    from pfl.data.partition import Division
    from pipeline.sweep.scheduler import Scheduler


@dataclass(frozen=True)
class Job:
    """What a worker needs in addition to its trials.

    Attributes:
        root: the project's root folder.
        source: source of the data, as in `pfl.data.dataset.load`.
        sources: the digest of the simulator's files.
        keep_models: keep the final models, not only the records.
        execution: options of every trial, without its folders.
    """

    root: str
    source: str | None
    sources: str
    keep_models: bool
    execution: Execution


ATTEMPTS = 3
"""How often a trial is started if its process dies: one process may run out of memory, one may be lost with
its node, and one may have died before Ray noticed.
"""


class SchedulerSearcher(Searcher):
    """Suggests the trials of a scheduler and passes their outcomes to it.

    A trial whose process dies is suggested again. Tune itself would do so only during a trial: if a process
    dies between two, the second fails at once.

    Args:
        job: the job of all trials.

    Attributes:
        edited: whether a worker's sources differ from the sweep's; no further trial is then started.
    """

    def __init__(self, scheduler: Scheduler, job: Job):
        super().__init__()
        self._scheduler = scheduler
        self._job = job
        self.edited = False
        self._running: dict[str, list[Trial]] = {}
        self._again: list[list[Trial]] = []  # their process has died
        self._deaths: Counter[Path] = Counter()  # by checkpoint folder

    @property
    def under_way(self) -> list[list[Trial]]:
        """The trials that have started and not ended, grouped by stack."""
        return list(self._running.values())

    def suggest(self, trial_id: str) -> Any:
        if self.edited:
            return Searcher.FINISHED
        trials = self._again.pop() if self._again else self._new()
        if not trials:
            return Searcher.FINISHED if self._scheduler.finished else None
        self._running[trial_id] = trials
        return {"job": self._job, "trials": trials}

    def _new(self) -> list[Trial]:
        trial = self._scheduler.next()
        return [trial, *self._scheduler.batch_with(trial)] if trial else []

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        trials = self._running.pop(trial_id)
        for line in (result or {}).get("said", ()):
            print(f"{trials[0].cell}, {trials[0].phase}: {line}", flush=True)
        if result is None or error:
            self._lose(trials, f"its process died {ATTEMPTS} times (killed, perhaps because memory ran out)")
        elif "cause" in result:
            self._lose(trials, f"{result['cause']} (started {ATTEMPTS} times)")
        elif "edited" in result:
            self.edited = True
        else:
            done = []
            for trial, outcome in zip(trials, result["outcomes"], strict=True):
                if isinstance(outcome, str):
                    self._scheduler.fail(trial, outcome)
                else:
                    self._scheduler.record(trial, outcome)
                    if not any(self._scheduler.lacks_models(trial, key) for key in trial.keys):
                        done.append(trial)
            if done and not trials[0].until:  # others may continue: paused, failed, or without their models
                for folder in {checkpoint_folder(*trials), *map(checkpoint_folder, done)}:
                    shutil.rmtree(folder, ignore_errors=True)

    def _lose(self, trials: list[Trial], cause: str) -> None:
        """Start these trials again, or record the ``cause`` after the last attempt.

        A stack stays together: it shares a checkpoint.
        """
        place = checkpoint_folder(*trials)
        self._deaths[place] += 1
        if self._deaths[place] < ATTEMPTS:
            self._again.append(trials)
            return
        for trial in trials:
            self._scheduler.fail(trial, cause)

    def __getstate__(self) -> dict[str, Any]:
        """Empty, so that Tune does not store this object; a sweep continues from the ledger."""
        return {}

    def save(self, checkpoint_path: str) -> None:
        """No-op."""


class Clock(tune.Callback):
    """Calls ``tick`` after every step of Tune's loop, several times per second."""

    def __init__(self, tick: Callable[[], None]):
        self._tick = tick

    def on_step_end(self, iteration: int, trials: list[tune.experiment.Trial], **_: Any) -> None:
        self._tick()

    def __getstate__(self) -> dict[str, Any]:
        """Empty, as in `SchedulerSearcher`."""
        return {}


class Worker(tune.Trainable):
    """Runs one trial or stack after another: starting a process costs more than a small simulation."""

    def setup(self, config: dict[str, Any]) -> None:
        # Logged by `pfl`; this process's output is not shown.
        self._messages = queue.SimpleQueue[logging.LogRecord]()
        logging.getLogger("pfl").addHandler(QueueHandler(self._messages))
        self.reset_config(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._job: Job = new_config["job"]
        self._trials: list[Trial] = new_config["trials"]
        return True

    def step(self) -> dict[str, Any]:
        """The records of each trial, or the cause of its failure, which does not end the process."""
        try:
            outcome = self._outcome()
        except Exception as error:  # for example, this node has lost the project's folder
            outcome = {"cause": cause_of(error)}
        messages = [self._messages.get().getMessage() for _ in range(self._messages.qsize())]
        return {"done": True, "said": list(dict.fromkeys(messages)), **outcome}

    def _outcome(self) -> dict[str, Any]:
        os.chdir(self._job.root)
        if running_code().sources != self._job.sources:  # this process started after an edit
            return {"edited": True}
        try:
            return {"outcomes": self._run(self._trials)}
        except Edited:
            return {"edited": True}

    def _run(self, trials: list[Trial]) -> list[list[Record] | str]:
        first = trials[0]
        models = self._job.keep_models and first.phase == "final"
        execution = replace(
            self._job.execution,
            checkpoint_dir=str(checkpoint_folder(*trials)),
            save=str(MODELS) if models else None,
        )
        try:
            _import_simulator()
            name, source = first.dataset, self._job.source
            dataset = _dataset(name, source)
            partition = _division(name, source, first.partition, first.clients, first.seeds)
            tell = heartbeat.heartbeat_writer(trials)
            return [*run_trials(trials, dataset, partition, execution, tell)]
        except Edited:
            raise
        except (Exception, SystemExit) as error:  # a plugin may call sys.exit
            if len(trials) == 1:
                return [explained(first.table, error)]
        return [outcome for trial in trials for outcome in self._run([trial])]  # a failure affects one trial


@cache
def _import_simulator() -> None:
    """Import what runs trials, and exclude all imported objects from garbage collections.

    Every trial begins with a collection, which would spend 0.15 s on them, as long as a short trial takes.
    """
    importlib.import_module("pfl.run.simulate")
    gc.freeze()


@cache
def _dataset(name: str, source: str | None) -> Dataset:
    from pfl.data.dataset import load

    return load(name, source, progress=False)


@cache
def _division(
    name: str, source: str | None, spec: str, clients: int | None, seeds: tuple[int, ...]
) -> Division:
    from pfl.data.partition import make_division

    return make_division(spec, _dataset(name, source), clients, seeds)
