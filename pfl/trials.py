"""Trials: simulations with a key, run anywhere, and the ledger rows that they give."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import math
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pfl
from pfl import kernels, memory, sources
from pfl.behaviour import behaviour_of
from pfl.config import Config, Execution
from pfl.errors import InvalidInput
from pfl.models import weights_of
from pfl.validation import non_defaults

if TYPE_CHECKING:
    from pfl.data.dataset import Dataset
    from pfl.data.partition import Division
    from pfl.engine.simulation import Observe, OnRound, Result

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Trial:
    """One configuration of one cell, to be run with one or more seeds.

    Attributes:
        table, cell, setting, row: where in a table the result belongs; no part of the key.
        phase: "search" on the validation part, "final" on the full training data.
        config: `Config.to_dict` of a validated configuration.
        dataset, partition, clients: what `pfl.data` makes the data and the partition from.
        data_checksum, partition_checksum: what they must turn out to be; the partition's by seed where each
            seed has one of its own.
        behaviour: the name of what the code must turn out to do (`pfl.behaviour`).
        objective: moment and average, as in ("post_local", "pooled"), that ``bars`` are about.
        bars: (round, accuracy): a trial below one of them at that evaluation is stopped; no part of the key,
            since a row that was stopped says so and is no result.
        moments: those that every evaluation has, as in `pfl.config.Execution`; no part of the key, since a
            row shows which it has.
    """

    table: str
    cell: str
    setting: str
    row: str
    phase: Literal["search", "final"]
    config: Mapping[str, Any]
    seeds: tuple[int, ...]
    dataset: str
    partition: str
    clients: int | None
    data_checksum: str
    partition_checksum: str | Mapping[int, str]
    behaviour: str
    objective: tuple[str, str] = ("post_aggregation", "pooled")
    bars: tuple[tuple[int, float], ...] = ()
    moments: tuple[str, ...] = ()

    @property
    def method(self) -> str:
        return str(self.config["method"])

    def keys(self) -> list[str]:
        """The key of each seed's row."""
        return [
            trial_key(self.config, self.data_checksum, self.partition_of(seed), seed, self.behaviour)
            for seed in self.seeds
        ]

    def partition_of(self, seed: int) -> str:
        """The checksum of a seed's partition."""
        found = self.partition_checksum
        return found if isinstance(found, str) else found[seed]

    def to_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "config": dict(self.config), "seeds": list(self.seeds)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Trial:
        bars = tuple((round, accuracy) for round, accuracy in values["bars"])
        divided = values["partition_checksum"]
        if not isinstance(divided, str):
            divided = {int(seed): checksum for seed, checksum in divided.items()}
        return cls(
            **{
                **values,
                "partition_checksum": divided,
                "seeds": tuple(values["seeds"]),
                "objective": tuple(values["objective"]),
                "bars": bars,
                "moments": tuple(values["moments"]),
            }
        )

    def misses(self, evaluation: Mapping[str, Any] | None) -> bool:
        """Whether an entry of a simulation's history is below the bar of its round."""
        if evaluation is None:
            return False
        moment, average = self.objective
        bar = dict(self.bars).get(evaluation["round"])
        return bar is not None and evaluation[moment][average] < bar


def folder_of(*trials: Trial) -> str:
    """The name of a folder for what is under way of a stack, another for every set of trials and seeds."""
    keys = "".join("".join(trial.keys()) for trial in trials)
    return hashlib.sha256(keys.encode()).hexdigest()


