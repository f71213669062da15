"""Typed metrics of a simulation; `to_json` and `from_json` alone know the names in its JSON form."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pfl.core.errors import unknown_name

AverageName = Literal["pooled", "client_mean", "client_mean_weighted"]
AVERAGES: tuple[AverageName, ...] = get_args(AverageName)
"""Over all test samples; over clients; over clients by their training sizes."""


@dataclass(frozen=True)
class Accuracy:
    """Scores of the clients' models at one moment: accuracies in percent and the mean cross-entropy."""

    pooled: float
    client_mean: float
    client_mean_weighted: float
    loss: float

    def average(self, name: AverageName) -> float:
        """The accuracy averaged as one of `AVERAGES`.

        Raises:
            InvalidInput: there is no such average.
        """
        if name not in AVERAGES:
            raise unknown_name("average", name, AVERAGES)
        accuracy: float = getattr(self, name)
        return accuracy


Moments = Mapping[str, Accuracy]
"""By `pfl.engine.method.Moment`."""


@dataclass(frozen=True)
class Evaluated:
    """One evaluation.

    Attributes:
        moments: of all clients.
        groups: the same of each group of clients that the method names.
        train_loss: mean over the rounds since the last evaluation.
        bytes_down, bytes_up: since the first round.
    """

    round: int
    moments: Moments
    train_loss: float
    bytes_down: int
    bytes_up: int
    groups: Mapping[str, Moments] = dataclasses.field(default_factory=dict)

    def of(self, group: str | None) -> Moments:
        """The accuracies of one group; None means all clients."""
        return self.groups[group] if group else self.moments

    def to_json(self) -> dict[str, Any]:
        groups = {name: _moments_to_json(moments) for name, moments in self.groups.items()}
        return {
            "round": self.round,
            **_moments_to_json(self.moments),
            **({"groups": groups} if groups else {}),
            "train_loss": self.train_loss,
            "bytes_down": self.bytes_down,
            "bytes_up": self.bytes_up,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Evaluated:
        own = {"round", "groups", "train_loss", "bytes_down", "bytes_up"}
        return cls(
            round=values["round"],
            moments=_moments({name: value for name, value in values.items() if name not in own}),
            train_loss=_number(values["train_loss"]),
            bytes_down=values["bytes_down"],
            bytes_up=values["bytes_up"],
            groups={name: _moments(of_group) for name, of_group in values.get("groups", {}).items()},
        )


@dataclass(frozen=True)
class ClientResult:
    """One client: its numbers of samples, and its accuracy in percent (None without test samples)."""

    client: int
    train: int
    test: int
    accuracy: float | None


@dataclass(frozen=True)
class Reached:
    """An accuracy in the last evaluation, and in the best."""

    last: float
    best: float
    best_round: int

    def value(self, which: Literal["last", "best"]) -> float:
        return self.last if which == "last" else self.best


@dataclass(frozen=True)
class Metrics:
    """The numbers of one simulation; nothing that depends on clock or machine.

    Attributes:
        headline: the moment that the method reports.
        rounds: the evaluations; the last one has all moments.
        per_client: of the last evaluation, at the headline.
        pretrained: whether the network began with pretrained weights; None where it has none.
        similarities: of the clients, a matrix for each measure, where the configuration asks for them.
        diverged_at: the round in which the loss became infinite or NaN.
    """

    headline: str
    rounds: tuple[Evaluated, ...]
    per_client: tuple[ClientResult, ...]
    bytes_down: int
    bytes_up: int
    pretrained: bool | None = None
    similarities: Mapping[str, Sequence[Sequence[float]]] | None = None
    diverged_at: int | None = None

    @property
    def moments(self) -> tuple[str, ...]:
        return tuple(self.rounds[-1].moments)

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(self.rounds[-1].groups)

    def reached(
        self, average: AverageName = "pooled", moment: str | None = None, group: str | None = None
    ) -> Reached:
        """The last and the best accuracy of the evaluations that have ``moment``, by default the headline.

        Raises:
            InvalidInput: no evaluation has the moment, or there is no such group or average.
        """
        at = moment or self.headline
        if at not in self.moments:
            raise unknown_name("moment", at, self.moments)
        if group and group not in self.groups:
            raise unknown_name("group", group, self.groups)
        reached = [
            (entry.of(group)[at].average(average), entry.round)
            for entry in self.rounds
            if at in entry.of(group)
        ]
        best, best_round = max(reached, key=lambda one: one[0])
        return Reached(reached[-1][0], best, best_round)

    def lacks(self, moments: Collection[str]) -> bool:
        """Whether an evaluation before the last one lacks one of ``moments``, because the simulation was run
        for a table that does not read it."""
        had = [name for name in moments if name in self.moments]
        return any(name not in entry.moments for entry in self.rounds for name in had)

    @property
    def always(self) -> frozenset[str]:
        """The moments that every evaluation has."""
        return frozenset(name for name in self.moments if not self.lacks([name]))

    def to_json(self) -> dict[str, Any]:
        optional = {
            "pretrained": self.pretrained,
            "similarities": self.similarities,
            "diverged_at": self.diverged_at,
        }
        return {
            **self._summary(None),
            **({"groups": {name: self._summary(name) for name in self.groups}} if self.groups else {}),
            "rounds": [entry.to_json() for entry in self.rounds],
            "per_client": [dataclasses.asdict(client) for client in self.per_client],
            "bytes_down": self.bytes_down,
            "bytes_up": self.bytes_up,
            **{name: value for name, value in optional.items() if value is not None},
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Metrics:
        """The metrics that `to_json` wrote; its summary follows from the evaluations and is not read.

        Raises:
            KeyError, TypeError, ValueError: they are of another form.
        """
        metrics = cls(
            headline=values["headline"],
            rounds=tuple(map(Evaluated.from_json, values["rounds"])),
            per_client=tuple(ClientResult(**client) for client in values["per_client"]),
            bytes_down=values["bytes_down"],
            bytes_up=values["bytes_up"],
            pretrained=values.get("pretrained"),
            similarities=values.get("similarities"),
            diverged_at=values.get("diverged_at"),
        )
        if not metrics.rounds or metrics.headline not in metrics.moments:
            raise ValueError("no evaluation has the headline")
        return metrics

    def _summary(self, group: str | None) -> dict[str, Any]:
        """The last and the best value of every average at every moment, for readers of the file."""
        moments = {
            moment: {
                average: dataclasses.asdict(self.reached(average, moment, group)) for average in AVERAGES
            }
            for moment in self.moments
        }
        return {"accuracy": moments[self.headline], "moments": moments, "headline": self.headline}


@dataclass(frozen=True)
class Measured:
    """What depends on clock and machine.

    Attributes:
        train_seconds: for local training and for all other computations that a method asks of clients.
        samples_per_second: training samples in these seconds.
    """

    wall_seconds: float
    train_seconds: float
    samples_per_second: float
    peak_memory_bytes: float

    @property
    def samples(self) -> int:
        """The number of samples of which local training computed gradients, since the first round."""
        return round(self.samples_per_second * self.train_seconds)


def json_ready(value: Any) -> Any:
    """``value`` with every number that JSON cannot hold (NaN, infinity) as null."""
    if isinstance(value, Mapping):
        return {key: json_ready(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _moments(values: Mapping[str, Any]) -> dict[str, Accuracy]:
    return {
        name: Accuracy(**{average: _number(value) for average, value in averages.items()})
        for name, averages in values.items()
    }


def _moments_to_json(moments: Moments) -> dict[str, Any]:
    return {name: dataclasses.asdict(accuracy) for name, accuracy in moments.items()}


def _number(value: float | None) -> float:
    """A number as `json_ready` left it: null where it was not finite."""
    return math.nan if value is None else value
