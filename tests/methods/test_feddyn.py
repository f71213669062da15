"""FedDyn's drift, its server step and its local gradient, by hand."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from pfl.methods.feddyn import FedDyn
from tests.methods import quadratic, toy
from tests.methods.scripted import models, scripted


def test_the_drift_of_the_participants_accumulates_and_corrects_the_mean():
    # Client k moves by k + 1 in every round; two of four take part.
    simulation = scripted("feddyn", [1.0, 2.0, 3.0, 4.0], [6, 12, 6, 8], participation=0.5)
    server = simulation.runs[0].server
    drift, model = [0.0] * 4, 0.0
    for _ in range(4):
        simulation.advance()
        present = server.participants.tolist()
        assert len(present) == 2
        for client in present:
            drift[client] += client + 1.0
        # The plain mean, whatever the sizes, and the drift of all clients, those that are absent included.
        model = sum(model + client + 1.0 for client in present) / 2 + sum(drift) / 4
        assert models(simulation) == pytest.approx([model] * 4)
        drifts = server.client_state["drift"]["head.bias"]
        assert drifts[:, 0].tolist() == pytest.approx(drift)


def test_the_local_gradient_holds_drift_and_distance():
    start = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    drift = {"head.weight": torch.tensor([[0.5, 0.0], [0.0, 2.0]], dtype=torch.float64)}
    state = {"drift": drift, "alpha": torch.tensor(0.3, dtype=torch.float64)}
    client = dataclasses.replace(
        toy.client([[2.0, 0.0], [0.0, 1.0]], state), start={"head.weight": start}, trained=("head.weight",)
    )
    blank = toy.batch([[0.0, 0.0]], [0])  # no pixel is on, so cross-entropy has no gradient in the weights

    gradient, loss = FedDyn(clip=0.0)._corrected(client, (blank,))
    expected = 0.3 * (drift["head.weight"] + client.params["head.weight"] - start)
    torch.testing.assert_close(gradient["head.weight"], expected.detach())
    assert loss.item() == pytest.approx(math.log(2) + 0.3 * (0.5 * 2 + 2 * 1 + 1 / 2))


@pytest.mark.parametrize(("clip", "length"), [(10.0, 10.0), (100.0, 30.0)])
def test_gradients_are_clipped_to_a_norm(clip, length):
    class OnQuadratics(FedDyn):
        loss = staticmethod(quadratic.loss)

    data = (quadratic.batch([[10.0, 0.0], [0.0, 10.0]], [0.0, 0.0]),)  # gradient 10 w, of length 30
    client = quadratic.client([3.0, 0.0], drift=[0.0, 0.0])
    client = dataclasses.replace(client, state={**client.state, "alpha": torch.tensor(0.3).double()})
    gradient, _ = OnQuadratics(clip=clip)._clipped(client, data)
    assert gradient[quadratic.NAME][0].tolist() == pytest.approx([length, 0.0])


def test_alpha_is_in_inverse_proportion_to_the_size_or_the_same_for_all():
    def alphas(**hyper):
        simulation = scripted("feddyn", lambda *_: 0.0, [6, 12], alpha=0.2, **hyper)
        return simulation.runs[0].server.client_state["alpha"].tolist()

    assert alphas() == pytest.approx([0.2 * 9 / 6, 0.2 * 9 / 12])
    assert alphas(scaled=False) == pytest.approx([0.2, 0.2])
