"""The reported numbers of an evaluation, from records."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from pfl.core.errors import InvalidInput, check_names
from pfl.engine.metrics import ClientResult
from pfl.run.trials import Record
from pipeline.spec.reported import Evaluation


@dataclass(frozen=True)
class Score:
    """The reported number of one configuration, over its seeds.

    Attributes:
        mean: in percent, or in the unit of another metric.
        std: sample standard deviation (n - 1); None for one seed.
        seeds: number of seeds, n.
    """

    mean: float
    std: float | None
    seeds: int


def score(records: Sequence[Record], evaluation: Evaluation) -> Score | None:
    """The score of one configuration's valid records, one per seed; None without any."""
    values = [reported(record, evaluation) for record in records]
    if not values:
        return None
    return Score(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))


def gain(differences: Sequence[float]) -> tuple[float, float | None]:
    """The mean of paired differences and its standard error, which is None for a single pair."""
    error = statistics.stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else None
    return statistics.fmean(differences), error


def reported(record: Record, evaluation: Evaluation) -> float:
    """The number of one simulation that ``evaluation`` asks for.

    Raises:
        InvalidInput: the simulation has no number for the moment, the group or the clients.
    """
    metrics = record.metrics
    if evaluation.metric == "seconds_per_sample":
        return 1e4 / record.measured.samples_per_second
    if evaluation.metric == "similarity":
        first, second = evaluation.pair
        similarities = metrics.similarities or {}
        check_names("evaluation.measure", [evaluation.measure], similarities)
        evaluation.check_clients(len(similarities[evaluation.measure]))
        return similarities[evaluation.measure][first][second]
    if evaluation.clients:
        return _over_clients(metrics.per_client, evaluation)
    if evaluation.group:
        check_names("evaluation.group", [evaluation.group], metrics.groups)
    moment = evaluation.moment_of(metrics.headline)
    check_names("evaluation.moment", [moment], metrics.moments)
    return metrics.reached(evaluation.metric, moment, evaluation.group).value(evaluation.which)


def lack(record: Record, evaluation: Evaluation) -> str | None:
    """Why a valid record has no number for ``evaluation``, in a few words; None if it has one.

    Which clients are in a group, and which have test samples, may depend on the seed.
    """
    metrics = record.metrics
    if evaluation.is_accuracy and evaluation.group and evaluation.group not in metrics.groups:
        return f"no client with test samples in group {evaluation.group}"
    if evaluation.is_accuracy and evaluation.clients and not _counted(metrics.per_client, evaluation):
        return "no client with test samples from {} to {}".format(*evaluation.clients)
    return None


def curve(record: Record, evaluation: Evaluation) -> list[tuple[int, float]]:
    """(round, accuracy) at every evaluation with the moment; empty if there is no such curve."""
    average = evaluation.metric
    if average == "seconds_per_sample" or average == "similarity" or evaluation.clients:  # noqa: PLR1714
        return []
    moment = evaluation.moment_of(record.metrics.headline)
    return [
        (entry.round, entry.of(evaluation.group)[moment].average(average))
        for entry in record.metrics.rounds
        if moment in entry.moments
    ]


def curves(records: Sequence[Record], evaluation: Evaluation) -> list[tuple[int, list[float]]]:
    """Round and the accuracy of each of ``records``, at the evaluations that all of them have."""
    by_round = [dict(curve(record, evaluation)) for record in records]
    first, *others = by_round or [{}]
    shared = [number for number in first if all(number in other for other in others)]
    return [(number, [accuracies[number] for accuracies in by_round]) for number in shared]


def client_accuracies(records: Sequence[Record]) -> dict[int, list[float]]:
    """The accuracies in the last round, one per record, of each client with test samples."""
    accuracies: dict[int, list[float]] = {}
    for record in records:
        for client in record.metrics.per_client:
            if client.accuracy is not None:
                accuracies.setdefault(client.client, []).append(client.accuracy)
    return accuracies


def _counted(per_client: Sequence[ClientResult], evaluation: Evaluation) -> list[tuple[ClientResult, float]]:
    """The reported clients that have test samples, and their accuracies."""
    assert evaluation.clients is not None
    first, last = evaluation.clients
    return [
        (client, client.accuracy)
        for client in per_client
        if first <= client.client <= last and client.accuracy is not None
    ]


def _over_clients(per_client: Sequence[ClientResult], evaluation: Evaluation) -> float:
    counted = _counted(per_client, evaluation)
    if not counted:
        raise InvalidInput("evaluation.clients", evaluation.clients, "clients of which one has test samples")
    weights = [weight(client, evaluation) for client, _ in counted]
    return statistics.fmean((accuracy for _, accuracy in counted), weights)


def weight(client: ClientResult, evaluation: Evaluation) -> int:
    """The weight of a client in the reported average."""
    return {"pooled": client.test, "client_mean_weighted": client.train}.get(evaluation.metric, 1)
