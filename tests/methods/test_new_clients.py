"""What a client gets that joins after the last round, where a method has a rule of its own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import pfl
from pfl.engine.groups import bind
from pfl.engine.method import Method
from pfl.engine.server import Server
from pfl.methods import METHODS

OPTIONS = {
    "model": "lenet5_bn",
    "rounds": 4,
    "epochs": 2,
    "batch_size": 8,
    "lr": 0.1,
    "eval_every": 4,
    "unseen": 0.34,
    "dtype": "float64",
    "progress": False,
}
"""Four of six clients train."""


def admitted(
    name: str, dataset, partition, trains: bool = False, participation: float = 0.75, **own
) -> tuple[Method, Server]:
    """A method and the server of all clients, the last two of which have joined, and trained or not."""
    joined = []

    class Watched(METHODS[name]):
        def adapt(self, server):
            joined.append((self, server))
            if trains:
                super().adapt(server)

    pfl.simulate(Watched(**own), dataset, partition, participation=participation, **OPTIONS)
    return joined[0]


def loss_of(server: Server, client: int, model: int) -> float:
    """The mean loss of one client's model on the training samples of another."""
    net = server.program.net
    bind(net, {name: stack[:][model] for name, stack in server.store.stacks.items()})
    net.eval()
    x, y = server.federation.batch(torch.from_numpy(server.samples[client]))
    with torch.no_grad():
        return float(F.cross_entropy(net(x), y))


@pytest.mark.parametrize(
    ("method", "own"), [("fesem", {}), ("clusterfl", {"first_split": 2, "eps1": 100.0, "eps2": 0.0})]
)
def test_it_gets_the_model_of_the_cluster_with_the_lowest_loss(method, own, dataset, partition):
    _, server = admitted(method, dataset, partition, participation=1.0, **own)
    clusters = server.state["clusters"].tolist()
    assert len(set(clusters[:4])) > 1
    for client in (4, 5):
        losses = {clusters[model]: loss_of(server, client, model) for model in range(4)}
        assert clusters[client] == min(losses, key=losses.get)
        assert loss_of(server, client, client) == pytest.approx(min(losses.values()))


def test_pfedhn_makes_its_model_from_the_mean_embedding(dataset, partition):
    method, server = admitted("pfedhn", dataset, partition, server_lr=0.1)
    net = server.state["hypernetwork"]
    assert net["embedding"].shape == (6, 2)  # of the width that four clients have
    mean = net["embedding"][:4].mean(0, keepdim=True)
    models = method._models(server, {**net, "embedding": mean}, torch.tensor([0]))
    for name, model in models.items():
        assert torch.allclose(server.store[name][4:], model.expand(2, *model.shape[1:]))


@pytest.mark.parametrize("method", ["apfl", "ditto"])
def test_its_personal_model_is_the_global_one(method, dataset, partition):
    _, server = admitted(method, dataset, partition)
    for name in server.groups["model"]:
        assert torch.equal(server.store[f"personal.{name}"][4:], server.store[name][4:])


def test_its_historical_model_is_the_global_one_and_then_what_it_trained(dataset, partition):
    _, server = admitted("fedphp", dataset, partition)
    for name, history in server.client_state["history"].items():
        assert torch.equal(history[4:], server.store[name][:1].expand_as(history[4:]))
    _, server = admitted("fedphp", dataset, partition, trains=True)
    for name, history in server.client_state["history"].items():
        assert torch.equal(history[4:], server.trained[name])


def test_fedala_begins_with_the_global_layers_and_trains(dataset, partition):
    _, server = admitted("fedala", dataset, partition, trains=True)
    for name, own in server.client_state["own"].items():
        assert torch.equal(own[4:], server.store[name][:1].expand_as(own[4:]))
        assert not torch.equal(own[4:], server.trained[name])


def test_fedrep_adapts_the_head_alone(dataset, partition):
    _, server = admitted("fedrep", dataset, partition, trains=True)
    for name in server.groups.trainable:
        moved = not torch.equal(server.trained[name], server.received[name])
        assert moved == name.startswith("head.")


