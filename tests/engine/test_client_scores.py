"""Metrics beside accuracy: of every client's model, pooled and averaged over the clients."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from pfl.client_metrics import CLIENT_METRICS
from pfl.core.config import Execution
from pfl.core.errors import InvalidInput
from pfl.engine.client_scores import client_metrics, scores_of
from tests.conftest import CONFIG, sampled, simulate, simulation_of

ALL = ("auroc", "confusion", "ece", "macro_f1", "recall")
WITH_METRICS = replace(CONFIG, metrics=ALL)


def own_accuracy(scores, labels):
    return (scores.argmax(1) == labels).mean()


@pytest.fixture
def uneven(dataset, partition):
    """The last client has no test samples, the first has those of a single class."""
    labels = dataset.labels[partition.test[0]]
    single = partition.test[0][labels == labels[0]]
    return replace(partition, test=(single, *partition.test[1:-1], partition.test[0][:0]))


@pytest.mark.parametrize(
    "method", [*sampled(["fedavg", "pfedsim", "fesem"]), "knnper", "fedproto", "perfedavg"]
)
def test_accuracy_of_the_scores_is_that_of_the_evaluation(method, dataset, uneven, monkeypatch):
    monkeypatch.setitem(CLIENT_METRICS._added, "own_accuracy", own_accuracy)
    config = replace(CONFIG, method=method, metrics=("own_accuracy",))
    (result,) = simulate(config, dataset, uneven)
    (metric,) = result.metrics.client_metrics.values()
    accuracies = [
        math.nan if client.accuracy is None else client.accuracy for client in result.metrics.per_client
    ]
    assert [100 * value for value in metric.per_client] == pytest.approx(accuracies, nan_ok=True)
    headline = result.metrics.rounds[-1].moments[result.metrics.headline]
    assert 100 * metric.pooled == pytest.approx(headline.pooled)
    assert 100 * metric.client_mean == pytest.approx(headline.client_mean)


def test_the_other_numbers_are_the_same_bit_for_bit(backend, dataset, uneven):
    execution = Execution(backend=backend)
    plain, with_metrics = (
        simulate(config, dataset, uneven, execution=execution)[0].metrics for config in (CONFIG, WITH_METRICS)
    )
    assert set(with_metrics.client_metrics) == set(ALL)
    assert replace(with_metrics, client_metrics={}) == plain
    assert "client_metrics" not in plain.to_json()


def test_a_client_of_a_single_class_has_no_auroc(dataset, uneven):
    auroc = simulate(WITH_METRICS, dataset, uneven)[0].metrics.client_metrics["auroc"]
    assert np.isnan(auroc.per_client).tolist() == [True, False, False, False, False, True]
    assert auroc.client_mean == pytest.approx(np.mean(auroc.per_client[1:-1]))


def test_metrics_survive_an_interruption_after_the_last_evaluation(dataset, partition, checkpointed):
    execution = replace(checkpointed, code="tests")
    whole = simulate(WITH_METRICS, dataset, partition, execution=execution)
    again = simulate(WITH_METRICS, dataset, partition, execution=execution)
    assert again[0].metrics == whole[0].metrics


def test_a_simulation_that_diverged_has_no_metrics(dataset, partition):
    config = replace(WITH_METRICS, lr=1e18)
    (result,) = simulate(config, dataset, partition)
    assert result.metrics.diverged_at
    assert math.isnan(result.metrics.client_metrics["recall"].pooled)


@pytest.mark.parametrize("bias", [math.inf, math.nan])
def test_diverged_models_have_no_metrics(bias, dataset, uneven):
    run = simulation_of(CONFIG, dataset, uneven).runs[0]
    biases = torch.zeros(len(dataset.classes), dtype=run.server.federation.dtype)
    biases[1] = bias
    run.server.store.share("head.bias", biases)
    metrics = client_metrics(run.server, run.method, list(CLIENT_METRICS))
    assert all(np.isnan(metric.pooled).all() for metric in metrics.values())


@pytest.mark.parametrize(
    ("metric", "why"),
    [
        (lambda *_: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda *_: "good", "ValueError: could not convert"),
        (lambda _, labels: labels, "arrays of different shapes"),
    ],
)
def test_a_function_that_is_no_metric_is_one_clear_line(metric, why, dataset, uneven, monkeypatch):
    monkeypatch.setitem(CLIENT_METRICS._added, "own", metric)
    run = simulation_of(CONFIG, dataset, uneven).runs[0]
    with pytest.raises(InvalidInput, match=f"metrics: own is not accepted; expected a function.*{why}"):
        client_metrics(run.server, run.method, ["own"])


def test_scores_are_of_each_clients_own_test_samples(dataset, uneven):
    run = simulation_of(CONFIG, dataset, uneven).runs[0]
    shapes = [own.shape for own in scores_of(run.server, run.method)]
    assert shapes == [(len(index), len(dataset.classes)) for index in uneven.test]
