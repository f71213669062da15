"""A round costs what its participants cost, however many clients there are."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from pfl.core.config import CHECKPOINT, Config, Execution
from pfl.data.partition import Partition
from pfl.engine import evaluation, server
from pfl.models import MODELS
from tests.conftest import sampled, simulate, simulation_of

CLIENTS = 5000
ROUNDS = 4
PARTICIPANTS = 3
CONFIG = Config(
    method="fedper",
    model="lenet5_bn",
    participation=PARTICIPANTS / CLIENTS,
    rounds=ROUNDS,
    epochs=1,
    batch_size=4,
    eval_every=ROUNDS,
)


@pytest.fixture(scope="module")
def crowd(dataset) -> Partition:
    """Many clients of eight samples each; only the first fifty have test samples."""
    owned = np.random.default_rng(0).integers(0, len(dataset.labels), (CLIENTS, 10))
    nothing = np.zeros(0, dtype=np.int64)
    tests = [own[8:] if client < 50 else nothing for client, own in enumerate(owned)]
    return Partition("file:crowd.json", tuple(owned[:, :8]), tuple(tests), dataset.checksum)


@pytest.mark.parametrize("method", sampled(["fedavg", "fedper", "local"]))
def test_only_who_took_part_has_rows_of_its_own(method, dataset, crowd):
    simulation = simulation_of(dataclasses.replace(CONFIG, method=method), dataset, crowd)
    server = simulation.runs[0].server
    participants = set()
    for _ in range(ROUNDS):
        simulation.advance()
        participants.update(server.participants.tolist())
    for stack in (*server.store.stacks.values(), *server.local.stacks.values()):
        assert set(stack.rows.at.nonzero().flatten().tolist()) <= participants
        assert len(stack.values) <= len(participants) + 1


def test_a_checkpoint_grows_with_those_who_took_part(dataset, crowd, tmp_path):
    sizes = {}
    for participants in (3, 6):
        folder = tmp_path / str(participants)
        config = dataclasses.replace(CONFIG, participation=participants / CLIENTS)
        simulate(config, dataset, crowd, (0,), Execution(checkpoint_dir=str(folder)))
        sizes[participants] = (folder / CHECKPOINT).stat().st_size
    network = MODELS[CONFIG.model](dataset.shape, len(dataset.classes))
    everything = CLIENTS * 4 * sum(parameter.numel() for parameter in network.parameters())
    assert sizes[3] < sizes[6] < everything / 100


@pytest.mark.parametrize("method", ["fedavg", "fedper", "pfedme", "perfedavg"])
def test_an_evaluation_in_parts_changes_no_number(method, dataset, partition, monkeypatch):
    config = dataclasses.replace(CONFIG, method=method, participation=0.5)
    whole = simulate(config, dataset, partition)[0]
    monkeypatch.setattr(evaluation, "PART_BYTES", 1)  # one client at a time
    assert simulate(config, dataset, partition)[0].metrics == whole.metrics


def test_a_client_store_in_host_memory_changes_no_number(dataset, partition, monkeypatch):
    config = dataclasses.replace(CONFIG, participation=0.5)
    whole = simulate(config, dataset, partition)[0]
    monkeypatch.setattr(server, "LARGEST_ON_DEVICE", 0)
    assert simulate(config, dataset, partition)[0].metrics == whole.metrics


@pytest.mark.slow
def test_heads_of_clients_that_never_took_part_take_no_memory():
    from benchmarks.scale import Scale, measure
    from benchmarks.workload import in_subprocess

    small, large = 2000, 20_000  # of which at most 300 take part
    few, many = (in_subprocess(measure, Scale(clients, "fedper", rounds=3)) for clients in (small, large))
    more = many["peak_memory_bytes"] - few["peak_memory_bytes"]
    models = (large - small) * 4 * many["parameters"]
    assert more < models / 2