@pytest.mark.parametrize("method", ["pfedsim", "fedap"])
def test_it_gets_the_global_model_during_the_warm_up(method, dataset, partition):
    _, server = admitted(method, dataset, partition, rho=1.0)
    for name in server.groups["head"]:
        assert torch.equal(server.store[name][4:], server.store[name][:2])


def test_fedsimsup_weighs_the_models_by_label_proportions(dataset, partition):
    own = {"supervisor_epochs": 1, "model_epochs": 1, "exponent": 2.0}
    _, server = admitted("fedsimsup", dataset, partition, **own)
    counts = server.label_counts
    cosines = F.cosine_similarity(counts[4:, None], counts[None, :4], dim=2) ** 2
    weights = cosines / cosines.sum(1, keepdim=True)
    expected = torch.einsum("kn,n...->k...", weights, server.store["head.weight"][:4])
    assert torch.allclose(server.store["head.weight"][4:], expected)


@pytest.mark.parametrize("head_stage", ["mixed", "local"])
def test_spfl_mixes_the_stages_by_the_similarity_of_changes(head_stage, dataset, partition):
    _, server = admitted("spfl", dataset, partition, head_stage=head_stage)
    similarity = server.state["similarity"][1, 4:, :4] * server.sizes[:4]  # of the head
    weights = similarity / similarity.sum(1, keepdim=True)
    if head_stage == "local":
        weights = torch.full_like(weights, 1 / 4)
    expected = torch.einsum("kn,n...->k...", weights, server.store["head.weight"][:4])
    assert torch.allclose(server.store["head.weight"][4:], expected)


@pytest.mark.parametrize("form", ["scale_free", "raw", "heur"])
def test_fedamp_mixes_the_models_of_clients_that_took_part(form, dataset, partition):
    method, server = admitted("fedamp", dataset, partition, form=form)
    models = {name: server.store[name][:5] for name in server.groups.trainable}  # the last is their mean
    weights = method._attention(
        {name: stack[4:] for name, stack in models.items()}, models, torch.tensor([4])
    )
    for name, stack in models.items():
        expected = torch.einsum("kn,n...->k...", weights.to(stack.dtype), stack)
        assert torch.allclose(server.sent["cloud"][name], expected)


@pytest.mark.parametrize("mu", [0.5, 1.0])
def test_fedap_mixes_by_similarity_whatever_weight_a_client_has_in_its_own_model(mu, dataset, partition):
    _, server = admitted("fedap", dataset, partition, rho=0.25, mu=mu)
    weights = server.state["weights"][4:, :4]
    weights = weights / weights.sum(1, keepdim=True)
    expected = torch.einsum("kn,n...->k...", weights, server.store["head.weight"][:4])
    assert torch.allclose(server.store["head.weight"][4:], expected)
    assert weights.isfinite().all()


def test_feddbe_measures_the_mean_feature_before_training_alone(dataset, partition, monkeypatch):
    feddbe, clients = METHODS["feddbe"], []
    measure = feddbe._mean_feature
    monkeypatch.setattr(
        feddbe, "_mean_feature", lambda self, server: clients.append(server.clients) or measure(self, server)
    )
    monkeypatch.setitem(OPTIONS, "rounds", 1)
    monkeypatch.setitem(OPTIONS, "eval_every", 1)
    admitted("feddbe", dataset, partition)
    assert clients == [4]


def test_gpfl_has_contexts_from_the_global_embeddings(dataset, partition):
    _, server = admitted("gpfl", dataset, partition)
    embedding = server.store["embedding.weight"][0]
    assert torch.allclose(server.client_state["context_all"][4:], embedding.mean(0).expand(2, -1))
    own = server.label_counts[4:] / server.sizes[4:, None]
    assert torch.allclose(server.client_state["context_own"][4:], own @ embedding)


def test_a_local_client_begins_with_the_common_initialisation(dataset, partition):
    _, server = admitted("local", dataset, partition)
    for name, initial in server.initial.items():
        assert torch.equal(server.store[name][4:], initial.expand(2, *initial.shape[1:]))


@pytest.mark.parametrize("method", METHODS)
def test_every_method_says_what_a_new_client_gets(method):
    assert METHODS[method].new_client.endswith(".")
    if METHODS[method].admit is not Method.admit or METHODS[method].adapt is not Method.adapt:
        assert METHODS[method].new_client != Method.new_client
