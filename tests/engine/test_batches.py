"""Which minibatches a client trains on, and on what scale it sees them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from pfl.core.errors import InvalidInput
from pfl.data.federation import Federation
from pfl.data.partition import Partition, make_partition
from pfl.engine.local_training import minibatch_count
from pfl.engine.method import Phase
from pfl.engine.round import begin_round
from tests.conftest import CONFIG, assert_resumes, simulate, simulation_of

STREAM = dataclasses.replace(
    CONFIG,
    method="fedavg_async",
    hyperparameters={"steps": 2, "stragglers": 2},
    participation=1.0,
    batch_order="class_stream",
)


def batches(simulation):
    """The batches of this round's local training, client by client, as lists of pooled indices."""
    server = simulation.runs[0].server
    task = begin_round(simulation.runs[0].server, simulation.runs[0].method)
    server.round -= 1
    minibatches = [
        [index.tolist() for plan in plans for index in plan.batches] for (plans,) in task.schedules()
    ]
    simulation.advance()
    return dict(zip(task.clients, minibatches, strict=True))


def make_alike(dataset, clients):
    """Clients with eight samples of each class, to train and to test on."""
    members = [np.flatnonzero(dataset.labels == c) for c in range(len(dataset.classes))]
    own = tuple(np.concatenate([index[8 * k : 8 * k + 8] for index in members]) for k in range(clients))
    return Partition(spec="file:tests.json", train=own, test=own, data_checksum=dataset.checksum)


def test_a_class_stream_goes_through_the_samples_class_by_class(dataset, partition):
    own = partition.train[0]  # 20 samples of two classes
    whole = dataclasses.replace(STREAM, method="fedavg", hyperparameters={}, epochs=1)
    order = [index for batch in batches(simulation_of(whole, dataset, partition))[0] for index in batch]
    classes = list(dict.fromkeys(dataset.labels[order]))
    assert order == np.concatenate([own[dataset.labels[own] == c] for c in classes]).tolist()


def test_the_classes_of_a_stream_come_in_an_order_of_the_client_s_own(dataset):
    orders, alike = set(), make_alike(dataset, clients=6)
    for seed in (0, 1):
        server = simulation_of(STREAM, dataset, alike, seeds=(seed,)).runs[0].server
        task = server.task("batches", server.client_ids, {}, (), {})
        drawn = [tuple(dict.fromkeys(dataset.labels[own])) for own in task.samples]
        assert all(sorted(order) == [0, 1, 2, 3] for order in drawn)
        assert len(set(drawn)) > 2
        again = server.task("adaptation", server.client_ids, {}, (), {})
        assert all(map(np.array_equal, task.samples, again.samples))
        orders.add(tuple(drawn))
    assert len(orders) == 2  # another seed draws others


def test_a_class_stream_goes_on_where_the_last_local_training_ended(dataset, partition):
    simulation = simulation_of(STREAM, dataset, partition)
    whole = dataclasses.replace(STREAM, method="fedavg", hyperparameters={}, epochs=1)
    epoch = batches(simulation_of(whole, dataset, partition))
    # Client 2 is punctual and has two batches of 8 and 6; client 0 has three, and trains every other round.
    rounds = [batches(simulation) for _ in range(5)]
    assert [by_client[2] for by_client in rounds] == [epoch[2]] * 5
    assert [sorted(by_client) for by_client in rounds[:3]] == [
        [0, 1, 2, 3, 4, 5],
        [2, 3, 4, 5],
        [0, 2, 3, 4, 5],
    ]
    first, second, third = epoch[0]
    assert [rounds[r][0] for r in (0, 2, 4)] == [[first, second], [third, first], [second, third]]


def test_only_the_rounds_own_training_moves_a_class_stream(dataset, partition):
    config = dataclasses.replace(STREAM, method="spfl", hyperparameters={"refresh": 1}, epochs=1)
    simulation = simulation_of(config, dataset, partition)
    for _ in range(2):
        simulation.advance()
    server = simulation.runs[0].server
    assert server.positions.tolist() == [2 * n for n in (3, 1, 2, 1, 2, 2)]


def test_a_class_stream_of_whole_epochs_in_one_batch_is_no_other_order(dataset, partition):
    config = dataclasses.replace(CONFIG, model="lenet5", batch_size=64)
    streamed = dataclasses.replace(config, batch_order="class_stream")
    first, second = (
        simulate(c, dataset, partition, (0,))[0].metrics.to_json()["rounds"] for c in (config, streamed)
    )
    for ours, theirs in zip(first, second, strict=True):
        assert ours["post_aggregation"] == pytest.approx(theirs["post_aggregation"], abs=1e-9)


def test_an_interrupted_class_stream_goes_on_bit_identically(dataset, partition, checkpointed):
    assert_resumes(3, STREAM, dataset, partition, (0, 1), checkpointed)


FIXED = dataclasses.replace(CONFIG, batch_order="fixed")


