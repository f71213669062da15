"""pFedMe's inner loop and server step, by hand."""

from __future__ import annotations

import pytest
import torch

from pfl.core.config import Config
from pfl.methods.pfedme import PFedMe
from pfl.run.validation import validated, warnings_of
from tests.methods import quadratic, toy
from tests.methods.scripted import models, scripted


class OnQuadratics(PFedMe):
    loss = staticmethod(quadratic.loss)


def test_theta_goes_on_from_the_batch_before_and_w_follows_it():
    # Loss 2 (theta - 1)^2; w = 3, theta = 2 from the batch before.
    client = quadratic.client([3.0], theta=[2.0])
    method = OnQuadratics(inner_steps=2, lam=5.0, personal_lr=0.1, mu=0.5)
    step = method._step(client, (quadratic.batch([[4.0]], [1.0]),), lr=0.02)

    first = 2 - 0.1 * (4 * (2 - 1) + 5 * (2 - 3) + 0.5 * 2)
    second = first - 0.1 * (4 * (first - 1) + 5 * (first - 3) + 0.5 * first)
    assert float(step.state["theta"][quadratic.NAME]) == pytest.approx(second)
    assert float(step.params[quadratic.NAME]) == pytest.approx(3 - 0.02 * 5 * (3 - second))


def test_the_server_steps_beta_times_to_the_size_weighted_mean():
    simulation = scripted("pfedme", [1.0, 4.0], [6, 12], beta=2.0)
    simulation.advance()
    assert models(simulation) == pytest.approx([2 * 3.0, 2 * 3.0])  # the mean is (1 * 6 + 4 * 12) / 18
    simulation.advance()
    assert models(simulation) == pytest.approx([12.0, 12.0])


def test_the_mean_may_have_equal_weights_as_in_the_paper():
    simulation = scripted("pfedme", [1.0, 4.0], [6, 12], beta=2.0, weights="equal")
    simulation.advance()
    assert models(simulation) == pytest.approx([2 * 2.5, 2 * 2.5])


def test_everybody_may_train_while_only_those_drawn_are_averaged():
    simulation = scripted("pfedme", range(4), [12] * 4, participation=0.5, all_train=True)
    simulation.advance()
    server = simulation.runs[0].server
    assert server.participants.tolist() == [0, 1, 2, 3]
    drawn = server.sample_clients().tolist()
    assert len(drawn) == 2
    assert models(simulation) == pytest.approx([sum(drawn) / 2] * 4)


@pytest.fixture
def server(dataset, partition):
    return toy.after_rounds("pfedme", dataset, partition, 1)[1]


def test_the_personal_model_is_evaluated_with_its_own_statistics(server):
    personal = PFedMe().personal(server, "post_local")
    theta = server.client_state["theta"]["head.weight"]
    assert torch.equal(personal["head.weight"], theta)
    present = server.participants
    assert not torch.equal(theta[present], server.uploads["head.weight"])  # w is another model
    statistic = server.groups["bn_stats"][0]
    assert torch.equal(personal[statistic][present], server.uploads[statistic])


def test_the_global_model_is_evaluated_after_aggregation(server):
    tensors = PFedMe().personal(server, "post_aggregation")
    assert torch.equal(tensors["head.weight"], server.store["head.weight"])


def test_theta_restarts_at_the_global_model(server):
    server.participants = torch.tensor([0, 5])
    PFedMe().dispatch(server)
    theta = server.client_state["theta"]["head.weight"]
    assert torch.equal(theta[server.participants], server.store["head.weight"][server.participants])


def test_a_rate_that_overshoots_is_a_warning_not_an_error():
    steep = validated(Config(method="pfedme", lr=0.1, hyperparameters={"lam": 15.0}))
    assert any("above 1" in line for line in warnings_of(steep))
    assert warnings_of(validated(Config(method="pfedme", lr=0.05, hyperparameters={"lam": 15.0}))) == ()


def test_inner_steps_that_diverge_are_a_warning():
    def warned(**hyper):
        lines = warnings_of(validated(Config(method="pfedme", lr=0.01, hyperparameters=hyper)))
        return any("personal_lr * (lam + mu)" in line for line in lines)

    assert warned(lam=18.0, personal_lr=0.1, mu=2.0)  # a step of exactly 2 swings for ever
    assert not warned(lam=18.0, personal_lr=0.1, mu=1.9)


def test_momentum_that_has_no_effect_is_a_warning():
    config = validated(Config(method="pfedme", lr=0.01, momentum=0.9))
    assert any("momentum" in line for line in warnings_of(config))