def trial_key(
    config: Mapping[str, Any], data_checksum: str, partition_checksum: str, seed: int, behaviour: str
) -> str:
    """The identity of a result: everything that decides its numbers, and nothing else.

    Its ``behaviour`` (`pfl.behaviour`) stands for the code, so that an edit that moves no number makes no
    result stale. What is at its default is left out, so that a new option makes none stale either.
    """
    content = {
        "config": non_defaults(config),
        "data": data_checksum,
        "partition": partition_checksum,
        "seed": seed,
        "behaviour": behaviour,
    }
    if weights := weights_of(config["model"]):
        content["weights"] = weights
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def run_trial(
    trial: Trial,
    dataset: Dataset,
    partition: Division,
    execution: Execution = Execution(),
    on_round: OnRound | None = None,
    observe: Observe | None = None,
) -> list[dict[str, Any]]:
    """Run ``trial`` and return its ledger rows, one a seed; with ``observe``, with what that answered.

    Args:
        execution: its ``save`` is a folder here, where the models of each seed go into ``<key>.pt``, and its
            ``checkpoint_dir`` one that no other trial uses.

    Raises:
        ValueError: data, partition or code are not those that the trial names.
    """

    def watch(round: int, rounds: int, newest: dict[str, Any] | None) -> bool:
        if on_round:
            on_round(round, rounds, newest)
        return trial.misses(newest)

    (rows,) = _run([trial], dataset, partition, execution, watch, observe)
    return rows


def run_together(
    trials: Sequence[Trial],
    dataset: Dataset,
    partition: Division,
    execution: Execution = Execution(),
    on_round: OnRound | None = None,
) -> list[list[dict[str, Any]]]:
    """Run trials of the same seeds, whose configurations are `pfl.validation.stackable`, in one stack.

    They run to their ends, whatever their bars, at the moments of the first, and their models are not saved.

    Returns:
        The ledger rows of each.

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
    observe: Observe | None = None,
) -> list[list[dict[str, Any]]]:
    from pfl.data.partition import of_seed
    from pfl.engine.device import resolve_device

    seeds = trials[0].seeds
    divided = {seed: of_seed(partition, seed).checksum for seed in seeds}
    for trial in trials:
        expected = [("data", dataset.checksum, trial.data_checksum)]
        expected += [("partition", divided[seed], trial.partition_of(seed)) for seed in seeds]
        for name, found, wanted in expected:
            if found != wanted:
                made_for = f"the trial was made for {wanted[:12]}"
                raise ValueError(f"the {name} has checksum {found[:12]}, {made_for}")
        does = behaviour_of(Config.from_dict(trial.config), dataset.shape, len(dataset.classes)).name
        if does != trial.behaviour:
            raise ValueError(f"the code has behaviour {does}, the trial was made for {trial.behaviour}")
    code = " ".join(trial.behaviour for trial in trials)
    execution = dataclasses.replace(execution, moments=trials[0].moments, code=code)
    try:
        results = _simulate(trials, dataset, partition, execution, on_round, observe)
    except InvalidInput as error:
        if error.parameter != "checkpoint" or execution.checkpoint_dir is None:
            raise
        # The folder is these trials' own, so that other sources have left what it holds.
        log.warning("%s: of other sources; starting from the beginning", execution.checkpoint_dir)
        shutil.rmtree(execution.checkpoint_dir)
        results = _simulate(trials, dataset, partition, execution, on_round, observe)
    device = resolve_device(execution.device)
    return [
        [
            {
                "key": key,
                "table": trial.table,
                "cell": trial.cell,
                "setting": trial.setting,
                "row": trial.row,
                "method": trial.method,
                "seed": result.seed,
                "phase": trial.phase,
                "config": dict(trial.config),
                "dataset": trial.dataset,
                "partition": trial.partition,
                "clients": trial.clients,
                "data_checksum": trial.data_checksum,
                "partition_checksum": trial.partition_of(result.seed),
                "behaviour": trial.behaviour,
                "plugins": plugins(trial.config),
                "metrics": json_ready(result.metrics),
                **({"observations": json_ready(result.observations)} if observe else {}),
                "measured": result.measured,
                "hardware": hardware(execution, device),
                "versions": versions(),
                **commit(),
                "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            }
            for key, result in zip(trial.keys(), found, strict=True)
        ]
        for trial, found in zip(trials, results, strict=True)
    ]


def _simulate(
    trials: Sequence[Trial],
    dataset: Dataset,
    partition: Division,
    execution: Execution,
    on_round: OnRound | None,
    observe: Observe | None,
) -> list[list[Result]]:
    """`pfl.simulation.simulate_together`; one seed after another where memory does not suffice."""
    from pfl.simulation import simulate, simulate_together

    models = Path(execution.save) if execution.save else None
    seeds = trials[0].seeds
    keys = dict(zip(seeds, trials[0].keys(), strict=True))
    together = dataclasses.replace(execution, save=str(models / f"{keys[seeds[0]]}.pt") if models else None)
    configs = [Config.from_dict(trial.config) for trial in trials]
    try:
        results = simulate_together(configs, dataset, partition, seeds, together, on_round, observe)
    except Exception as error:
        if len(configs) * len(seeds) == 1 or not memory.ran_out(error):
            raise
    else:
        if models and len(seeds) > 1:
            _separate(models, keys)
        return results
    log.warning("out of memory: going on with one seed at a time")

    def alone(trial: Trial, config: Config, seed: int) -> Result:
        key = dict(zip(trial.seeds, trial.keys(), strict=True))[seed]
        own = dataclasses.replace(
            execution,
            checkpoint_dir=execution.checkpoint_dir and str(Path(execution.checkpoint_dir) / key),
            save=str(models / f"{key}.pt") if models else None,
        )
        (result,) = simulate(config, dataset, partition, (seed,), own, on_round, observe)
        return result

    return [
        [alone(trial, config, seed) for seed in seeds] for trial, config in zip(trials, configs, strict=True)
    ]


def _separate(models: Path, keys: Mapping[int, str]) -> None:
    """Give each seed a file of its own, out of the first's: another sweep may run it in other company."""
    import torch

    from pfl.engine import checkpoint

    together = torch.load(models / f"{next(iter(keys.values()))}.pt", weights_only=True)
    for seed, key in keys.items():
        checkpoint.write(models / f"{key}.pt", {seed: together[seed]})


