"""Clients that take no part in training join after it; training is as it is without them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_flatten, tree_map_only

import pfl
from pfl.core.config import Config, Execution
from pfl.core.errors import InvalidInput
from pfl.engine import checkpoint, unseen
from pfl.engine.method import Phase
from pfl.engine.metrics import Metrics, json_ready
from pfl.engine.unseen import seen_first
from pfl.methods import METHODS
from pfl.testing.emulated import DEVICE, emulated_gpu
from tests.conftest import interrupt, sampled, simulate

OPTIONS = {"model": "cnn_digits", "rounds": 4, "epochs": 2, "batch_size": 8, "lr": 0.1, "eval_every": 2}
OPTIONS |= {"unseen": 0.25, "dtype": "float64"}
CONFIG = Config(**OPTIONS)
LOOP = Execution(backend="loop", workers=1)


def metrics_of(config, dataset, partition, execution=LOOP, seed=0) -> Metrics:
    (result,) = simulate(config, dataset, partition, (seed,), execution)
    return result.metrics


def without(partition, clients):
    """The partition without some clients."""
    kept = [client for client in range(partition.clients) if client not in clients]
    train, test = ([lists[client] for client in kept] for lists in (partition.train, partition.test))
    return replace(partition, train=tuple(train), test=tuple(test))


def test_training_is_that_of_a_federation_of_the_seen_clients(dataset, partition):
    metrics = metrics_of(CONFIG, dataset, partition)
    joined = {client.client for client in metrics.unseen.per_client}
    alone = metrics_of(replace(CONFIG, unseen=0.0), dataset, without(partition, joined))
    assert metrics.rounds == alone.rounds
    accuracies = [client.accuracy for client in alone.per_client]
    assert [client.accuracy for client in metrics.per_client] == accuracies
    assert (metrics.bytes_down, metrics.bytes_up) == (alone.bytes_down, alone.bytes_up)


def test_a_client_is_either_seen_or_unseen_under_its_number_in_the_partition(dataset, partition):
    metrics = metrics_of(CONFIG, dataset, partition)
    for client in (*metrics.per_client, *metrics.unseen.per_client):
        assert (client.train, client.test) == (
            len(partition.train[client.client]),
            len(partition.test[client.client]),
        )
    ids = [client.client for client in (*metrics.per_client, *metrics.unseen.per_client)]
    assert sorted(ids) == list(range(partition.clients))


def test_the_seed_of_the_run_draws_the_unseen_clients(partition):
    drawn = {seen_first(partition, 0.25, seed).ids for seed in range(20)}
    assert len(drawn) > 1
    assert seen_first(partition, 0.25, 7).ids == seen_first(partition, 0.25, 7).ids
    assert seen_first(partition, 1e-9, 7).seen == partition.clients - 1


def test_scratch_is_the_same_for_every_method_and_what_local_training_adapts_to(dataset, partition):
    local, fedavg, fedper = (
        metrics_of(replace(CONFIG, method=method), dataset, partition).unseen
        for method in ("local", "fedavg", "fedper")
    )
    assert local.scratch == fedavg.scratch == fedper.scratch == local.adapted
    assert fedavg.received != local.received


def test_unseen_epochs_are_the_epochs_of_adaptation_and_of_scratch(dataset, partition):
    default, same, other = (
        metrics_of(replace(CONFIG, unseen_epochs=epochs), dataset, partition).unseen for epochs in (0, 2, 5)
    )
    assert default == same
    assert default.received == other.received
    assert default.adapted != other.adapted
    assert default.scratch != other.scratch


def test_phases_of_an_adaptation_without_epochs_take_the_unseen_epochs(dataset, partition):
    class Adapted(pfl.Method):
        def adaptation(self, server):
            return (Phase(),)

    adapted = {}
    for epochs in (0, 2, 5):
        options = {**OPTIONS, "unseen_epochs": epochs, "progress": False}
        (run,) = pfl.simulate(Adapted, dataset, partition, **options)
        adapted[epochs] = run.metrics.unseen.adapted
    assert adapted[0] == adapted[2] != adapted[5]


def test_the_adaptation_of_a_method_takes_its_own_epochs(dataset, partition):
    own, other = (
        metrics_of(replace(CONFIG, method="fedbabu", unseen_epochs=epochs), dataset, partition).unseen
        for epochs in (1, 2)
    )
    assert own.adapted == other.adapted
    assert own.scratch != other.scratch


def test_a_new_client_receives_the_global_model_and_the_mean_of_personal_layers(dataset, partition):
    held = {}

    class Watched(METHODS["fedper"]):
        def adapt(self, server):
            held.update({name: server.store[name].clone() for name in server.store.stacks})

    options = {"model": "cnn_digits", "rounds": 2, "unseen": 0.4, "dtype": "float64", "progress": False}
    pfl.simulate(Watched, dataset, partition, **options)
    for name, models in held.items():
        *trained, first, second = models
        expected = trained[0] if name.startswith("extractor") else torch.stack(trained).mean(0)
        assert torch.equal(first, second)
        assert torch.allclose(first, expected)


@pytest.mark.parametrize("method", sampled(METHODS))
def test_joining_changes_nothing_of_what_the_seen_clients_have(method, dataset, partition, monkeypatch):
    def compared(trained, *arguments):
        def leaves():
            state = checkpoint.server_state(trained)
            return tree_flatten(tree_map_only(torch.Tensor, torch.Tensor.clone, state))[0]

        before = leaves()
        result = evaluate(trained, *arguments)
        for mine, theirs in zip(leaves(), before, strict=True):
            assert torch.equal(mine, theirs) if torch.is_tensor(mine) else mine == theirs
        return result

    evaluate = unseen.evaluate
    monkeypatch.setattr(unseen, "evaluate", compared)
    config = replace(CONFIG, method=method, model="lenet5_bn", rounds=2, epochs=1)
    assert metrics_of(config, dataset, partition).unseen


def test_recorded_steps_are_not_replayed_for_other_clients(dataset, partition):
    class Scaled(METHODS["fedavg"]):
        """Its stacks look like those of plain local training."""

        def loss(self, client, batch):
            return 0.5 * super().loss(client, batch)

    options = {**OPTIONS, "participation": 0.34, "unseen": 0.34, "progress": False}
    (loop,) = pfl.simulate(Scaled, dataset, partition, execution=LOOP, **options)
    with emulated_gpu() as gpu:
        execution = Execution(device=str(DEVICE), backend="stacked")
        (replayed,) = pfl.simulate(Scaled, dataset, partition, execution=execution, **options)
    assert gpu.replays
    for name in ("received", "adapted", "scratch"):
        ours, theirs = (getattr(run.metrics.unseen, name).loss for run in (replayed, loop))
        assert ours == pytest.approx(theirs, abs=1e-9)


def test_each_seed_is_as_alone(dataset, partition):
    together = simulate(CONFIG, dataset, partition, (0, 1, 2), LOOP)
    alone = [metrics_of(CONFIG, dataset, partition, seed=seed) for seed in (0, 1, 2)]
    assert [run.metrics for run in together] == alone


@pytest.mark.parametrize(
    "options", [{"validation": 0.3}, {"patience": 1, "min_delta": 100.0}, {"batch_order": "class_stream"}]
)
def test_other_options_hold_for_unseen_clients(options, dataset, partition):
    metrics = metrics_of(replace(CONFIG, **options), dataset, partition)
    for client in metrics.unseen.per_client:
        train, test = (lists[client.client] for lists in (partition.train, partition.test))
        assert client.train + client.test <= len(train) + len(test)
        assert (client.train < len(train)) == ("validation" in options or "patience" in options)


@pytest.mark.parametrize("options", [{"validation": 0.3}, {"patience": 1}])
@pytest.mark.parametrize("own", [1, 3])
def test_a_client_with_one_sample_is_named_by_its_place_in_the_partition(options, own, dataset, partition):
    train = list(partition.train)
    train[own] = train[own][:1]
    for seed in range(3):
        with pytest.raises(InvalidInput, match=f"client {own} has only 1"):
            metrics_of(replace(CONFIG, **options), dataset, replace(partition, train=tuple(train)), seed=seed)


def test_an_interrupted_simulation_tests_the_same(dataset, partition, checkpointed):
    whole = metrics_of(CONFIG, dataset, partition, replace(checkpointed, checkpoint_dir=None))
    interrupt(3, CONFIG, dataset, partition, (0,), checkpointed)
    assert metrics_of(CONFIG, dataset, partition, checkpointed) == whole
    assert metrics_of(CONFIG, dataset, partition, checkpointed) == whole  # from the last round


def test_a_simulation_is_continued_to_more_rounds(dataset, partition, tmp_path):
    execution = replace(LOOP, checkpoint_dir=str(tmp_path))
    short = metrics_of(replace(CONFIG, rounds=2), dataset, partition, execution)
    rest = metrics_of(CONFIG, dataset, partition, execution)
    assert rest == metrics_of(CONFIG, dataset, partition)
    assert rest.unseen != short.unseen


def test_a_checkpoint_of_other_unseen_clients_is_refused(dataset, partition, tmp_path):
    execution = replace(LOOP, checkpoint_dir=str(tmp_path))
    metrics = metrics_of(CONFIG, dataset, partition, execution)
    train = list(partition.train)
    own = metrics.unseen.per_client[0].client
    train[own] = train[own][:-1]
    with pytest.raises(InvalidInput, match="same configuration, data, partition"):
        metrics_of(CONFIG, dataset, replace(partition, train=tuple(train)), execution)


def test_a_simulation_that_diverges_tests_nobody(dataset, partition):
    metrics = metrics_of(replace(CONFIG, lr=1e18), dataset, partition)
    assert metrics.diverged_at
    assert metrics.unseen is None


def test_the_scores_survive_their_json(dataset, partition):
    msgspec = pytest.importorskip("msgspec")
    metrics = metrics_of(CONFIG, dataset, partition)
    assert msgspec.convert(json_ready(metrics), Metrics) == metrics


def test_at_least_two_clients_train(dataset, partition):
    few = without(partition, range(2, partition.clients))
    with pytest.raises(InvalidInput, match=r"unseen: 0\.25 .* leaves at least 2 of the 2 clients"):
        metrics_of(CONFIG, dataset, few)


def test_unseen_clients_without_test_samples_are_refused(dataset, partition):
    none = tuple(np.zeros(0, np.int64) for _ in partition.test)
    with pytest.raises(InvalidInput, match=r"unseen: 0\.25 .* at least one client has test samples"):
        metrics_of(CONFIG, dataset, replace(partition, test=none))


def test_without_unseen_clients_there_are_no_scores_of_them(dataset, partition):
    assert "unseen" not in json_ready(metrics_of(replace(CONFIG, unseen=0.0), dataset, partition))


def test_a_method_of_ones_own_decides_what_a_new_client_gets(dataset, partition):
    class Zeros(pfl.Method):
        """FedAvg whose new clients begin with a head of zeros."""

        def aggregate(self, server):
            return {"all": server.average()}

        def admit(self, server):
            return {name: torch.zeros_like(server.store[name][:1]) for name in server.groups["head"]}

    (run,) = pfl.simulate(Zeros, dataset, partition, progress=False, **OPTIONS)
    assert run.metrics.unseen.received.loss == pytest.approx(np.log(len(dataset.classes)))


def test_frames_have_the_accuracies(dataset, partition):
    pytest.importorskip("pandas")
    runs = pfl.simulate(
        "fedavg", dataset, partition, rounds=2, unseen=0.25, metrics=["auroc"], progress=False
    )
    (row,) = runs.to_frame("summary").to_dict("records")
    assert row["unseen_adapted"] == runs[0].metrics.unseen.adapted.pooled
    assert list(runs.to_frame("clients")["client"]) == [entry.client for entry in runs[0].metrics.per_client]
