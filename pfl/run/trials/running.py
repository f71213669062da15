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
from pfl.core.errors import InvalidInput
from pfl.core.text import first_line
from pfl.run.fingerprint import check_unchanged, name_of
from pfl.run.trials.record import Record
from pfl.run.trials.trial import Trial

if TYPE_CHECKING:
    from pfl.data.dataset import Dataset
    from pfl.data.partition import Division
    from pfl.engine.result import Result
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
    """Run ``trial`` and return its records, one per seed; with ``measure``, with what it returned.

    Args:
        execution: its ``save`` is a folder here, where the models of each seed go into ``<key>.pt``, and its
            ``checkpoint_dir`` one that no other trial uses.

    Raises:
        ValueError: data, partition or code are not those that the trial names.
        Edited: the source has changed since this process began.
    """
    (records,) = _run([trial], dataset, partition, execution, on_round, measure)
    return records


def run_together(
    trials: Sequence[Trial],
    dataset: Dataset,
    partition: Division,
    execution: Execution = Execution(),
    on_round: OnRound | None = None,
) -> list[list[Record]]:
    """Run trials of the same seeds, whose configurations are `pfl.run.validation.stackable`, in one stack.

    They are evaluated at the moments of the first, they pause where it does, and their models are not saved.

    Returns:
        The records of each.

    Raises:
        ValueError: data, partition or code are not those that a trial names.
    """
    return _run(trials, dataset, partition, execution, on_round)


def _run(
    trials: Sequence[Trial],
    dataset: Dataset,
    partition: Division,
    execution: Execution,
    on_round: OnRound | None = None,
    measure: Measure | None = None,
) -> list[list[Record]]:
    from pfl.data.partition import of_seed
    from pfl.engine.device import forget_peak, resolve_device

    seeds = trials[0].seeds
    divided = {seed: of_seed(partition, seed).checksum for seed in seeds}
    for trial in trials:
        expected = [("data", dataset.checksum, trial.data_checksum)]
        expected += [("partition", divided[seed], trial.partition_of(seed)) for seed in seeds]
        for name, actual, wanted in expected:
            if actual != wanted:
                made_for = f"the trial was made for {wanted[:12]}"
                raise ValueError(f"the {name} has checksum {actual[:12]}, {made_for}")
        name = name_of(Config.from_dict(trial.config), dataset.shape, len(dataset.classes)).name
        if name != trial.behaviour:
            raise ValueError(f"the code has the name {name}, the trial was made for {trial.behaviour}")
    code = " ".join(trial.behaviour for trial in trials)
    first = trials[0]
    execution = dataclasses.replace(execution, moments=first.moments, until=first.until, code=code)
    forget_peak(resolve_device(execution.device))
    try:
        results = _simulate(trials, dataset, partition, execution, on_round, measure)
    except InvalidInput as error:
        if error.parameter != "checkpoint" or execution.checkpoint_dir is None:
            raise
        # Only these trials use the folder, so its checkpoint comes from other sources.
        log.warning("%s: of other sources; starting from the beginning", execution.checkpoint_dir)
        shutil.rmtree(execution.checkpoint_dir)
        results = _simulate(trials, dataset, partition, execution, on_round, measure)
    check_unchanged(first.method, str(first.config["model"]))
    return [
        [Record.of(trial, result.seed, result) for result in of_seeds]
        for trial, of_seeds in zip(trials, results, strict=True)
    ]


def _simulate(
    trials: Sequence[Trial],
    dataset: Dataset,
    partition: Division,
    execution: Execution,
    on_round: OnRound | None,
    measure: Measure | None,
) -> list[list[Result]]:
    """`pfl.run.simulation.simulate_together`; one seed after another where memory does not suffice."""
    from pfl.run.simulation import simulate, simulate_together

    models = Path(execution.save) if execution.save else None
    seeds = trials[0].seeds
    keys = dict(zip(seeds, trials[0].keys(), strict=True))
    together = dataclasses.replace(execution, save=str(models / f"{keys[seeds[0]]}.pt") if models else None)
    configs = [Config.from_dict(trial.config) for trial in trials]
    try:
        results = simulate_together(configs, dataset, partition, seeds, together, on_round, measure)
    except Exception as error:
        if len(configs) * len(seeds) == 1 or not memory.ran_out(error):
            raise
    else:
        if models and len(seeds) > 1:
            _separate(models, keys)
        return results
    log.warning("out of memory: going on with one seed at a time")

    def of_one_seed(trial: Trial, config: Config, seed: int) -> Result:
        key = dict(zip(trial.seeds, trial.keys(), strict=True))[seed]
        own = dataclasses.replace(
            execution,
            checkpoint_dir=execution.checkpoint_dir and str(Path(execution.checkpoint_dir) / key),
            save=str(models / f"{key}.pt") if models else None,
        )
        (result,) = simulate(config, dataset, partition, (seed,), own, on_round, measure)
        return result

    return [
        [of_one_seed(trial, config, seed) for seed in seeds]
        for trial, config in zip(trials, configs, strict=True)
    ]


def _separate(models: Path, keys: Mapping[int, str]) -> None:
    """Split the first seed's file into one per seed, as another sweep may run other seeds together."""
    import torch

    from pfl.engine import checkpoint

    together = torch.load(models / f"{next(iter(keys.values()))}.pt", weights_only=True)
    for seed, key in keys.items():
        checkpoint.write(models / f"{key}.pt", {seed: together[seed]})


def cause_of(error: BaseException) -> str:
    """Why a trial failed, in a line."""
    text = first_line(error)
    return f"out of memory ({text})" if memory.ran_out(error) else f"{type(error).__name__}: {text}"