def cause_of(error: Exception) -> str:
    """Why a trial failed, in a line."""
    text = str(error).strip().partition("\n")[0]
    return f"out of memory ({text})" if memory.ran_out(error) else f"{type(error).__name__}: {text}"


def json_ready(value: Any) -> Any:
    """``value`` with every number that JSON cannot hold (NaN, infinity) as null."""
    if isinstance(value, dict):
        return {key: json_ready(item) for key, item in value.items()}
    if isinstance(value, list):
        return [json_ready(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def hardware(execution: Execution, device: Any) -> dict[str, Any]:
    """What the trial ran on."""
    import torch

    from pfl.engine.device import resolve_backend

    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": execution.threads,
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "device": device.type,
        "backend": resolve_backend(execution.backend, device),
    }


def plugins(config: Mapping[str, Any]) -> list[dict[str, str]]:
    """Packages of somebody else's that the method or the network of a configuration comes from: name, version
    and the SHA-256 of their files."""
    return [dataclasses.asdict(plugin) for plugin in sources.plugins_of(config["method"], config["model"])]


def versions() -> dict[str, Any]:
    """The versions of what ran."""
    import torch

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "compiler": kernels.compiler_version(),
        "pfl": pfl.__version__,
    }


@cache
def commit() -> dict[str, Any]:
    """The code that is running.

    ``commit`` is "unknown" outside a checkout; ``dirty`` says that what decides numbers is in no commit;
    ``sources`` is the SHA-256 of the simulator's files.
    """
    root = sources.ROOT.parent
    head = git(root, "rev-parse", "HEAD")
    return {
        "commit": head or "unknown",
        "dirty": head is None or bool(edits(root, "pfl", "requirements.lock")),
        "sources": sources.digest(),
    }


def edits(root: Path, *paths: str) -> list[str]:
    """What below ``paths`` is not as the newest commit has it, untracked files included."""
    said = git(root, "status", "--porcelain", "--untracked-files=all", "--", *paths)
    return (said or "").splitlines()


def git(root: Path, *arguments: str) -> str | None:
    """What git says in the checkout ``root``; None where that is no checkout, or git not there."""
    command = ["git", "-C", str(root), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.rstrip()
    except (OSError, subprocess.CalledProcessError):
        return None


@cache
def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
