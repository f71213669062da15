"""FedGen's losses with a generator that says the same whatever it is asked, and its optimiser."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from pfl.core.rng import generator
from pfl.engine.state import State
from pfl.methods._generator import TRAINED, descend, generate, initial_state
from pfl.methods.fedgen import FedGen, _drawn
from tests.methods.toy import after_rounds, batch, client, with_and_without_padding

NOISE, HIDDEN = 2, 3


def state_of_generator(output: list[float] | None = None, classes: int = 2) -> State:
    """A generator of features (2,); one that always gives ``output`` if there is one."""
    state = initial_state(generator(0, "tests"), classes, NOISE, HIDDEN, 2, torch.float64)
    if output:
        state["generator"]["output.weight"].zero_()
        state["generator"]["output.bias"].copy_(torch.tensor(output))
    return state


def softmax(*logits: float) -> list[float]:
    total = sum(math.exp(logit) for logit in logits)
    return [math.exp(logit) / total for logit in logits]


@with_and_without_padding
def test_the_client_s_loss_by_hand(padded):
    method = FedGen(generated=4, noise=NOISE)
    # Only class 1 is available, and every generated feature is (0, 2).
    state = {**state_of_generator([0.0, 2.0]), "available": torch.tensor([0.0, 1.0]).double()}
    participant = client([[1.0, 0.0], [0.0, 1.0]], state)
    noise = torch.from_numpy(generator(0, "noise").random(4 + (4 + 8) * NOISE))
    samples = batch([[3.0, 0.0], [0.0, 2.0]], [0, 0], padded, noise)
    loss = method._distilled(participant, samples, size=8, a=0.3, b=0.7)

    target, first = softmax(0, 2), softmax(3, 0)
    cross_entropy = -(math.log(first[0]) + math.log(softmax(0, 2)[0])) / 2
    invented = -math.log(target[1])
    # The second sample's logits are those of the generated feature: it diverges by nothing.
    divergence = sum(p * math.log(p / q) for p, q in zip(target, first, strict=True)) / 2
    assert loss.item() == pytest.approx(cross_entropy + 4 / 8 * 0.3 * invented + 0.7 * divergence)


def test_the_divergence_does_not_move_what_it_compares_with():
    method = FedGen(generated=2, noise=NOISE)
    state = {**state_of_generator([0.0, 2.0]), "available": torch.ones(2).double()}
    participant = client([[1.0, 0.0], [0.0, 1.0]], state)
    weight = participant.params["head.weight"]
    noise = torch.full((2 + (2 + 1) * NOISE,), 0.5, dtype=torch.float64)
    loss = method._distilled(participant, batch([[3.0, 0.0]], [0], noise=noise), size=1, a=0.0, b=1.0)
    (gradient,) = torch.autograd.grad(loss, weight)

    # Cross-entropy pulls q to class 0, the divergence to the target: (q - y) + (q - p), times the feature.
    q, p = softmax(3, 0), softmax(0, 2)
    expected = [(q[0] - 1) + (q[0] - p[0]), q[1] + (q[1] - p[1])]
    assert gradient[:, 0].tolist() == pytest.approx([3 * value for value in expected])
    assert gradient[:, 1].tolist() == pytest.approx([0.0, 0.0])


def test_generated_labels_are_uniform_over_available_classes():
    available = torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0])
    assert _drawn(torch.tensor([1e-7, 0.49, 0.51, 1 - 1e-7]), available).tolist() == [1, 1, 3, 3]


def test_the_terms_weights_decay_to_a_floor_and_0_stays_0(dataset, partition):
    _, server = after_rounds("fedgen", dataset, partition, 0)
    used = []

    class Recording(FedGen):
        def _distilled(self, client, batch, size, a, b):
            used.append((size, a, b))

    server.round = 1
    assert Recording().phases(server)[0].loss is None
    for server.round in (2, 1000):
        Recording(label_weight=10.0, latent_weight=0.0, decay=0.9).phases(server)[0].loss(None, None)
    assert used == [(8, pytest.approx(10 * 0.9), 0.0), (8, 1e-4, 0.0)]


def test_the_generator_learns_from_the_clients_own_heads_by_their_share_of_a_class():
    # Client 0 has 3 of 4 samples of class 0, client 1 the other; the generator always gives (1, 0).
    server = SimpleNamespace(
        groups={"head": ["head.weight", "head.bias"]},
        participants=torch.tensor([0, 1]),
        label_counts=torch.tensor([[3.0, 1.0], [1.0, 1.0]]).double(),
        uploads={
            "head.weight": torch.tensor([[[2.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [1.0, 0.0]]]).double(),
            "head.bias": torch.tensor([[0.0, 0.0], [0.0, 0.5]]).double(),
        },
    )
    net = state_of_generator([1.0, 0.0])["generator"]
    noise = torch.from_numpy(generator(0, "noise").standard_normal((2, NOISE)))
    objective = FedGen(diversity=0.1)._objective(server, net, torch.tensor([0, 1]), noise)

    first, second = softmax(2, 0), softmax(0, 1.5)
    class_0 = -3 / 4 * math.log(first[0]) - 1 / 4 * math.log(second[0])
    class_1 = -1 / 2 * math.log(first[1]) - 1 / 2 * math.log(second[1])
    assert float(objective) == pytest.approx((class_0 + class_1) / 2 + 0.1)  # equal features: exp(0)


def test_diversity_compares_all_pairs_of_features_and_noises():
    state, y = state_of_generator(), torch.tensor([0, 1, 1])
    server = SimpleNamespace(
        groups={"head": ["head.weight", "head.bias"]},
        participants=torch.tensor([0]),
        label_counts=torch.tensor([[3.0, 1.0]]).double(),
        uploads={"head.weight": torch.zeros(1, 2, 2).double(), "head.bias": torch.zeros(1, 2).double()},
    )
    noise = torch.from_numpy(generator(1, "noise").standard_normal((3, NOISE)))
    objective = FedGen(diversity=1.0)._objective(server, state["generator"], y, noise)

    z = generate(state_of_generator()["generator"], y, noise, training=True)
    pairs = [(i, j) for i in range(3) for j in range(3)]
    products = [(noise[i] - noise[j]).square().mean() * (z[i] - z[j]).abs().mean() for i, j in pairs]
    assert z.any()
    assert float(objective) == pytest.approx(math.log(2) + math.exp(-float(sum(products)) / 9))


def test_the_generator_s_steps_are_those_of_adam():
    ours, theirs = state_of_generator(), state_of_generator()
    leaves = [theirs["generator"][name].requires_grad_() for name in TRAINED]
    adam = torch.optim.Adam(leaves, lr=0.01, weight_decay=0.1)
    y, noise = torch.tensor([0, 1, 1]), torch.from_numpy(generator(2, "noise").standard_normal((3, NOISE)))

    def objective(net):
        return generate(net, y, noise, training=True).square().sum()

    for _ in range(3):
        descend(ours, objective, 0.01, 0.1)
        adam.zero_grad()
        objective(theirs["generator"]).backward()
        adam.step()
    for name, tensor in ours["generator"].items():
        torch.testing.assert_close(tensor, theirs["generator"][name].detach())


def classes_generated(server, participants, **hyper):
    """Of what classes features are generated after a round of these participants."""
    asked = []

    class Recording(FedGen):
        def _objective(self, server, net, y, noise):
            asked.append(y)
            return super()._objective(server, net, y, noise)

    server.round, server.participants = 1, torch.tensor(participants)
    server.trained = server.store.rows(server.participants)
    Recording(generated=500, **hyper).aggregate(server)
    return torch.cat(asked).unique().tolist()


def test_a_class_that_participants_hardly_have_is_not_generated(dataset, partition):
    _, server = after_rounds("fedgen", dataset, partition, 0)
    assert classes_generated(server, [0, 1]) == [0, 1, 2]  # clients of classes 0, 1 and 1, 2
    assert server.state["available"].tolist() == [1, 1, 1, 0]


@pytest.mark.parametrize(("qualifies", "classes"), [("mean", [1]), ("largest", [0, 1])])
def test_a_class_qualifies_by_the_mean_or_the_largest_count(qualifies, classes, dataset, partition):
    _, server = after_rounds("fedgen", dataset, partition, 0)
    # Class 0: mean 1, largest 3; class 1: 4 / 3 and 2; class 2: mean and largest at most 1.
    counts = torch.zeros_like(server.label_counts)
    counts[:3, :3] = torch.tensor([[3.0, 2.0, 1.0], [0.0, 1.0, 1.0], [0.0, 1.0, 1.0]])
    server.federation.label_counts = counts
    assert classes_generated(server, [0, 1, 2], qualifies=qualifies) == classes
