"""Settings under which one method must equal another, in float64 to 1e-9."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from pfl.data.rule import split
from pfl.engine.groups import bind
from pfl.engine.round import begin_round
from pfl.methods.local import Local
from pfl.run.simulate import simulate
from pfl.testing.synthetic import make_clients
from tests.conftest import CONFIG, simulation_of


def losses(dataset, partition, method, hyperparameters=None, **changes):
    config = dataclasses.replace(CONFIG, method=method, hyperparameters=hyperparameters or {}, **changes)
    rounds = simulate(config, dataset, partition, (0,))[0].metrics.to_json()["rounds"]
    return [(entry["post_aggregation"]["loss"], entry["train_loss"]) for entry in rounds]


def assert_equal(first, second):
    for ours, theirs in zip(first, second, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-9)


def test_fedprox_with_mu_0_is_fedavg(dataset, partition):
    assert_equal(losses(dataset, partition, "fedprox", {"mu": 0.0}), losses(dataset, partition, "fedavg"))


def test_pfedsim_with_rho_1_is_fedavg(dataset, partition):
    assert_equal(losses(dataset, partition, "pfedsim", {"rho": 1.0}), losses(dataset, partition, "fedavg"))


def test_fedprox_with_mu_1_is_not_fedavg(dataset, partition):
    near, free = losses(dataset, partition, "fedprox"), losses(dataset, partition, "fedavg")
    assert near[-1] != pytest.approx(free[-1], abs=1e-3)


def test_fedper_starts_like_fedavg_and_leaves_it(dataset, partition):
    personal, shared = losses(dataset, partition, "fedper"), losses(dataset, partition, "fedavg")
    assert personal[0][1] == pytest.approx(shared[0][1], abs=1e-9)
    assert personal[-1] != pytest.approx(shared[-1], abs=1e-6)


# FedCAC, SPFL and PFedCS: batch norm's statistics stay local in the first two.


@pytest.fixture
def equal(dataset):
    """Six clients of the same size."""
    return make_clients(dataset, [12] * 6)


EVERYBODY = {"participation": 1.0, "bn_stats": "local"}


def test_fedcac_without_critical_elements_is_fedavg(dataset, equal):
    assert_equal(
        losses(dataset, equal, "fedcac", {"tau": 0.0}, **EVERYBODY),
        losses(dataset, equal, "fedavg", **EVERYBODY),
    )


def test_local_training_of_all_clients_is_that_of_full_participation(dataset, partition):
    everybody = losses(dataset, partition, "local", {"all_train": True}, participation=0.2)
    assert_equal(everybody, losses(dataset, partition, "local", participation=1.0))
    some = losses(dataset, partition, "local", participation=0.2)
    assert some[-1] != pytest.approx(everybody[-1], abs=1e-3)


def test_pfedme_at_full_participation_is_pfedme_in_which_everybody_trains(dataset, partition):
    assert_equal(
        losses(dataset, partition, "pfedme", {"all_train": True}, participation=1.0),
        losses(dataset, partition, "pfedme", participation=1.0),
    )


def test_fedcac_with_nothing_but_critical_elements_and_nobody_to_share_with_is_local(dataset, partition):
    assert_equal(
        losses(dataset, partition, "fedcac", {"tau": 1.0, "collab": "none"}, **EVERYBODY),
        losses(dataset, partition, "local", **EVERYBODY),
    )


@pytest.mark.parametrize("refresh", [1, 2, 10])
@pytest.mark.parametrize("mix", ["deltas", "weights"])
def test_spfl_with_an_infinite_temperature_and_one_step_is_fedavg(mix, refresh, dataset, equal):
    uniform = {"temperature": 1e18, "repeat": 1, "refresh": refresh, "mix": mix}
    assert_equal(
        losses(dataset, equal, "spfl", uniform, **EVERYBODY), losses(dataset, equal, "fedavg", **EVERYBODY)
    )


@pytest.mark.parametrize("mix", ["deltas", "weights"])
def test_spfl_with_the_identity_matrix_and_no_refresh_is_local(mix, dataset, partition):
    identity = {"temperature": 1e-6, "repeat": 1, "refresh": 10, "mix": mix}
    assert_equal(
        losses(dataset, partition, "spfl", identity, **EVERYBODY),
        losses(dataset, partition, "local", **EVERYBODY),
    )


def test_spfl_of_weights_and_of_deltas_part_after_the_first_round(dataset, partition):
    deltas, weights = (
        losses(dataset, partition, "spfl", {"mix": mix}, **EVERYBODY) for mix in ("deltas", "weights")
    )
    assert deltas[0] == pytest.approx(weights[0], abs=1e-9)
    assert deltas[-1] != pytest.approx(weights[-1], abs=1e-6)


@pytest.mark.parametrize("setting", [{"select": "none"}, {"beta": 0.0}])
def test_pfedcs_without_teachers_is_fedper(setting, dataset, partition):
    assert_equal(losses(dataset, partition, "pfedcs", setting), losses(dataset, partition, "fedper"))


# The asynchronous methods. Their clients hold other models than the server, so its loss is compared.

LATE = {"participation": 1.0, "rounds": 6}


@pytest.mark.parametrize("method", ["fedavg_sync", "fedavg_async", "lga", "plga"])
def test_without_stragglers_the_clock_is_fedavg(method, dataset, partition):
    assert_equal(
        losses(dataset, partition, method, {"stragglers": 0}, participation=1.0),
        losses(dataset, partition, "fedavg", participation=1.0),
    )


def test_local_steps_that_make_up_the_epochs_change_nothing(dataset, equal):
    # Two epochs of 12 samples in batches of 8 are four steps.
    assert_equal(
        losses(dataset, equal, "fedavg_async", {"steps": 4}, **LATE),
        losses(dataset, equal, "fedavg_async", **LATE),
    )


def test_fedasync_in_a_batch_of_fresh_equal_clients_is_fedavg(dataset, equal):
    setting = {"stragglers": 0, "blend": "batch", "alpha": 1.0, "rho": 0.0}
    assert_equal(
        losses(dataset, equal, "fedasync", setting, participation=1.0),
        losses(dataset, equal, "fedavg", participation=1.0),
    )


def test_lga_by_equation_10_without_its_taylor_term_is_fedavg_async(dataset, partition):
    stale = losses(dataset, partition, "fedavg_async", **LATE)
    assert losses(dataset, partition, "lga", {"equation": 10, "taylor": 0.0}, **LATE) == stale
    assert losses(dataset, partition, "lga", **LATE)[-1] != pytest.approx(stale[-1], abs=1e-6)


@pytest.mark.parametrize("equation", [10, 11])
def test_the_server_model_of_plga_is_that_of_lga(equation, dataset, partition):
    first, second = (
        losses(dataset, partition, method, {"equation": equation}, **LATE) for method in ("plga", "lga")
    )
    assert first == second


# Global models that are tested after adaptation, personal batch norm, personal heads and whole models.


def test_fedbn_without_batch_norm_is_fedavg(dataset, partition):
    assert_equal(
        losses(dataset, partition, "fedbn", model="lenet5"),
        losses(dataset, partition, "fedavg", model="lenet5"),
    )


def test_the_generic_model_of_fedrod_with_gamma_0_is_fedavg(dataset, partition):
    generic = losses(dataset, partition, "fedrod", {"gamma": 0.0, "predicts": "generic"})
    for (ours, _), (theirs, _) in zip(generic, losses(dataset, partition, "fedavg"), strict=True):
        assert ours == pytest.approx(theirs, abs=1e-9)


@pytest.mark.parametrize("form", ["scale_free", "raw", "heur"])
def test_fedamp_with_mu_0_is_local(form, dataset, partition):
    free = losses(dataset, partition, "fedamp", {"mu": 0.0, "form": form})
    assert_equal(free, losses(dataset, partition, "local"))


def test_fedamp_with_kappa_0_is_still_anchored(dataset, partition):
    anchored = losses(dataset, partition, "fedamp", {"kappa": 0.0, "mu": 1.0})
    assert anchored[-1] != pytest.approx(losses(dataset, partition, "local")[-1], abs=1e-3)


def test_fedfomo_with_no_model_is_local_on_the_reduced_training_set(dataset, partition):
    alone = losses(dataset, partition, "fedfomo", {"models": 0})
    kept, _ = split(list(partition.train), dataset.labels, 0.2, 0, "held out")
    reduced = dataclasses.replace(partition, train=tuple(np.sort(own) for own in kept))
    assert_equal(alone, losses(dataset, reduced, "local"))


def test_fedupdate_without_a_step_is_uniform_fedavg(dataset, partition, equal):
    assert_equal(losses(dataset, equal, "fedupdate", {"steps": 0}), losses(dataset, equal, "fedavg"))
    uniform, weighted = (losses(dataset, partition, method)[-1] for method in ("fedupdate", "fedavg"))
    assert uniform != pytest.approx(weighted, abs=1e-6)


def test_fedap_with_mu_1_is_fedbn_and_then_local(dataset, partition):
    def advanced(method, rounds, **hyper):
        config = dataclasses.replace(CONFIG, method=method, hyperparameters=hyper, rounds=4)
        simulation = simulation_of(config, dataset, partition)
        for _ in range(rounds):
            simulation.advance()
        return simulation

    ours = advanced("fedap", 4, rho=0.5, mu=1.0)
    theirs = advanced("fedbn", 2)
    theirs.runs[0].method = Local()
    for _ in range(2):
        theirs.advance()
    first, second = (simulation.runs[0].server.bank for simulation in (ours, theirs))
    for name in first.tensors:
        torch.testing.assert_close(first[name], second[name], rtol=0, atol=1e-9)


def test_perfedavg_with_alpha_0_takes_fedavg_s_steps_on_the_second_batches(dataset, partition):
    config = dataclasses.replace(
        CONFIG, method="perfedavg", hyperparameters={"alpha": 0.0, "steps": 3}, model="lenet5"
    )
    simulation = simulation_of(config, dataset, partition)
    server, net = simulation.runs[0].server, simulation.program.net
    start = {name: stack[0].clone() for name, stack in server.bank.tensors.items()}
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
        torch.testing.assert_close(server.bank.tensors[name][0], mean, rtol=0, atol=1e-9)


def test_fesem_with_one_cluster_weighted_by_size_is_fedavg(dataset, partition):
    one = losses(dataset, partition, "fesem", {"clusters": 1, "weights": "size"})
    assert_equal(one, losses(dataset, partition, "fedavg"))
    several = losses(dataset, partition, "fesem", {"clusters": 3})
    assert several[-1] != pytest.approx(one[-1], abs=1e-3)


def test_clusterfl_with_eps1_0_and_equal_sizes_is_fedavg(dataset, equal):
    together = losses(dataset, equal, "clusterfl", {"eps1": 0.0, "eps2": 0.0, "first_split": 1})
    assert_equal(together, losses(dataset, equal, "fedavg"))


def test_clusterfl_that_splits_is_not_fedavg(dataset, equal):
    hyper = {"eps1": 1e6, "eps2": 0.0, "first_split": 1}
    apart = losses(dataset, equal, "clusterfl", hyper, participation=1.0)
    assert apart[-1] != pytest.approx(losses(dataset, equal, "fedavg", participation=1.0)[-1], abs=1e-3)


def test_fedproto_with_lambda_0_that_predicts_by_the_head_is_local(dataset, partition):
    hyper = {"lam": 0.0, "predicts": "head"}
    assert_equal(losses(dataset, partition, "fedproto", hyper), losses(dataset, partition, "local"))
    aligned = losses(dataset, partition, "fedproto", {"lam": 1.0})
    assert aligned[-1] != pytest.approx(losses(dataset, partition, "local")[-1], abs=1e-3)


def test_fedpac_on_one_client_is_fedrep_with_the_prototype_term(dataset):
    alone = make_clients(dataset, sizes=[20])

    def models_of(method, hyper):
        return losses(dataset, alone, method, hyper, epochs=3, participation=1.0)

    fedrep = models_of("fedrep", {"head_epochs": 1, "extractor_epochs": 2, "head_lr": 0.5})
    assert_equal(models_of("fedpac", {"lam": 0.0, "head_lr": 0.5}), fedrep)
    with_term = models_of("fedpac", {"lam": 1.0, "head_lr": 0.5})
    assert with_term[0] == pytest.approx(fedrep[0], abs=1e-9)  # the first round has none
    assert with_term[-1] != pytest.approx(fedrep[-1], abs=1e-3)


def test_fedgen_whose_generated_features_weigh_nothing_is_fedavg(dataset, partition):
    silent = losses(dataset, partition, "fedgen", {"label_weight": 0.0, "latent_weight": 0.0})
    assert_equal(silent, losses(dataset, partition, "fedavg"))


def test_fedsimsup_without_supervisors_at_full_participation_is_local(dataset, partition):
    hyper = {"supervisor": "none", "supervisor_epochs": 1, "model_epochs": 1}
    assert_equal(
        losses(dataset, partition, "fedsimsup", hyper, participation=1.0),
        losses(dataset, partition, "local", participation=1.0),
    )