def test_fixed_minibatches_are_cut_once_from_the_stored_order(dataset, partition):
    turned = dataclasses.replace(partition, train=tuple(own[::-1].copy() for own in partition.train))
    simulation = simulation_of(dataclasses.replace(FIXED, participation=1.0), dataset, turned)
    stored = turned.train[0].tolist()  # 20 samples in batches of 8
    epoch = [stored[:8], stored[8:16], stored[16:]]
    assert [batches(simulation)[0] for _ in range(2)] == [2 * epoch] * 2


def test_every_phase_begins_the_fixed_minibatches_anew(dataset, partition):
    config = dataclasses.replace(FIXED, method="fedrep", participation=1.0, epochs=1)
    simulation = simulation_of(config, dataset, partition)
    server = simulation.runs[0].server
    (schedule, *_) = begin_round(simulation.runs[0].server, simulation.runs[0].method).schedules()
    own = server.samples[0]
    assert len(schedule) == 2
    for plans in schedule:
        np.testing.assert_array_equal(plans[0].batches[0], own[:8])


def test_fixed_minibatches_of_a_search_keep_the_stored_order(dataset):
    stored = make_partition("dirichlet:1,unstratified", dataset, 4)
    search = stored.with_validation(0.2, dataset.labels)
    for whole, part in zip(stored.train, search.train, strict=True):
        assert not np.array_equal(whole, np.sort(whole))
        np.testing.assert_array_equal(part, whole[np.isin(whole, part)])


def test_fixed_minibatches_keep_the_stored_order_of_what_a_method_does_not_hold_out(dataset, partition):
    turned = dataclasses.replace(partition, train=tuple(own[::-1].copy() for own in partition.train))
    config = dataclasses.replace(FIXED, method="fedfomo")
    server = simulation_of(config, dataset, turned).runs[0].server
    for whole, kept in zip(turned.train, server.samples, strict=True):
        assert len(kept) < len(whole)
        np.testing.assert_array_equal(kept, whole[np.isin(whole, kept)])


@pytest.mark.parametrize(
    ("phase", "samples", "count"),
    [
        (Phase(), 20, 6),
        (Phase(epochs=1), 17, 2),  # a last batch of one is left out
        (Phase(steps=5), 20, 5),
        (Phase(steps=5, batches=3), 20, 15),
        (Phase(steps=5), 1, 0),
        (Phase(epochs=1, batch_size=20), 20, 1),
    ],
)
def test_minibatches_by_epochs_or_steps(phase, samples, count):
    assert minibatch_count(phase, CONFIG, samples) == count


@pytest.mark.parametrize(
    ("samples", "kept", "dropped"),
    [(19, 5, 4), (20, 5, 5), (3, 1, 1), (1, 0, 0)],  # by batches of 4; the only one of a client is kept
)
@pytest.mark.parametrize("order", ["shuffled", "fixed", "class_stream"])
def test_an_incomplete_last_minibatch_is_kept_or_dropped(order, samples, kept, dropped):
    config = dataclasses.replace(CONFIG, batch_size=4, epochs=2, batch_order=order)
    counts = [
        minibatch_count(Phase(), dataclasses.replace(config, last_batch=last), samples)
        for last in ("kept", "dropped")
    ]
    assert counts == [2 * kept, 2 * dropped]


@pytest.mark.parametrize("order", ["shuffled", "fixed", "class_stream"])
def test_where_incomplete_minibatches_are_dropped_only_small_clients_have_one(order, dataset, partition):
    dropped = dataclasses.replace(CONFIG, participation=1.0, batch_order=order, last_batch="dropped")
    minibatches = batches(simulation_of(dropped, dataset, partition))
    epochs = [[8, 8], [8], [8], [5], [8, 8], [8]]  # of 20, 9, 14, 5, 16 and 12 samples
    assert [list(map(len, minibatches[k])) for k in range(6)] == [2 * epoch for epoch in epochs]


@pytest.mark.parametrize(
    ("scale", "mean", "std"),
    [
        ("raw255", 0.0, 1 / 255),
        ("unit", 0.0, 1.0),
        ("symmetric", 0.5, 0.5),
        ("mnist", (0.1307, 0.1307, 0.1307), (0.3081, 0.3081, 0.3081)),
        ("cifar10", (0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261)),
        ("cifar100", (0.507, 0.487, 0.441), (0.267, 0.256, 0.276)),
    ],
)
def test_images_of_a_scale_are_normalised_by_its_constants(scale, mean, std, dataset, partition):
    colour = dataclasses.replace(dataset, images=np.repeat(dataset.images[:, :1], 3, axis=1))
    federation = Federation(colour, partition, torch.device("cpu"), torch.float64, scale)
    x, _ = federation.batch(torch.arange(5))
    mean, std = (np.array(constants).reshape(-1, 1, 1) for constants in (mean, std))
    expected = torch.from_numpy((colour.images[:5] / 255 - mean) / std)
    torch.testing.assert_close(x, expected, rtol=0, atol=1e-12)


def test_constants_of_three_channels_are_refused_for_grey_images_in_one_line(dataset, partition):
    grey = dataclasses.replace(dataset, images=dataset.images[:, :1])
    with pytest.raises(InvalidInput, match=r"^input_scale: cifar10 .* images with 3 channels$"):
        Federation(grey, partition, torch.device("cpu"), torch.float32, "cifar10")
