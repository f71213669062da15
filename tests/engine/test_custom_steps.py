"""What a method's custom step or gradient can rely on, on both backends."""

from __future__ import annotations

import pytest

import pfl
from pfl.core.config import Execution
from pfl.engine.client import Step
from pfl.engine.method import Phase


@pytest.mark.parametrize("hook", ["step", "gradient"])
def test_a_client_s_networks_have_its_parameters_before_and_after_a_gradient(
    hook, dataset, partition, backend
):
    class Watchful(pfl.Method):
        """Reports how far the loss of ``client.net`` is from the loss at the client's parameters."""

        def phases(self, server):
            return (Phase(repeat=2, **{hook: getattr(self, hook)}),)

        def gradient(self, client, batches):
            (batch,) = batches
            with client.statistics_kept():
                losses = [batch.cross_entropy(client.net(batch.x))]
                client.gradient(self.loss, batch, at={n: w + 1 for n, w in client.weights.items()})
                losses.append(batch.cross_entropy(client.net(batch.x)))
                gradient, loss = client.gradient(self.loss, batch)
            return gradient, sum((other - loss).abs() for other in losses)

        def step(self, client, batches, lr):
            gradient, error = self.gradient(client, batches)
            return Step({n: w - lr * gradient[n] for n, w in client.weights.items()}, error)

    execution = Execution(backend=backend)
    options = {"rounds": 2, "epochs": 1, "batch_size": 8, "dtype": "float64", "progress": False}
    (run,) = pfl.simulate(Watchful, dataset, partition, model="lenet5_bn", execution=execution, **options)
    assert run.metrics.rounds[-1].train_loss == pytest.approx(0, abs=1e-9)
