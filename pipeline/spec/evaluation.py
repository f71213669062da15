"""Which of a simulation's numbers a cell reports, and these numbers out of a row of the ledger."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from pfl.errors import InvalidInput, unknown_name
from pipeline.spec.yaml import Strict

Row = Mapping[str, Any]
"""A line of the ledger."""

Metric = Literal["pooled", "client_mean", "client_mean_weighted", "seconds_per_sample", "similarity"]
Measure = Literal["data", "wdb", "mdb", "ldb", "cs"]
"""Of similarity: see `pfl.analysis.measures.similarities`."""
Which = Literal["last", "best"]
At = Literal["headline", "post_aggregation", "post_local", "adapted"]
TwoClients = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=2, max_length=2)]


class EvaluationOverride(Strict):
    """Where a setting or a row reports other numbers than its table; what is left out is the table's."""

    metric: Metric | None = None
    """As in Evaluation."""
    which: Which | None = None
    """As in Evaluation."""
    moment: At | None = None
    """As in Evaluation."""
    group: str | None = None
    """As in Evaluation."""
    clients: TwoClients | None = None
    """As in Evaluation."""
    measure: Measure | None = None
    """As in Evaluation."""
    pair: TwoClients | None = None
    """As in Evaluation."""


class Evaluation(Strict):
    """Which of a simulation's numbers are reported, and on validation data maximised by a search."""

    every: int = Field(default=5, ge=1)
    """Rounds between evaluations; the last round is always evaluated."""
    metric: Metric = "pooled"
    """Accuracy in percent over all test samples (`pooled`), or its mean over the clients, weighted by their
    training samples or not; the time of local training in 10^-4 s per sample; or the similarity of two
    clients."""
    which: Which = "last"
    """Accuracy in the last round, or in the best one."""
    moment: At = "headline"
    """When a client's model is evaluated: after aggregation, after its last local training, or after the
    method's adaptation; `headline` means the moment that the method reports."""
    group: str | None = None
    """A group of clients that the method names; by default all clients."""
    clients: TwoClients | None = None
    """The first and the last client that count, from 0; by default all. Only of the last round's headline."""
    measure: Measure = "cs"
    """Which similarity the metric `similarity` reports: of the data (`data`), of batch norm's statistics
    (`wdb`), of the last updates (`mdb`), by losses (`ldb`), or of the heads (`cs`)."""
    pair: TwoClients = Field(default=[0, 1])
    """Which two clients the metric `similarity` compares, from 0."""

    def override(self, *readings: EvaluationOverride) -> Evaluation:
        """With what each of ``readings`` says, later ones first.

        Raises:
            InvalidInput: some clients' best round, or another moment than the headline, which no run keeps;
                the last client before the first.
        """
        said: dict[str, Any] = {}
        for reading in readings:
            said |= reading.model_dump(exclude_none=True)
        found = self.model_copy(update=said)
        asked = (found.which, found.moment, found.group)
        if found.clients and asked != ("last", "headline", None):
            accepted = "last, headline and no group beside clients"
            raise InvalidInput("evaluation", ", ".join(map(str, asked)), accepted)
        if found.clients and found.clients[0] > found.clients[1]:
            raise InvalidInput("evaluation.clients", found.clients, "the first client before the last")
        return found

    @property
    def is_accuracy(self) -> bool:
        return self.metric not in ("seconds_per_sample", "similarity")

    @property
    def unit(self) -> str:
        return {"seconds_per_sample": "· 10⁻⁴ s", "similarity": ""}.get(self.metric, "%")


def reported(row: Row, evaluation: Evaluation) -> float:
    """What ``evaluation`` asks for of one simulation.

    Raises:
        InvalidInput: a moment, a group or clients of which the simulation has no number.
    """
    if evaluation.metric == "seconds_per_sample":
        return 1e4 / float(row["measured"]["samples_per_second"])
    if evaluation.metric == "similarity":
        one, other = evaluation.pair
        return float(row["metrics"]["similarities"][evaluation.measure][one][other])
    if evaluation.clients:
        return _over_clients(row["metrics"]["per_client"], evaluation)
    metrics = _of_group(row["metrics"], evaluation)
    at = moment(row["metrics"], evaluation)
    if at not in metrics["moments"]:
        raise unknown_name("evaluation.moment", at, metrics["moments"])
    return float(metrics["moments"][at][evaluation.metric][evaluation.which])


def curve(row: Row, evaluation: Evaluation) -> list[tuple[int, float]]:
    """(round, accuracy) at every evaluation that has the moment; empty where there is no such curve."""
    if not evaluation.is_accuracy or evaluation.clients:
        return []
    at = moment(row["metrics"], evaluation)
    return [
        (entry["round"], float(_of_group(entry, evaluation)[at][evaluation.metric]))
        for entry in row["metrics"]["rounds"]
        if at in entry
    ]


def curves(rows: Sequence[Row], evaluation: Evaluation) -> list[tuple[int, list[float]]]:
    """Round and the accuracy of each of ``rows``, at the evaluations that all of them have."""
    found = [dict(curve(row, evaluation)) for row in rows]
    shared = [number for number in found[0] if all(number in one for one in found)] if found else []
    return [(number, [one[number] for one in found]) for number in shared]


def lacks(row: Row, moments: Collection[str]) -> bool:
    """Whether some evaluation before the last one is without some of ``moments``: the simulation was run for
    a table that does not read them."""
    metrics = row["metrics"]
    had = [name for name in moments if name in metrics["moments"]]
    return any(name not in entry for entry in metrics["rounds"] for name in had)


def evaluated(row: Row) -> frozenset[str]:
    """The moments that every evaluation of a simulation has."""
    return frozenset(name for name in row["metrics"]["moments"] if not lacks(row, [name]))


def moment(metrics: Mapping[str, Any], evaluation: Evaluation) -> str:
    """When clients are evaluated: at a `pfl.engine.method.Moment`; "headline" is the method's own."""
    return str(metrics["headline"]) if evaluation.moment == "headline" else evaluation.moment


def _of_group(metrics: Mapping[str, Any], evaluation: Evaluation) -> Mapping[str, Any]:
    if not evaluation.group:
        return metrics
    groups: Mapping[str, Mapping[str, Any]] = metrics.get("groups", {})
    if evaluation.group not in groups:
        raise unknown_name("evaluation.group", evaluation.group, groups)
    return groups[evaluation.group]


def _over_clients(per_client: Sequence[Mapping[str, Any]], evaluation: Evaluation) -> float:
    assert evaluation.clients is not None
    first, last = evaluation.clients
    counted = [c for c in per_client if first <= c["client"] <= last and c["accuracy"] is not None]
    if not counted:
        raise InvalidInput("evaluation.clients", [first, last], "clients of which one has test samples")
    weigh = {"pooled": "test", "client_mean_weighted": "train"}.get(evaluation.metric)
    weights = [c[weigh] if weigh else 1 for c in counted]
    return statistics.fmean((c["accuracy"] for c in counted), weights)
