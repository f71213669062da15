"""Metrics other than accuracy, from the scores of every client's model on its own test set."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from pfl.client_metrics import CLIENT_METRICS
from pfl.core.errors import InvalidInput
from pfl.core.text import first_line
from pfl.engine.client import Batch, Client
from pfl.engine.evaluation import evaluated_models, outputs, parts
from pfl.engine.method import Method
from pfl.engine.metrics import ClientMetric
from pfl.engine.server import Server


def client_metrics(server: Server, method: Method, names: Sequence[str]) -> dict[str, ClientMetric]:
    """The metrics ``names`` of one federation, at the method's headline moment.

    Raises:
        InvalidInput: a metric raises an error, does not return numbers, or returns different shapes.
    """
    if not names:
        return {}
    scores = scores_of(server, method)
    labels = server.federation.labels.cpu().numpy()
    of_clients = [labels[index] for index in server.federation.test]
    return {name: _metric(name, scores, of_clients) for name in names}


def scores_of(server: Server, method: Method) -> list[np.ndarray]:
    """The scores (samples, classes), float64, of each client's model on the client's test samples."""

    def statistic(client: Client, batch: Batch) -> Mapping[str, Tensor]:
        return {"scores": outputs(server, method, client, batch)[1]}

    scores = [np.zeros((0, server.federation.classes))] * server.clients
    for part in parts(server):
        first = part.start
        samples = server.federation.test[part]
        if not any(map(len, samples)):
            continue
        tensors = evaluated_models(server, method, method.headline, part)
        padded = server.collect(statistic, server.client_ids[part], tensors, samples, each=True)["scores"]
        for k, (rows, index) in enumerate(zip(padded.cpu().numpy(), samples, strict=True)):
            scores[first + k] = rows[: len(index)]
    return scores


def _metric(name: str, scores: Sequence[np.ndarray], labels: Sequence[np.ndarray]) -> ClientMetric:
    """One metric, from the scores and the labels of each client's test samples."""
    tested = [k for k, own in enumerate(labels) if len(own)]
    # After a divergence, scores are NaN or infinite; -inf alone excludes a class.
    if not tested or not all(np.isfinite(own.max(1)).all() for own in scores):
        return ClientMetric(np.nan, np.nan)
    values = [_value(name, scores[k], labels[k]) for k in tested]
    pooled = _value(name, *(np.concatenate([each[k] for k in tested]) for each in (scores, labels)))
    if any(value.shape != pooled.shape for value in values):
        raise _unusable(name, "arrays of different shapes")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the mean of nothing but NaN is NaN
        mean = np.nanmean(np.stack(values), axis=0)
    per_client = np.full(len(labels), np.nan)
    if not pooled.shape:
        per_client[tested] = values
    return ClientMetric(pooled.tolist(), mean.tolist(), [] if pooled.shape else per_client.tolist())


def _value(name: str, scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The value of a metric, float64."""
    try:
        returned: Any = CLIENT_METRICS[name](scores, labels)
        return np.asarray(returned, dtype=np.float64)
    except InvalidInput:
        raise
    except Exception as error:  # whatever a user's function raises
        raise _unusable(name, f"{type(error).__name__}: {first_line(error)}") from error


def _unusable(name: str, why: str) -> InvalidInput:
    return InvalidInput("metrics", name, f"a function of scores and labels that returns numbers ({why})")
