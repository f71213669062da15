"""Runs trials and returns their records."""

from __future__ import annotations

import dataclasses
import logging
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pfl.core import memory
from pfl.core.config import Config, Execution
from pfl.core.errors import Conflict, InvalidInput
from pfl.run.fingerprint import check_unchanged, name_of
from pfl.run.trials.record import Record
from pfl.run.trials.trial import Trial

if TYPE_CHECKING:
    from pfl.data.dataset import Dataset
    from pfl.data.partition import Division
    from pfl.engine.simulation import Measure, OnRound

log = logging.getLogger(__name__)


def run_trial(
    trial: Trial,
    dataset: Dataset,
    partition: Division,
    execution: Execution = Execution(),
    on_round: OnRound | None = None,
    measure: Measure | None = None,
) -> list[Record]:
    """Run ``trial`` and return its records, one per seed, which include the results of ``measure``.

    Args:
        execution: here ``save`` is a folder, which gets the models of each seed as ``<key>.pt``, and no other
            trial may use ``checkpoint_dir``.

    Raises:
        InvalidInput: data, partition or code are not those that the trial names.
        Edited: the source has changed since this process started.
    """
    (records,) = run_trials([trial], dataset, partition, execution, on_round, measure)
    return records


def run_trials(
    trials: Sequence[Trial],
    dataset: Dataset,
    partition: Division,
    execution: Execution = Execution(),
    on_round: OnRound | None = None,
    measure: Measure | None = None,
) -> list[list[Record]]:
    """Run trials with the same seeds and `pfl.run.validation.stackable` configurations together; those that
    train alike share one training.

    They are evaluated at the moments of the first trial, and pause when it does. If memory runs out, each
    seed of each trial runs separately.

    Args:
        execution: as for `run_trial`; ``save`` requires a single trial.

    Returns:
        The records of each trial.

    Raises:
        InvalidInput: data, partition or code are not those that a trial names.
        Edited: the source has changed since this process started.
    """
    from pfl.engine.device import forget_peak, resolve_device
    from pfl.run.simulate import simulate_together

    _check(trials, dataset, partition)
    first = trials[0]
    keys = dict(zip(first.seeds, first.keys, strict=True))
    models = Path(execution.save) if execution.save else None
    together = dataclasses.replace(
        execution,
        moments=first.moments,
        until=first.until,
        code=" ".join(trial.behaviour for trial in trials),
        save=str(models / f"{first.keys[0]}.pt") if models else None,
    )
    configs = [Config.from_dict(trial.config) for trial in trials]
    forget_peak(resolve_device(execution.device))
    try:
        results = simulate_together(configs, dataset, partition, first.seeds, together, on_round, measure)
    except Exception as error:
        foreign = isinstance(error, InvalidInput) and error.parameter == "checkpoint"
        if not foreign and (len(trials) * len(keys) == 1 or not memory.is_out_of_memory(error)):
            raise
    else:
        if models and len(keys) > 1:
            _separate(models, keys)
        check_unchanged(first.method, str(first.config["model"]), first.config.get("metrics", ()))
        return [
            [Record.of(trial, result.seed, result) for result in of_seeds]
            for trial, of_seeds in zip(trials, results, strict=True)
        ]
    # Outside the handler, because the error would keep tensors alive.
    if foreign:
        # Only these trials use the folder, so its checkpoint comes from other sources.
        log.warning(
            "%s: the checkpoint belongs to other sources; starting from the beginning",
            execution.checkpoint_dir,
        )
        shutil.rmtree(str(execution.checkpoint_dir))
        return run_trials(trials, dataset, partition, execution, on_round, measure)
    log.warning("out of memory: continuing with one seed at a time")

    def alone(trial: Trial, seed: int) -> Record:
        single = dataclasses.replace(trial, seeds=(seed,), moments=first.moments)
        folder = execution.checkpoint_dir and str(Path(execution.checkpoint_dir) / single.keys[0])
        own = dataclasses.replace(execution, checkpoint_dir=folder)
        return run_trial(single, dataset, partition, own, on_round, measure)[0]

    return [[alone(trial, seed) for seed in trial.seeds] for trial in trials]


def _check(trials: Sequence[Trial], dataset: Dataset, partition: Division) -> None:
    """Check that data, partition and code are those that the trials name."""
    from pfl.data.partition import of_seed

    for trial in trials:
        checksums = [("data", dataset.checksum, trial.data_checksum)]
        for seed in trial.seeds:
            checksums.append(("partition", of_seed(partition, seed).checksum, trial.partition_of(seed)))
        for name, actual, wanted in checksums:
            if actual != wanted:
                raise Conflict(name, f"has checksum {actual[:12]}", f"the trial was made for {wanted[:12]}")
        name = name_of(Config.from_dict(trial.config), dataset.shape, len(dataset.classes))
        if name != trial.behaviour:
            raise Conflict("code", f"has the name {name}", f"the trial was made for {trial.behaviour}")


def _separate(models: Path, keys: Mapping[int, str]) -> None:
    """Split the first seed's file into one per seed, because another sweep may combine other seeds."""
    from pfl.engine import checkpoint
    from pfl.engine.model_file import read_models

    together = read_models(models / f"{next(iter(keys.values()))}.pt")
    for seed, key in keys.items():
        checkpoint.write(models / f"{key}.pt", {**together, "seeds": {seed: together["seeds"][seed]}})
