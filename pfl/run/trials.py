"""Trials: simulations with a key, run anywhere, and their records."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import shutil
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pfl.core import memory
from pfl.core.config import Config, Execution
from pfl.core.errors import Conflict, InvalidInput
from pfl.engine.metrics import Measured, Metrics, json_ready
from pfl.engine.result import Result
from pfl.models import weights_of
from pfl.run.errors import NotSaved, saving
from pfl.run.fingerprint import check_unchanged, name_of
from pfl.run.sources import Plugin, Sources, plugins, running_code
from pfl.run.validation import non_defaults, validated

if TYPE_CHECKING:
    from pfl.data.dataset import Dataset
    from pfl.data.partition import Division
    from pfl.engine.simulation import Measure, OnRound

Phase = Literal["search", "final"]

_CHECKSUM = b',"checksum":"'

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Trial:
    """One configuration of one cell, to be run with one or more seeds.

    Attributes:
        table, cell, setting, row: where in a table the result belongs; not part of the key.
        partition_name: name of the partition and its files in that table; not part of the key.
        phase: "search" on the validation part, "final" on the full training data.
        config: `Config.to_dict` of a validated configuration.
        dataset, partition, clients: the arguments from which `pfl.data` makes the data and the partition.
        data_checksum, partition_checksum: their expected checksums; that of the partition by seed if each
            seed has its own.
        behaviour: the name that the code must have (`pfl.run.fingerprint`).
        moment: the one that its cell reads, which is shown while it runs; not part of the key.
        moments: those of every evaluation, as in `pfl.core.config.Execution`; not part of the key, because
            a record shows which it has.
        until: the round after which it pauses; the trial without it continues from there. Default: the last.
    """

    table: str
    cell: str
    setting: str
    row: str
    partition_name: str
    phase: Phase
    config: Mapping[str, Any]
    seeds: tuple[int, ...]
    dataset: str
    partition: str
    clients: int | None
    data_checksum: str
    partition_checksum: str | Mapping[int, str]
    behaviour: str
    moment: str = "post_aggregation"
    moments: tuple[str, ...] = ()
    until: int | None = None

    @property
    def method(self) -> str:
        return str(self.config["method"])

    @cached_property
    def keys(self) -> list[str]:
        """The key of each seed's record."""
        return [
            trial_key(
                self.config, self.data_checksum, self.partition_of(seed), seed, self.behaviour, self.until
            )
            for seed in self.seeds
        ]

    def partition_of(self, seed: int) -> str:
        """The checksum of a seed's partition."""
        checksum = self.partition_checksum
        return checksum if isinstance(checksum, str) else checksum[seed]

    @property
    def common(self) -> Hashable:
        """What trials that run together have in common, in addition to stackable configurations."""
        divided = tuple(map(self.partition_of, self.seeds))
        return self.phase, self.dataset, divided, self.seeds, self.moment, self.until

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Trial:
        """The inverse of `json_ready`.

        A hyperparameter that is newer than the trial has its default, which is not part of the key.

        Raises:
            InvalidInput: an option no longer exists, or a value is outside its range.
        """
        config = validated(Config.from_dict(values["config"])).to_dict()
        divided = values["partition_checksum"]
        if not isinstance(divided, str):
            divided = {int(seed): checksum for seed, checksum in divided.items()}
        sequences = {name: tuple(values[name]) for name in ("seeds", "moments") if name in values}
        return cls(**{**values, **sequences, "config": config, "partition_checksum": divided})


def folder_of(*trials: Trial) -> str:
    """The name of the folder for a stack in progress, unique for each set of trials and seeds.

    A trial that pauses shares the folder with the trial that continues it.
    """
    whole = [trial if trial.until is None else dataclasses.replace(trial, until=None) for trial in trials]
    keys = "".join(key for trial in whole for key in trial.keys)
    return hashlib.sha256(keys.encode()).hexdigest()


def trial_key(
    config: Mapping[str, Any],
    data_checksum: str,
    partition_checksum: str,
    seed: int,
    behaviour: str,
    until: int | None = None,
) -> str:
    """The identity of a run: a hash of everything that determines its result, and nothing else.

    ``behaviour`` (`pfl.run.fingerprint`) stands for the code, so that an edit without effect on results makes
    none stale. Options at their defaults are left out, so that a new option makes none stale either.
    """
    content = {
        "config": non_defaults(config),
        "data": data_checksum,
        "partition": partition_checksum,
        "seed": seed,
        "behaviour": behaviour,
    }
    if until:
        content["until"] = until
    if weights := weights_of(config["model"]):
        content["weights"] = weights
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


