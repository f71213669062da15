"""Settings under which one method must equal another, in float64 to 1e-9."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from pfl.data.dataset import Dataset
from pfl.data.rule import split
from pfl.engine.groups import bind
from pfl.engine.method import Phase
from pfl.engine.round import begin_round
from pfl.methods.apfl import APFL
from pfl.methods.local import Local
from pfl.testing.method_kit import SIZES
from pfl.testing.synthetic import make_clients
from tests.conftest import CONFIG, simulation_of
from tests.methods.curves import losses

assert_same = partial(np.testing.assert_allclose, rtol=0, atol=1e-9, equal_nan=False)
EQUAL = (12,) * 6
AGGREGATED, TRAINED = "post_aggregation", "post_local"


@dataclass(frozen=True)
class Pair:
    """Two methods, each with its hyperparameters, in the same short simulation.

    Attributes:
        sizes: training samples of the clients.
        moments: whose test losses are compared.
        training: the training losses are compared, too.
        options: of the configuration.
    """

    ours: str
    own: Mapping[str, Any]
    theirs: str
    their_own: Mapping[str, Any] = field(default_factory=dict)
    sizes: Sequence[int] = SIZES
    moments: Sequence[str] = (AGGREGATED,)
    training: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)

    def losses(self, dataset: Dataset) -> tuple[list[list[float]], ...]:
        """The losses of ours and of theirs, as `tests.methods.curves.losses` returns them."""
        clients = make_clients(dataset, self.sizes)
        compared = {"moments": self.moments, "training": self.training, **self.options}
        return tuple(
            losses(dataset, clients, method, own, **compared)
            for method, own in ((self.ours, self.own), (self.theirs, self.their_own))
        )


ALL = {"participation": 1.0}
ALL_LOCAL = {**ALL, "bn_stats": "local"}  # of FedCAC and SPFL
FIXED = {"batch_order": "fixed"}  # a phase before training draws no batches from it
LATE = {**ALL, "rounds": 6}
TESTED: dict[str, Any] = {"training": False}
"""Of methods that train more than the model that is compared."""

SAME = {
    # one global model
    "fedprox with mu 0 is fedavg": Pair("fedprox", {"mu": 0.0}, "fedavg"),
    "moon with mu 0 is fedavg": Pair("moon", {"mu": 0.0}, "fedavg"),
    "fedgen whose generated features weigh nothing is fedavg": Pair(
        "fedgen", {"label_weight": 0.0, "latent_weight": 0.0}, "fedavg"
    ),
    "fednova with equal steps is fedavg": Pair("fednova", {}, "fedavg", sizes=EQUAL),
    "fedavgm without momentum at rate 1 is fedavg": Pair("fedavgm", {"beta": 0.0}, "fedavg"),
    "elastic without sensitivities and with tau 0 is fedavg": Pair(
        "elastic", {"mu": 1.0, "tau": 0.0}, "fedavg", **TESTED, options=FIXED
    ),
    "fedupdate without a step is fedavg with equal weights": Pair(
        "fedupdate", {"steps": 0}, "fedavg", sizes=EQUAL
    ),
    # personal layers
    "fedbn without batch norm is fedavg": Pair("fedbn", {}, "fedavg", options={"model": "lenet5"}),
    "lgfedavg with all layers global is fedavg": Pair("lgfedavg", {"layers": 99}, "fedavg"),
    "the generic model of fedrod with gamma 0 is that of fedavg": Pair(
        "fedrod", {"gamma": 0.0, "predicts": "generic"}, "fedavg", **TESTED
    ),
    # In full batches, those of the weights, which come first, leave those of training as they are.
    "fedala with weights that stay 1 is fedavg": Pair(
        "fedala", {"eta": 0.0}, "fedavg", **TESTED, options={"batch_size": 20, "epochs": 1}
    ),
    "pfedcs that selects no teacher is fedper": Pair(
        "pfedcs", {"select": "none"}, "fedper", moments=(AGGREGATED, TRAINED)
    ),
    "pfedcs with beta 0 is fedper": Pair("pfedcs", {"beta": 0.0}, "fedper"),
    # personal models
    "the global model of ditto with lambda 0 is that of fedavg": Pair(
        "ditto", {"lam": 0.0}, "fedavg", **TESTED
    ),
    "the global model of ditto with lambda 2 is that of fedavg": Pair(
        "ditto", {"lam": 2.0}, "fedavg", **TESTED
    ),
    "the personal models of ditto with lambda 0 are those of local": Pair(
        "ditto", {"lam": 0.0}, "local", moments=(TRAINED,), **TESTED
    ),
    "the global model of fedphp with lambda 0 is that of fedavg": Pair("fedphp", {"lam": 0.0}, "fedavg"),
    "the historical model of fedphp with mu 0 is the last trained one": Pair(
        "fedphp", {"lam": 0.0, "mu": 0.0}, "fedavg", moments=(TRAINED,)
    ),
    "fedsimsup without supervisors is local": Pair(
        "fedsimsup", {"supervisor": "none", "supervisor_epochs": 1, "model_epochs": 1}, "local", options=ALL
    ),
    "pfedme at full participation is pfedme in which everybody trains": Pair(
        "pfedme", {"all_train": True}, "pfedme", options=ALL
    ),
    # mixtures
    "pfedsim with rho 1 is fedavg": Pair("pfedsim", {"rho": 1.0}, "fedavg"),
    "fedcac without critical elements is fedavg": Pair(
        "fedcac", {"tau": 0.0}, "fedavg", sizes=EQUAL, options=ALL_LOCAL
    ),
    "fedcac with critical elements alone and nobody to share with is local": Pair(
        "fedcac", {"tau": 1.0, "collab": "none"}, "local", options=ALL_LOCAL
    ),
    **{
        f"spfl of {mix} with an infinite temperature, one step and refresh {refresh} is fedavg": Pair(
            *("spfl", {"temperature": 1e18, "repeat": 1, "refresh": refresh, "mix": mix}, "fedavg"),
            sizes=EQUAL,
            options=ALL_LOCAL,
        )
        for mix in ("deltas", "weights")
        for refresh in (1, 2, 10)
    },
    **{
        f"spfl of {mix} with the identity matrix and no refresh is local": Pair(
            *("spfl", {"temperature": 1e-6, "repeat": 1, "refresh": 10, "mix": mix}, "local"),
            options=ALL_LOCAL,
        )
        for mix in ("deltas", "weights")
    },
    **{
        f"fedamp, {form}, with mu 0 is local": Pair("fedamp", {"mu": 0.0, "form": form}, "local")
        for form in ("scale_free", "raw", "heur")
    },
    # clusters and prototypes
    "fesem with one cluster weighted by size is fedavg": Pair(
        "fesem", {"clusters": 1, "weights": "size"}, "fedavg"
    ),
    "clusterfl that never splits is fedavg": Pair(
        "clusterfl", {"eps1": 0.0, "eps2": 0.0, "first_split": 1}, "fedavg", sizes=EQUAL
    ),
    "fedproto with lambda 0 that predicts by the head is local": Pair(
        "fedproto", {"lam": 0.0, "predicts": "head"}, "local"
    ),
    # The asynchronous methods. Their clients hold other models than the server, so its loss is compared.
    **{
        f"{method} without stragglers is fedavg": Pair(method, {"stragglers": 0}, "fedavg", options=ALL)
        for method in ("fedavg_sync", "fedavg_async", "lga", "plga")
    },
    # Two epochs of 12 samples in batches of 8 are four steps.
    "fedavg_async of steps that make up the epochs is that of epochs": Pair(
        "fedavg_async", {"steps": 4}, "fedavg_async", sizes=EQUAL, options=LATE
    ),
    "fedasync in a batch of fresh equal clients is fedavg": Pair(
        *("fedasync", {"stragglers": 0, "blend": "batch", "alpha": 1.0, "rho": 0.0}, "fedavg"),
        sizes=EQUAL,
        options=ALL,
    ),
    "lga by equation 10 without its taylor term is fedavg_async": Pair(
        "lga", {"equation": 10, "taylor": 0.0}, "fedavg_async", options=LATE
    ),
    **{
        f"the server model of plga by equation {equation} is that of lga": Pair(
            "plga", {"equation": equation}, "lga", {"equation": equation}, options=LATE
        )
        for equation in (10, 11)
    },
}

ONLY_AT_FIRST = {
    "fedfomo weighs nothing yet, whichever its baseline": Pair(
        "fedfomo", {"baseline": "trained"}, "fedfomo", {"baseline": "before_training"}
    ),
    "fedper trains like fedavg": Pair("fedper", {}, "fedavg", moments=()),
    "lgfedavg trains like local": Pair("lgfedavg", {}, "local", moments=(TRAINED,), options=ALL),
    "moon, whose last model is the global one": Pair("moon", {}, "fedavg", **TESTED),
    "scaffold, whose variates are 0": Pair("scaffold", {}, "fedavg", sizes=EQUAL, **TESTED),
    "spfl of weights is that of deltas": Pair(
        "spfl", {"mix": "weights"}, "spfl", {"mix": "deltas"}, options=ALL_LOCAL
    ),
}


@pytest.mark.parametrize("statement", SAME)
def test_these_are_the_same(statement, dataset):
    assert_same(*SAME[statement].losses(dataset))


@pytest.mark.parametrize(
    "pair",
    [
        Pair("apfl", {"alpha": 0.0}, "fedavg", moments=(AGGREGATED, TRAINED), **TESTED),
        Pair("apfl", {"alpha": 1.0}, "local", moments=(TRAINED,), **TESTED),
    ],
    ids=lambda pair: pair.theirs,
)
def test_apfl_whose_weight_stays_at_an_end_is_the_same(pair, dataset, monkeypatch):
    monkeypatch.setattr(APFL, "phases", lambda *_: (Phase(),))
    assert_same(*pair.losses(dataset))


@pytest.mark.parametrize("statement", ONLY_AT_FIRST)
def test_these_are_the_same_in_the_first_round_alone(statement, dataset):
    ours, theirs = ONLY_AT_FIRST[statement].losses(dataset)
    assert ours[0] == pytest.approx(theirs[0], abs=1e-9)
    assert ours[-1] != pytest.approx(theirs[-1], abs=1e-6)


def test_local_training_of_all_clients_is_that_of_full_participation(dataset, partition):
    everybody = losses(dataset, partition, "local", {"all_train": True}, participation=0.2)
    assert_same(everybody, losses(dataset, partition, "local", **ALL))
    some = losses(dataset, partition, "local", participation=0.2)
    assert some[-1] != pytest.approx(everybody[-1], abs=1e-3)


def test_fedfomo_with_no_model_is_local_on_the_reduced_training_set(dataset, partition):
    alone = losses(dataset, partition, "fedfomo", {"models": 0})
    kept, _ = split(list(partition.train), dataset.labels, 0.2, 0, "held out")
    reduced = dataclasses.replace(partition, train=tuple(np.sort(own) for own in kept))
    assert_same(alone, losses(dataset, reduced, "local"))


def test_fedap_with_mu_1_is_fedbn_and_then_local(dataset, partition):
    def advanced(method, rounds, **hyper):
        config = dataclasses.replace(CONFIG, method=method, hyperparameters=hyper, rounds=4)
        simulation = simulation_of(config, dataset, partition)
        for _ in range(rounds):
            simulation.advance()
        return simulation

    ours = advanced("fedap", 4, rho=0.5, mu=1.0)
    theirs = advanced("fedbn", 2)
    server = theirs.runs[0].server
    server.program = dataclasses.replace(server.program, method=Local())
    for _ in range(2):
        theirs.advance()
    first, second = (simulation.runs[0].server.store for simulation in (ours, theirs))
    torch.testing.assert_close(first.tensors, second.tensors, rtol=0, atol=1e-9)


def test_perfedavg_with_alpha_0_takes_fedavg_s_steps_on_the_second_batches(dataset, partition):
    config = dataclasses.replace(
        CONFIG, method="perfedavg", hyperparameters={"alpha": 0.0, "steps": 3}, model="lenet5"
    )
    simulation = simulation_of(config, dataset, partition)
    server, net = simulation.runs[0].server, simulation.program.net
    start = {name: stack[0].clone() for name, stack in server.store.tensors.items()}
    task = begin_round(simulation.runs[0].server, simulation.runs[0].method)
    models = []
    for (plans,) in task.schedules():
        bind(net, {name: tensor.clone().requires_grad_() for name, tensor in start.items()})
        optimiser = torch.optim.SGD(net.parameters(), config.lr)
        assert len(plans) == 3
        for plan in plans:
            x, y = simulation.federation.batch(torch.from_numpy(plan.batches[1]))
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(net(x), y).backward()
            optimiser.step()
        models.append({name: tensor.detach().clone() for name, tensor in net.named_parameters()})
    server.round -= 1
    simulation.advance()
    for name in start:
        mean = torch.stack([model[name] for model in models]).mean(0)
        torch.testing.assert_close(server.store.tensors[name][0], mean, rtol=0, atol=1e-9)


def test_fedpac_on_one_client_is_fedrep_with_the_prototype_term(dataset):
    alone = make_clients(dataset, sizes=[20])

    def losses_of(method, own):
        return losses(dataset, alone, method, own, epochs=3, participation=1.0)

    fedrep = losses_of("fedrep", {"head_epochs": 1, "extractor_epochs": 2, "head_lr": 0.5})
    assert_same(losses_of("fedpac", {"lam": 0.0, "head_lr": 0.5}), fedrep)
    with_term = losses_of("fedpac", {"lam": 1.0, "head_lr": 0.5})
    assert with_term[0] == pytest.approx(fedrep[0], abs=1e-9)  # the first round has none
    assert with_term[-1] != pytest.approx(fedrep[-1], abs=1e-3)
