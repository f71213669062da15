"""Typed metrics of a simulation, and their JSON form."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from pfl.core.errors import unknown_name

AverageName = Literal["pooled", "client_mean", "client_mean_weighted"]
AVERAGES: tuple[AverageName, ...] = get_args(AverageName)
"""Over all test samples; over clients; over clients, weighted by training samples."""

if TYPE_CHECKING:
    Number = float
else:
    Number = float | None
    """A number; if it is not finite, it is null in JSON and is read back as NaN."""


@dataclass(frozen=True)
class Accuracy:
    """Scores of the clients' models at one moment: accuracies in percent and the mean cross-entropy."""

    pooled: float
    client_mean: float
    client_mean_weighted: float
    loss: Number

    def __post_init__(self) -> None:
        _restore_nan(self, "loss")

    def average(self, name: AverageName) -> float:
        """The average accuracy of that ``name`` (`AVERAGES`), in percent.

        Raises:
            InvalidInput: there is no such average.
        """
        if name not in AVERAGES:
            raise unknown_name("average", name, AVERAGES)
        accuracy: float = getattr(self, name)
        return accuracy


Moments = Mapping[str, Accuracy]
"""Scores by `pfl.engine.method.Moment`."""


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """One evaluation.

    Attributes:
        post_aggregation, post_local, adapted: scores over all clients, at each evaluated moment.
        groups: the same for each group of clients that the method defines.
        train_loss: mean over the rounds since the previous evaluation.
        bytes_down, bytes_up: traffic since the first round.
    """

    round: int
    post_aggregation: Accuracy | None = None
    post_local: Accuracy | None = None
    adapted: Accuracy | None = None
    groups: Mapping[str, Moments] = dataclasses.field(default_factory=dict)
    train_loss: Number
    bytes_down: int
    bytes_up: int

    def __post_init__(self) -> None:
        _restore_nan(self, "train_loss")

    @property
    def moments(self) -> Moments:
        """The accuracies of all clients by moment."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Accuracy)}

    def of(self, group: str | None) -> Moments:
        """The accuracies of one group; None means all clients."""
        return self.groups[group] if group else self.moments

    def reduced(self, chosen: Collection[str]) -> Evaluated:
        """The evaluation at the moments ``chosen`` only; at all moments if it has none of these."""
        kept = [name for name in self.moments if name in chosen] or list(self.moments)
        others: dict[str, Any] = dict.fromkeys(self.moments.keys() - kept)
        groups = {
            group: {name: moments[name] for name in moments if name in kept}
            for group, moments in self.groups.items()
        }
        return dataclasses.replace(self, **others, groups=groups)


@dataclass(frozen=True)
class ClientResult:
    """One client: its sample counts, and its accuracy in percent (None without test samples)."""

    client: int
    train: int
    test: int
    accuracy: float | None


@dataclass(frozen=True)
class ClientMetric:
    """A metric of the clients' models (`pfl.client_metrics`) on their own test sets.

    Attributes:
        pooled: over all test samples together, a number or nested lists of numbers.
        client_mean: the mean over the clients for which it is defined.
        per_client: the value of each client, NaN if undefined; empty unless it is a single number.
    """

    pooled: Any
    client_mean: Any
    per_client: Sequence[Number] = ()

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, _with_nan(getattr(self, field.name)))


@dataclass(frozen=True)
class UnseenClient:
    """An unseen client: its sample counts, and its accuracies in percent (None without test samples); see
    `Unseen`."""

    client: int
    train: int
    test: int
    received: float | None
    adapted: float | None
    scratch: float | None


@dataclass(frozen=True)
class Unseen:
    """Scores of the clients that took no part in training, after the last round.

    Attributes:
        received: with the model that the method gives a new client, without training.
        adapted: after the method's adaptation or, if it has none, after local epochs of its local program.
        scratch: after the same number of epochs of plain local training from the common initialisation.
    """

    received: Accuracy
    adapted: Accuracy
    scratch: Accuracy
    per_client: tuple[UnseenClient, ...]

    @property
    def pooled(self) -> dict[str, float]:
        """The pooled accuracies as received, adapted and from scratch, by name."""
        return {name: value.pooled for name, value in vars(self).items() if isinstance(value, Accuracy)}


@dataclass(frozen=True)
class Reached:
    """An accuracy in the last evaluation and in the best one."""

    last: float
    best: float
    best_round: int

    def value(self, which: Literal["last", "best"]) -> float:
        return self.last if which == "last" else self.best


@dataclass(frozen=True)
class Metrics:
    """Results of one simulation that depend neither on timing nor on the machine.

    >>> (result,) = pfl.simulate("fedavg", clients=4, rounds=2, epochs=1, progress=False)
    >>> result.metrics.headline, [entry.round for entry in result.metrics.rounds]
    ('post_aggregation', [2])

    Attributes:
        headline: the moment that the method reports.
        rounds: the evaluations; the last one has all moments, unless the simulation has only paused there.
        per_client: the clients in the last evaluation, at the headline.
        pretrained: whether the network started from pretrained weights; None if it has none.
        similarities: a matrix of client similarities per measure, if the configuration requests them.
        client_metrics: those that the configuration requests, by name, in the last round at the headline.
        diverged_at: the round in which the loss became infinite or NaN.
        stopped_at: the last round, if the simulation was stopped early.
        unseen: scores of the unseen clients; None if there are none, or if the simulation diverged.
    """

    headline: str
    rounds: tuple[Evaluated, ...]
    per_client: tuple[ClientResult, ...]
    bytes_down: int
    bytes_up: int
    pretrained: bool | None = None
    similarities: Mapping[str, Sequence[Sequence[Number]]] | None = None
    client_metrics: Mapping[str, ClientMetric] = dataclasses.field(default_factory=dict)
    diverged_at: int | None = None
    stopped_at: int | None = None
    unseen: Unseen | None = None

    def __post_init__(self) -> None:
        if not self.rounds or self.headline not in self.moments:
            raise ValueError("no evaluation has the headline")

    @property
    def moments(self) -> tuple[str, ...]:
        return tuple(self.rounds[-1].moments)

    @property
    def scalars(self) -> dict[str, ClientMetric]:
        """The `client_metrics` that are single numbers."""
        return {
            name: metric for name, metric in self.client_metrics.items() if isinstance(metric.pooled, float)
        }

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(self.rounds[-1].groups)

    @property
    def worst_decile(self) -> float | None:
        """Mean accuracy of the worst tenth of the clients, rounded up to whole clients."""
        values = sorted(client.accuracy for client in self.per_client if client.accuracy is not None)
        return statistics.fmean(values[: math.ceil(len(values) / 10)]) if values else None

    @property
    def client_deviation(self) -> float | None:
        """Standard deviation of accuracy over the clients with test samples, in percentage points."""
        values = [client.accuracy for client in self.per_client if client.accuracy is not None]
        return statistics.pstdev(values) if values else None

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
        best, best_round = max(reached, key=lambda pair: pair[0])
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
        """The metrics as JSON, with the last and the best value of every average for readers of a file."""
        groups = {"groups": {name: self._summary(name) for name in self.groups}} if self.groups else {}
        return {**self._summary(None), **groups, **json_ready(self)}

    def _summary(self, group: str | None) -> dict[str, Any]:
        moments = {
            moment: {
                average: dataclasses.asdict(self.reached(average, moment, group)) for average in AVERAGES
            }
            for moment in self.moments
        }
        return {"accuracy": moments[self.headline], "moments": moments, "headline": self.headline}


@dataclass(frozen=True)
class Measured:
    """Measurements of one simulation that depend on timing and on the machine.

    Attributes:
        train_seconds: time of local training and of all other computations by clients.
        samples_per_second: training samples per second of that time.
    """

    wall_seconds: float
    train_seconds: float
    samples_per_second: float
    peak_memory_bytes: float

    @property
    def samples(self) -> int:
        """The number of samples that local training has processed since the first round."""
        return round(self.samples_per_second * self.train_seconds)


def json_ready(value: Any) -> Any:
    """``value`` in JSON types: a dataclass as an object without the fields that are at their default, and
    NaN and infinity as null."""
    if dataclasses.is_dataclass(value):
        return {
            field.name: json_ready(item)
            for field in dataclasses.fields(value)
            if (item := getattr(value, field.name)) != _default(field)
        }
    if isinstance(value, Mapping):
        return {key: json_ready(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _default(field: dataclasses.Field[Any]) -> Any:
    factory = field.default_factory
    return field.default if factory is dataclasses.MISSING else factory()


def _with_nan(value: Any) -> Any:
    """``value`` as lists, with JSON's null replaced by NaN."""
    if isinstance(value, list | tuple):
        return [_with_nan(item) for item in value]
    return math.nan if value is None else value


def _restore_nan(values: object, name: str) -> None:
    if getattr(values, name) is None:
        object.__setattr__(values, name, math.nan)