# ---- records -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Record:
    """One simulation: a trial with one seed, and its outcome.

    Attributes:
        key: the identity of the result (`pfl.run.trials.trial_key`).
        sources: the code that computed it.
        finished: time of completion in ISO 8601.
        result: None if the simulation failed.
        error: why it failed, in one line.
        until: the round after which the simulation paused; None if it ran to its end.
    """

    key: str
    table: str
    cell: str
    setting: str
    row: str
    method: str
    seed: int
    phase: Phase
    config: Mapping[str, Any]
    dataset: str
    partition: str
    clients: int | None
    data_checksum: str
    partition_checksum: str
    behaviour: str
    plugins: tuple[Plugin, ...]
    sources: Sources
    finished: str
    result: Result | None = None
    error: str | None = None
    until: int | None = None

    @classmethod
    def of(cls, trial: Trial, seed: int, result: Result | None = None, error: str | None = None) -> Record:
        """The record of one seed of ``trial``, computed now by the code that is running."""
        return cls(
            key=dataclasses.replace(trial, seeds=(seed,)).keys[0],
            table=trial.table,
            cell=trial.cell,
            setting=trial.setting,
            row=trial.row,
            method=trial.method,
            seed=seed,
            phase=trial.phase,
            config=dict(trial.config),
            dataset=trial.dataset,
            partition=trial.partition,
            clients=trial.clients,
            data_checksum=trial.data_checksum,
            partition_checksum=trial.partition_of(seed),
            behaviour=trial.behaviour,
            plugins=plugins(trial.config),
            sources=running_code(),
            finished=datetime.now(UTC).isoformat(timespec="seconds"),
            result=result,
            error=error,
            until=trial.until,
        )

    @property
    def failed(self) -> bool:
        """Whether there is no result; a diverged simulation has one, and would diverge again."""
        return self.result is None

    @property
    def failure(self) -> str | None:
        """Why the record has no valid result, in a few words; None if it has one."""
        if self.result is None:
            return self.error
        diverged = self.result.metrics.diverged_at
        return None if diverged is None else f"diverged in round {diverged}"

    @property
    def success(self) -> Result:
        """The result.

        Raises:
            ValueError: the trial failed.
        """
        if self.result is None:
            raise ValueError(f"{self.cell}, seed {self.seed}: failed ({self.error})")
        return self.result

    @property
    def metrics(self) -> Metrics:
        """The metrics of the result."""
        return self.success.metrics

    @property
    def measured(self) -> Measured:
        """The measurements of the result."""
        return self.success.measured

    def expected_key(self) -> str:
        """The key computed from the content."""
        return trial_key(
            self.config,
            self.data_checksum,
            self.partition_checksum,
            self.seed,
            self.behaviour,
            self.until,
        )

    def to_json(self) -> dict[str, Any]:
        """The record as a JSON object, with the fields of the result and of the sources at the top level."""
        values: dict[str, Any] = json_ready(self)
        result, sources = values.pop("result", {}), values.pop("sources")
        return {**values, **result, **sources}

    def to_line(self) -> bytes:
        """The record as a line of the ledger, with a checksum and without a newline."""
        return with_checksum(json.dumps(self.to_json(), separators=(",", ":")).encode())


def checked(line: bytes) -> bytes:
    """A record without its checksum, which is verified.

    Raises:
        ValueError: the checksum is missing or wrong.
    """
    content, checksum = split_checksum(line)
    if checksum is None:
        raise ValueError("it has no checksum")
    if checksum != checksum_of(content):
        raise ValueError("its checksum is not that of its content")
    return content


def checksum_of(content: bytes) -> str:
    """The SHA-256 of a record without its checksum."""
    return hashlib.sha256(content).hexdigest()


def with_checksum(content: bytes) -> bytes:
    """A record, as a JSON object, with its checksum as the last field."""
    return content[:-1] + _CHECKSUM + checksum_of(content).encode() + b'"}'


def split_checksum(line: bytes) -> tuple[bytes, str | None]:
    """A record without its checksum, and the checksum; None if it has none."""
    content, field, checksum = line.rpartition(_CHECKSUM)
    return (content + b"}", checksum[:-2].decode(errors="replace")) if field else (line, None)


# ---- running -------------------------------------------------------------------------------------------


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
        execution: here ``save`` is a folder, which gets the models of each seed as ``<key>.pt``; it requires
            a single trial. No other trial may use ``checkpoint_dir``.

    Returns:
        The records of each trial, one per seed, which include the results of ``measure``. If models cannot be
        written, a warning is logged, and their files are missing; on a full disk, they wait for space.

    Raises:
        InvalidInput: data, partition or code are not those that a trial names.
        Edited: the source has changed since this process started.
    """
    from pfl.engine.device import forget_peak, resolve_device
    from pfl.run.simulate import simulate_configs

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

    def records(results: Sequence[Sequence[Result]]) -> list[list[Record]]:
        check_unchanged(first.method, str(first.config["model"]), first.config.get("metrics", ()))
        return [
            [Record.of(trial, result.seed, result) for result in of_seeds]
            for trial, of_seeds in zip(trials, results, strict=True)
        ]

    forget_peak(resolve_device(execution.device))
    try:
        results = simulate_configs(
            configs, dataset, partition, first.seeds, together, on_round, measure, wait=True
        )
        if models and len(keys) > 1:
            _separate(models, keys, results[0])
    except NotSaved as error:
        log.warning("%s", error)
        return records([error.results])
    except Exception as error:
        foreign = isinstance(error, InvalidInput) and error.parameter == "checkpoint"
        if not foreign and (len(trials) * len(keys) == 1 or not memory.is_out_of_memory(error)):
            raise
    else:
        return records(results)
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
        ((record,),) = run_trials([single], dataset, partition, own, on_round, measure)
        return record

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


def _separate(models: Path, keys: Mapping[int, str], results: Sequence[Result]) -> None:
    """Split the first seed's file into one per seed, because another sweep may combine other seeds.

    Raises:
        NotSaved: a file could not be written; ``results`` are in the error.
    """
    from pfl.engine import checkpoint
    from pfl.engine.model_file import read_models

    together = read_models(models / f"{next(iter(keys.values()))}.pt")
    for seed, key in keys.items():
        path = models / f"{key}.pt"
        with saving(str(path), results):
            checkpoint.write(path, {**together, "seeds": {seed: together["seeds"][seed]}}, wait=True)
