"""A trial: one configuration of one cell, and the keys of its results."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from pfl.core.config import Config
from pfl.models import weights_of
from pfl.run.validation import non_defaults, validated

Phase = Literal["search", "final"]


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
    whole = [trial if trial.until is None else replace(trial, until=None) for trial in trials]
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
