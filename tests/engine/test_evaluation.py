"""Every client's model is evaluated on its own test set; one that is known already is not evaluated again."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from pfl.core.config import Execution
from pfl.core.errors import InvalidInput
from pfl.engine import evaluation
from pfl.engine.evaluation import evaluate, evaluated_models, parts
from pfl.engine.loop import LoopBackend
from pfl.engine.simulation import Simulation
from pfl.methods.fedavg import FedAvg
from tests.conftest import CONFIG, simulate, simulation_of


def simulation(method: str, dataset, partition) -> Simulation:
    config = dataclasses.replace(CONFIG, method=method, participation=0.34, rounds=4)
    return simulation_of(config, dataset, partition, Counting())


class Counting(LoopBackend):
    """Takes note of how many models each evaluation saw."""

    def __init__(self, workers: int = 1):
        super().__init__(workers)
        self.seen = []

    def collect(self, program, statistic, tensors, state, samples, each=False):
        self.seen.append(len(samples))
        return super().collect(program, statistic, tensors, state, samples, each)


@pytest.mark.parametrize(
    ("method", "seen"),
    [
        ("local", [6, 2]),  # two of six clients take part in a round
        ("fedavg", [6, 6, 6, 2]),  # after aggregation, and as local training left them
    ],
)
def test_a_client_is_evaluated_again_only_if_its_model_is_another(method, seen, dataset, partition):
    run = simulation(method, dataset, partition)
    run.advance()
    run.advance()
    assert run.backend.seen == seen


@pytest.mark.parametrize(("workers", "models"), [(1, [1] * 6), (2, [4, 2])])
def test_each_of_several_processes_has_several_clients(workers, models, dataset, partition, monkeypatch):
    monkeypatch.setattr("pfl.engine.evaluation.PART_BYTES", 1 << 17)  # a model has 122 kB
    config = dataclasses.replace(CONFIG, method="local", participation=1.0)
    run = simulation_of(config, dataset, partition, Counting(workers))
    run.advance()
    assert run.backend.seen == models


@pytest.mark.parametrize("method", ["fedap", "pfedhn", "knnper", "ditto", "fedavg"])
def test_no_bit_of_an_evaluated_model_depends_on_the_number_of_workers(
    method, dataset, partition, monkeypatch
):
    """Products of matrices round a client's row differently if they have other rows."""
    config = dataclasses.replace(CONFIG, method=method, model="lenet5", dtype="float32")
    run = simulation_of(config, dataset, partition)
    for _ in range(2):
        run.advance()
    server, own = run.runs[0].server, run.runs[0].method
    models = {}
    for workers in (1, 2, 3):
        server._backend.processes = workers
        size = sum(rows.shape.numel() * rows.dtype.itemsize for rows in server.store.stacks.values())
        monkeypatch.setattr(evaluation, "PART_BYTES", 2 * size - 1)
        for moment in ("post_aggregation", "post_local"):
            of_parts = [evaluated_models(server, own, moment, part) for part in parts(server)]
            models[workers, moment] = {
                name: torch.cat([part[name] for part in of_parts]) for name in of_parts[0]
            }
    for (workers, moment), tensors in models.items():
        for name, stack in tensors.items():
            assert torch.equal(stack, models[1, moment][name]), (workers, moment, name)


@pytest.mark.parametrize("method", ["fedavg", "pfedsim", "fedproto", "perfedavg"])
def test_what_is_known_changes_no_number(method, dataset, partition):
    run = simulation(method, dataset, partition)
    for _ in range(4):
        run.advance()
        server = run.runs[0].server
        assert run.runs[0].history[-1].moments == evaluate(server, run.runs[0].method, {})[0]


def test_a_client_without_test_samples_has_no_accuracy(dataset, partition):
    empty = dataclasses.replace(partition, test=(*partition.test[:-1], partition.test[0][:0]))
    run = simulation("fedavg", dataset, empty)
    run.advance()
    assert run.runs[0].per_client.isnan().tolist() == [False] * 5 + [True]


def test_a_group_is_averaged_over_its_members_with_test_samples(dataset, partition):
    empty = dataclasses.replace(partition, test=(partition.test[0][:0], *partition.test[1:]))
    server = simulation("fedavg", dataset, empty).runs[0].server

    class Grouped(FedAvg):
        def client_groups(self, server):
            return {"first": server.client_ids < 2, "without tests": server.client_ids < 1}

    _, groups, per_client = evaluate(server, Grouped(), {})
    assert set(groups) == {"first"}
    assert groups["first"]["post_aggregation"].client_mean == per_client[1].item()


LOCAL_AT_THE_END = Execution(moments=("post_aggregation",))


def test_moments_that_are_not_chosen_are_evaluated_at_the_end_only(dataset, partition):
    everything = simulate(CONFIG, dataset, partition)[0].metrics.to_json()
    chosen = simulate(CONFIG, dataset, partition, execution=LOCAL_AT_THE_END)[0].metrics.to_json()
    assert ["post_local" in entry for entry in chosen["rounds"]] == [False, False, True]
    assert chosen["rounds"] == [
        {name: value for name, value in entry.items() if name != "post_local" or entry["round"] == 3}
        for entry in everything["rounds"]
    ]
    assert chosen["accuracy"] == everything["accuracy"]
    pooled = chosen["moments"]["post_local"]["pooled"]
    assert pooled == {"last": pooled["last"], "best": pooled["last"], "best_round": 3}
    assert pooled["last"] == everything["moments"]["post_local"]["pooled"]["last"]


def test_a_headline_that_is_not_chosen_has_its_clients_accuracies_in_the_end(dataset, partition):
    other = Execution(moments=("post_local",))
    everything, chosen = (
        simulate(CONFIG, dataset, partition, execution=execution)[0].metrics.to_json()
        for execution in (Execution(), other)
    )
    assert chosen["headline"] == "post_aggregation"
    assert chosen["per_client"] == everything["per_client"]


def test_a_checkpoint_is_continued_at_its_own_moments_only(dataset, partition, checkpointed):
    simulate(CONFIG, dataset, partition, execution=checkpointed)
    with pytest.raises(InvalidInput, match=r"^checkpoint: .* or one with a checkpoint of this simulation"):
        simulate(
            CONFIG,
            dataset,
            partition,
            execution=dataclasses.replace(checkpointed, moments=("post_aggregation",)),
        )
