"""The record of a run: a line of the ledger. Only this file reads and writes it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pfl.engine.metrics import Measured, Metrics, json_ready
from pfl.run.sources import Plugin
from pfl.run.trials.provenance import Hardware, Sources, Versions, commit, plugins
from pfl.run.trials.trial import Phase, Trial, trial_key


@dataclass(frozen=True)
class Success:
    """A simulation that ended.

    Attributes:
        measurements: what `measure` returned, round after round; None without one.
    """

    metrics: Metrics
    measured: Measured
    hardware: Hardware
    versions: Versions
    measurements: list[Any] | None = None


@dataclass(frozen=True)
class Failure:
    """A simulation without numbers, and the reason in one line."""

    error: str


@dataclass(frozen=True)
class Record:
    """One simulation: a trial with one seed, and its outcome.

    Attributes:
        key: the identity of the result (`pfl.run.trials.trial_key`).
        sources: the code that computed it.
        finished: when, as an ISO 8601 time.
        until: the round after which the simulation paused; None where it ran to its end.
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
    outcome: Success | Failure
    sources: Sources
    finished: str
    until: int | None = None

    @classmethod
    def of(cls, trial: Trial, seed: int, outcome: Success | Failure) -> Record:
        """The record of one seed of ``trial``, computed now by the code that is running."""
        return cls(
            key=dataclasses.replace(trial, seeds=(seed,)).keys()[0],
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
            outcome=outcome,
            sources=commit(),
            finished=datetime.now(UTC).isoformat(timespec="seconds"),
            until=trial.until,
        )

    @property
    def failed(self) -> bool:
        """Whether there are no numbers; a diverged simulation has some, and would diverge again."""
        return isinstance(self.outcome, Failure)

    @property
    def failure(self) -> str | None:
        """Why the record holds no valid result, in a few words; None where it holds one."""
        if isinstance(self.outcome, Failure):
            return self.outcome.error
        diverged = self.outcome.metrics.diverged_at
        return None if diverged is None else f"diverged in round {diverged}"

    @property
    def success(self) -> Success:
        """The outcome.

        Raises:
            ValueError: the trial failed.
        """
        if isinstance(self.outcome, Failure):
            raise ValueError(f"{self.cell}, seed {self.seed}: failed ({self.outcome.error})")
        return self.outcome

    @property
    def metrics(self) -> Metrics:
        """Of the `success`."""
        return self.success.metrics

    @property
    def measured(self) -> Measured:
        """Of the `success`."""
        return self.success.measured

    def expected_key(self) -> str:
        """The key that follows from the content."""
        return trial_key(
            self.config,
            self.data_checksum,
            self.partition_checksum,
            self.seed,
            self.behaviour,
            self.until,
        )

    def to_json(self) -> dict[str, Any]:
        """The row as a JSON object; numbers that are not finite are null."""
        values = {name: getattr(self, name) for name in _PLACE}
        values["plugins"] = [dataclasses.asdict(plugin) for plugin in self.plugins]
        if isinstance(self.outcome, Failure):
            values["error"] = self.outcome.error
        else:
            values["metrics"] = self.outcome.metrics.to_json()
            if self.outcome.measurements is not None:
                values["observations"] = self.outcome.measurements  # the key in stored files
            values["measured"] = dataclasses.asdict(self.outcome.measured)
            values["hardware"] = dataclasses.asdict(self.outcome.hardware)
            values["versions"] = dataclasses.asdict(self.outcome.versions)
        values |= dataclasses.asdict(self.sources)
        values["finished"] = self.finished
        if self.until:
            values["until"] = self.until
        ready: dict[str, Any] = json_ready(values)
        return ready

    def to_line(self) -> bytes:
        """The row as a line of a file, with a checksum and without the line's end."""
        return with_checksum(json.dumps(self.to_json(), separators=(",", ":")).encode())

    @classmethod
    def from_line(cls, line: bytes) -> Record:
        """The record that `to_line` wrote.

        Raises:
            ValueError: the line is no record, or not what was written; the message says which.
        """
        content, checksum = split_checksum(line)
        if checksum is None:
            raise ValueError("it has no checksum")
        if checksum != checksum_of(content):
            raise ValueError("its checksum is not that of its content")
        return cls.from_json(json.loads(content))

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Record:
        """The record that `to_json` wrote.

        Raises:
            ValueError: ``values`` are no record of this form.
        """
        try:
            outcome: Success | Failure
            if "error" in values:
                outcome = Failure(values["error"])
            else:
                versions = values["versions"]
                outcome = Success(
                    metrics=Metrics.from_json(values["metrics"]),
                    measured=Measured(**values["measured"]),
                    hardware=Hardware(**values["hardware"]),
                    versions=Versions(
                        versions["python"], versions["torch"], versions.get("compiler"), versions["pfl"]
                    ),
                    measurements=values.get("observations"),
                )
            place: dict[str, Any] = {name: values[name] for name in _PLACE}
            return cls(
                **place,
                plugins=tuple(Plugin(**plugin) for plugin in values["plugins"]),
                outcome=outcome,
                sources=Sources(values["commit"], values["dirty"], values["sources"]),
                finished=values["finished"],
                until=values.get("until"),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no record ({error!r})") from None


def checksum_of(content: bytes) -> str:
    """The SHA-256 of a row without its checksum."""
    return hashlib.sha256(content).hexdigest()


def with_checksum(content: bytes) -> bytes:
    """A row, as a JSON object, with its checksum as the last field."""
    return content[:-1] + _CHECKSUM + checksum_of(content).encode() + b'"}'


def split_checksum(line: bytes) -> tuple[bytes, str | None]:
    """A row without its checksum, and the checksum that it has; None if it has none."""
    content, field, checksum = line.rpartition(_CHECKSUM)
    return (content + b"}", checksum[:-2].decode(errors="replace")) if field else (line, None)


_CHECKSUM = b',"checksum":"'
_PLACE = (
    "key",
    "table",
    "cell",
    "setting",
    "row",
    "method",
    "seed",
    "phase",
    "config",
    "dataset",
    "partition",
    "clients",
    "data_checksum",
    "partition_checksum",
    "behaviour",
)
