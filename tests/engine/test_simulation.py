"""A simulation is a pure function of configuration, data, partition and seed."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest

from pfl.core.config import Config, Execution
from pfl.core.errors import InvalidInput
from pfl.engine.loop import LoopBackend
from pfl.engine.method import Phase
from pfl.run.simulate import simulate_configs
from tests.conftest import interrupt, simulate, simulation_of
from tests.refusal import refusal

CONFIG = Config(
    method="pfedsim",
    model="lenet5_bn",
    participation=0.5,
    rounds=6,
    epochs=2,
    batch_size=8,
    lr=0.1,
    eval_every=2,
)


def test_another_seed_gives_other_numbers(dataset, partition):
    first, second = simulate(CONFIG, dataset, partition, (0, 1))
    assert first.metrics.to_json()["rounds"] != second.metrics.to_json()["rounds"]


def test_seeds_in_lockstep_equal_seeds_alone(dataset, partition):
    together = simulate(CONFIG, dataset, partition, (0, 1))
    alone = [simulate(CONFIG, dataset, partition, (seed,))[0] for seed in (0, 1)]
    assert [run.metrics.to_json() for run in together] == [run.metrics.to_json() for run in alone]


class CountingBackend(LoopBackend):
    """Counts the clients that train, by purpose."""

    def __init__(self):
        super().__init__()
        self.trained = Counter()

    def train(self, task):
        self.trained[task.purpose] += len(task.clients)
        return super().train(task)


ADAPTED = [
    dataclasses.replace(CONFIG, method="fedbabu", eval_every=1, hyperparameters=adaptation)
    for adaptation in ({}, {"finetune_epochs": 2}, {"finetune_lr": 0.2, "finetunes": "head"})
]
"""They differ in nothing but the adaptation before an evaluation."""


@pytest.mark.parametrize(
    "changes", [{}, {"rounds": 12, "patience": 2, "stop_share": 0.4, "min_delta": 3.0}, {"unseen": 0.3}]
)
def test_configurations_that_train_alike_are_trained_once_with_the_numbers_of_each_alone(
    changes, dataset, partition, monkeypatch
):
    configs = [dataclasses.replace(config, **changes) for config in ADAPTED]
    alone = [simulate(config, dataset, partition, (0, 1)) for config in configs]
    backend = CountingBackend()
    monkeypatch.setattr("pfl.run.simulate.backend_for", lambda *_: backend)
    together = simulate_configs(configs, dataset, partition, (0, 1))
    metrics, expected = ([[run.metrics for run in runs] for runs in each] for each in (together, alone))
    assert metrics == expected
    rounds = [max(runs[seed].metrics.rounds[-1].round for runs in together) for seed in (0, 1)]
    assert backend.trained["batches"] == sum(rounds) * configs[0].participants(
        len(together[0][0].metrics.per_client)
    )
    stopped = {run.metrics.stopped_at for runs in together for run in runs}
    assert len(stopped) > 1 if "patience" in changes else stopped == {None}


def test_a_finished_simulation_resumes_without_a_round(dataset, partition, tmp_path):
    execution = Execution(checkpoint_dir=str(tmp_path))
    first = simulate(CONFIG, dataset, partition, (0,), execution)[0]
    executed = []
    (again,) = simulate(CONFIG, dataset, partition, (0,), execution, lambda *now: executed.append(now))
    assert executed == []
    assert again.metrics.to_json() == first.metrics.to_json()


def test_a_simulation_that_pauses_goes_on_bit_identically(dataset, partition, tmp_path):
    (whole,) = simulate(CONFIG, dataset, partition, (0,))
    execution = Execution(checkpoint_dir=str(tmp_path))
    (part,) = simulate(CONFIG, dataset, partition, (0,), dataclasses.replace(execution, until=4))
    assert part.metrics.rounds == whole.metrics.rounds[:2]
    executed = []
    (rest,) = simulate(CONFIG, dataset, partition, (0,), execution, lambda round, *_: executed.append(round))
    assert executed == [5, 6]
    assert rest.metrics == whole.metrics


def test_a_simulation_that_pauses_ignores_the_checkpoint_of_a_later_round(dataset, partition, tmp_path):
    execution = Execution(checkpoint_dir=str(tmp_path))
    (whole,) = simulate(CONFIG, dataset, partition, (0,), execution)
    (part,) = simulate(CONFIG, dataset, partition, (0,), dataclasses.replace(execution, until=4))
    assert part.metrics.rounds == whole.metrics.rounds[:2]


def test_the_checkpoint_of_another_configuration_or_of_other_images_is_refused(dataset, partition, tmp_path):
    execution = Execution(checkpoint_dir=str(tmp_path))
    simulate(CONFIG, dataset, partition, (0,), execution)
    negatives = dataclasses.replace(dataset, images=255 - dataset.images, checksum="negatives")
    split = dataclasses.replace(partition, data_checksum=negatives.checksum)
    said = r"^checkpoint: .* or one with a checkpoint of this simulation"
    for other in ((dataclasses.replace(CONFIG, lr=0.2), dataset, partition), (CONFIG, negatives, split)):
        with pytest.raises(InvalidInput, match=said):
            simulate(*other, (0,), execution)


def test_all_methods_of_a_comparison_see_the_same_participants(dataset, partition):
    participants = {}
    for method in ("fedavg", "pfedsim"):
        config = dataclasses.replace(CONFIG, method=method)
        simulation = simulation_of(config, dataset, partition)
        participants[method] = []
        for _ in range(CONFIG.rounds):
            simulation.advance()
            participants[method].append(simulation.runs[0].server.participants.tolist())
    assert participants["fedavg"] == participants["pfedsim"]
    assert all(len(draw) == 3 for draw in participants["fedavg"])


def test_a_phase_that_trains_nothing_is_in_evaluation_mode(dataset, partition):
    program = simulation_of(CONFIG, dataset, partition).program
    program.prepare(Phase(trains=()))
    assert not any(module.training for module in program.net.modules())


def test_the_validation_part_stands_in_for_the_test_set(dataset, partition):
    config = dataclasses.replace(CONFIG, validation=0.25)
    clients = simulate(config, dataset, partition, (0,))[0].metrics.to_json()["per_client"]
    whole = [len(index) for index in partition.train]
    assert [client["train"] + client["test"] for client in clients] == whole


def test_a_diverging_simulation_stops_and_says_when(dataset, partition):
    config = dataclasses.replace(CONFIG, method="fedavg", lr=1e6)
    metrics = simulate(config, dataset, partition, (0,))[0].metrics.to_json()
    assert metrics["diverged_at"] < CONFIG.rounds
    assert metrics["rounds"][-1]["round"] == metrics["diverged_at"]


def test_a_divergence_in_the_last_step_is_seen_in_the_evaluation(dataset, partition):
    config = dataclasses.replace(CONFIG, method="fedavg", lr=1e18, rounds=1, epochs=1, batch_size=2000)
    assert simulate(config, dataset, partition, (0,))[0].metrics.to_json()["diverged_at"] == 1


@pytest.mark.parametrize(
    ("seeds", "execution", "said"),
    [
        ((), Execution(), r"seeds: \[\] is not accepted"),
        ((0, -1), Execution(), r"seeds: \[0, -1\] is not accepted"),
        ((3, 3), Execution(), r"seeds: \[3, 3\] is not accepted"),
        ((0,), Execution(threads=0), r"threads: 0 is not accepted; expected an integer in \[1, 1024\]"),
        ((0,), Execution(threads=10**13), "threads: 10000000000000 is not accepted"),
        *(
            ((0,), Execution(workers=count), rf"workers: {count} is not accepted; expected an integer in \[1")
            for count in (0, -1, 2.0, True)
        ),
        ((0,), Execution(device="cuda:128"), "device: cuda:128 is not accepted"),
        ((0,), Execution(backend="fast"), "backend: fast is not accepted"),
        ((0,), Execution(until=3), r"until: 3 .* a multiple of eval_every \(2\) up to 6"),
        (
            (0,),
            Execution(until=4, moments=("adapted",)),
            "moments that include post_aggregation if until",
        ),
        ((0,), Execution(moments=("adapted",)), "moments: adapted is not accepted; expected some of"),
        ((0,), Execution(save="/dev/null/models.pt"), "save: /dev/null/models.pt is not accepted"),
    ],
)
def test_seeds_and_execution_are_checked_before_anything_is_computed(
    seeds, execution, said, dataset, partition
):
    with pytest.raises(InvalidInput, match=said):
        simulate(CONFIG, dataset, partition, seeds, execution)


def test_no_configuration_at_all_is_refused(dataset, partition):
    with pytest.raises(InvalidInput, match="configurations: none is not accepted"):
        simulate_configs([], dataset, partition)


def test_a_seed_with_a_smaller_partition_of_its_own_has_the_numbers_of_the_same_seed_alone(
    dataset, partition
):
    fewer = dataclasses.replace(partition, train=tuple(part[:-1] for part in partition.train))
    config = dataclasses.replace(CONFIG, method="knnper", rounds=2)
    together = simulate(config, dataset, {0: partition, 1: fewer}, (0, 1))
    (alone,) = simulate(config, dataset, fewer, (1,))
    assert together[1].metrics.per_client == alone.metrics.per_client


def test_seeds_with_partitions_of_their_own_are_simulated_as_each_alone(
    backend, dataset, partition, checkpointed
):
    turned = dataclasses.replace(partition, train=partition.train[::-1], test=partition.test[::-1])
    divided = {4: partition, 2: turned}
    config = dataclasses.replace(CONFIG, validation=0.2, dtype="float64", rounds=4)
    execution = dataclasses.replace(checkpointed, backend=backend)
    interrupt(2, config, dataset, divided, (4, 2), execution)
    together = simulate(config, dataset, divided, (4, 2), execution)
    for result in together:
        (alone,) = simulate(config, dataset, divided[result.seed], (result.seed,), Execution(backend=backend))
        for ours, theirs in zip(result.metrics.rounds, alone.metrics.rounds, strict=True):
            accuracies = (vars(evaluated.moments["post_local"]) for evaluated in (ours, theirs))
            assert next(accuracies) == pytest.approx(next(accuracies), abs=1e-9)


def test_a_partition_of_other_data_is_refused(dataset, partition):
    other = dataclasses.replace(dataset, checksum="0" * 64)
    said = (
        f"partition: {partition.spec} is not accepted; expected a partition of {dataset.name}, not of other"
    )
    assert refusal(simulate, CONFIG, other, partition, (0,)).startswith(said)


def test_each_seed_needs_a_partition(dataset, partition):
    said = "partition: none for seed 1 is not accepted; expected a partition for each seed"
    assert refusal(simulate, CONFIG, dataset, {0: partition}, (0, 1)) == said
