"""The record of a run: a line of the ledger (`pipeline.store.rows` reads it)."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pfl.engine.metrics import Measured, Metrics, json_ready
from pfl.engine.result import Result
from pfl.run.sources import Plugin, Sources, commit, plugins
from pfl.run.trials.trial import Phase, Trial, trial_key


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
            sources=commit(),
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


_CHECKSUM = b',"checksum":"'
