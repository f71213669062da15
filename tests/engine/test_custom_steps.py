"""What a method's custom step or gradient can rely on, on both backends."""

from __future__ import annotations

import pytest
import torch

import pfl
from pfl.core.config import Execution
from pfl.engine.method import Phase, Step
from tests.refusal import refusal


@pytest.mark.parametrize("hook", ["step", "gradient"])
def test_a_client_s_networks_have_its_parameters_before_and_after_a_gradient(
    hook, dataset, partition, backend
):
    class Watchful(pfl.Method):
        """Reports how far the loss of ``client.net`` is from the loss at the client's parameters."""

        def phases(self, server):
            return (Phase(**{hook: getattr(self, hook)}),)

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


def test_a_state_that_was_expanded_is_each_client_s_own(backend):
    class Counting(pfl.Method):
        """Every client counts its steps."""

        def initialise(self, server):
            server.client_state["steps"] = torch.tensor(0.0).expand(server.clients)

        def phases(self, server):
            return (Phase(step=self.counted),)

        def counted(self, client, *_):
            return Step({}, torch.zeros(()), {"steps": client.state["steps"] + 1})

    (run,) = pfl.simulate(
        Counting,
        clients=4,
        participation=1.0,
        rounds=1,
        epochs=1,
        execution=Execution(backend=backend),
        batch_size=8,
        measure=lambda server, _: torch.stack(
            [server.client_state["steps"].double(), server.steps(server.client_ids, Phase())]
        ).tolist(),
        progress=False,
    )
    counted, steps = run.measurements[-1]
    assert counted == steps
    assert len(set(steps)) > 1


class Exchanging(pfl.Method):
    """Clients whose parameters and state exchange their values in every step, which reports the old state."""

    def initialise(self, server):
        n = server.clients
        server.client_state["pair"] = {"a": torch.zeros(n), "b": torch.ones(n)}
        server.client_state["earlier"] = torch.zeros(n, *server.store.shape("head.bias"))

    def phases(self, server):
        return (Phase(steps=3, step=self.exchanged),)

    def exchanged(self, client, *_):
        pair, bias = client.state["pair"], client.params["head.bias"]
        state = {"pair": {"a": pair["b"], "b": pair["a"]}, "earlier": bias.view(-1)}
        return Step({"head.bias": bias + 1}, pair["a"], state)


class Turning(pfl.Method):
    """Each of two equal layers descends along the other's weights."""

    def client_network(self, network, federation):
        network.pair = torch.nn.ParameterList(torch.full((2,), value) for value in (1.0, 2.0))
        return network

    def phases(self, server):
        return (Phase(steps=1, gradient=self.turned),)

    def turned(self, client, batches):
        pair = client.weights
        still = {name: torch.zeros_like(weight) for name, weight in pair.items()}
        return {**still, "pair.0": pair["pair.1"], "pair.1": pair["pair.0"]}, torch.zeros(())


@pytest.fixture
def run_on(backend):
    """A round of four clients, and what is measured after it."""

    def run(method, measure, **options):
        execution = Execution(backend=backend)
        options = {"clients": 4, "participation": 1.0, "rounds": 1, "progress": False, **options}
        (result,) = pfl.simulate(method, execution=execution, measure=measure, **options)
        return result.metrics.rounds[-1].train_loss, result.measurements[-1]

    return run


def test_a_step_s_values_may_be_the_client_s_own_tensors(run_on):
    def measured(server, _):
        pair, earlier = server.client_state["pair"], server.client_state["earlier"]
        return {**pair, "change": server.store["head.bias"] - earlier}

    loss, values = run_on(Exchanging, measured)
    assert (values["a"].tolist(), values["b"].tolist()) == ([1] * 4, [0] * 4)
    torch.testing.assert_close(values["change"], torch.ones_like(values["change"]))
    assert loss == pytest.approx(1 / 3)  # the state before each of three steps: 0, 1, 0


def test_a_gradient_s_values_may_be_the_client_s_own_tensors(run_on):
    _, values = run_on(Turning, lambda server, _: server.store["pair.1"][0].tolist(), lr=0.5)
    assert values == [2 - 0.5 * 1] * 2


@pytest.mark.parametrize(
    ("state", "complaint"),
    [
        (None, "state: a return value of type NoneType is not accepted; expected a mapping from names to"),
        ({"rates": torch.zeros(())}, "state: 'rates' is not accepted; expected names in client.state"),
        ({"rate": torch.zeros(1)}, "state['rate']: a tensor of shape (1,) is not accepted; expected a"),
        ({"rate": 0.5}, "state['rate']: a return value of type float is not accepted; expected a"),
        ({"moments": torch.zeros(2)}, "state['moments']: a return value of type Tensor is not accepted"),
        ({"moments": {}}, "state['moments']: a dictionary without 'first' is not accepted"),
        (
            {"moments": {"first": torch.zeros(2), "second": torch.zeros(2)}},
            "state['moments']: a dictionary with 'second' is not accepted",
        ),
        (
            {"moments": {"first": torch.zeros(3)}},
            "state['moments']['first']: a tensor of shape (3,) is not accepted",
        ),
    ],
)
def test_a_step_s_state_that_is_unlike_the_client_s_is_refused(state, complaint, backend):
    class Wrong(pfl.Method):
        """A wrong method."""

        def initialise(self, server):
            server.client_state["rate"] = torch.zeros(server.clients)
            server.client_state["moments"] = {"first": torch.zeros(server.clients, 2)}

        def phases(self, server):
            return (Phase(step=lambda *_: Step({}, torch.zeros(()), state)),)

    execution = Execution(backend=backend)
    line = refusal(pfl.simulate, Wrong, clients=4, rounds=1, epochs=1, execution=execution, progress=False)
    assert line.startswith(f"Wrong: Phase(step): {complaint}")
