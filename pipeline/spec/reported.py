"""Which of a simulation's numbers a cell reports."""

from __future__ import annotations

import inspect
from typing import Annotated, Any, Literal

from pydantic import Field, create_model

from pfl.core.errors import InvalidInput
from pfl.engine.metrics import AverageName
from pipeline.spec.yaml import Strict

Metric = Literal[AverageName, "seconds_per_sample", "similarity"]
Measure = Literal["data", "wdb", "mdb", "ldb", "cs"]
"""Measures of similarity; see `pfl.analysis.measures.similarities`."""
Which = Literal["last", "best"]
At = Literal["headline", "post_aggregation", "post_local", "adapted"]
TwoClients = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=2, max_length=2)]


class Evaluation(Strict):
    """Which of a simulation's numbers are reported, and on validation data maximised by a search."""

    every: int = Field(default=5, ge=1)
    """Rounds between evaluations; the last round is always evaluated."""
    metrics: list[str] = []
    """Metrics besides accuracy, names of `pfl metrics`; see [Metrics](tables.md#metrics)."""
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
    """The first and the last client that are included, from 0; by default all clients. Allowed only with
    `which: last`, `moment: headline` and no `group`.
    """
    measure: Measure = "cs"
    """Which similarity the metric `similarity` reports: of the data (`data`), of batch norm's statistics
    (`wdb`), of the last updates (`mdb`), by losses (`ldb`), or of the heads (`cs`)."""
    pair: TwoClients = Field(default=[0, 1])
    """The two clients that the metric `similarity` compares, from 0."""

    def override(self, *overrides: EvaluationOverride) -> Evaluation:
        """This evaluation with the values of ``overrides``; later ones take precedence.

        Raises:
            InvalidInput: ``clients`` with the best round, a moment other than the headline or a group, for
                which runs keep no accuracies by client; or the last client is before the first.
        """
        said: dict[str, Any] = {}
        for override in overrides:
            said |= override.model_dump(exclude_none=True)
        overridden = self.model_copy(update=said)
        asked = (overridden.which, overridden.moment, overridden.group)
        if overridden.clients and asked != ("last", "headline", None):
            accepted = "which: last, moment: headline and no group, because clients are selected"
            raise InvalidInput("evaluation", ", ".join(map(str, asked)), accepted)
        if overridden.clients and overridden.clients[0] > overridden.clients[1]:
            raise InvalidInput("evaluation.clients", overridden.clients, "the first client before the last")
        return overridden

    def check_clients(self, clients: int) -> None:
        """Check that the reported clients are among ``clients`` clients.

        Raises:
            InvalidInput: a client does not exist.
        """
        if self.clients and self.clients[-1] >= clients:
            raise InvalidInput("evaluation.clients", self.clients, f"clients from 0 to {clients - 1}")
        if self.metric == "similarity" and max(self.pair) >= clients:
            raise InvalidInput("evaluation.pair", self.pair, f"two clients from 0 to {clients - 1}")

    @property
    def is_accuracy(self) -> bool:
        return self.metric not in ("seconds_per_sample", "similarity")

    @property
    def unit(self) -> str:
        return {"seconds_per_sample": "· 10⁻⁴ s", "similarity": ""}.get(self.metric, "%")

    def moment_of(self, headline: str) -> str:
        """The `pfl.engine.method.Moment` at which clients are evaluated.

        Args:
            headline: the moment that the method reports.
        """
        return headline if self.moment == "headline" else self.moment


def _options() -> dict[str, Any]:
    """Type and field of each key of `Evaluation` that a setting or a row can override, by name."""
    return {
        name: (kind | None, Field(default=None, description="As in Evaluation."))
        for name, kind in inspect.get_annotations(Evaluation, eval_str=True).items()
        if name not in ("every", "metrics")
    }


class EvaluationOverride(create_model("EvaluationOverride", __base__=Strict, **_options())):  # type: ignore[misc]
    """Overrides by a setting or a row of which numbers are reported; omitted keys are the table's."""
