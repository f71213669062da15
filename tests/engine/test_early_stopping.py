"""A simulation ends at a plateau, or where its callback says so, and its result says where."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import pfl
from pfl.core.config import Config, Execution
from pfl.core.errors import InvalidInput
from pfl.data.federation import Federation
from pfl.engine.seed_run import is_plateau
from pfl.engine.simulation import Simulation
from tests.conftest import interrupt, simulate

CONFIG = Config(model="cnn_digits", rounds=12, epochs=1, batch_size=8, lr=0.1, eval_every=2)
FLAT = dataclasses.replace(CONFIG, patience=2, min_delta=100.0, stop_share=0.25)
"""No accuracy exceeds the first one by 100 points, so the third evaluation is the last."""


@pytest.mark.parametrize(
    ("accuracies", "stops"),
    [
        ([70, 71, 72, 73], False),
        ([70, 69], False),
        ([70, 69, 70], True),
        ([70, 69, 70.6, 70.6], False),
        ([70, 70.4, 70.5], True),  # no step is above min_delta, nor are both together
        ([70, 70.4, 70.8], False),
    ],
)
def test_a_plateau_is_patience_evaluations_without_a_gain(accuracies, stops):
    assert is_plateau(accuracies, patience=2, min_delta=0.5) is stops


def test_a_simulation_stops_at_a_plateau_and_says_where(backend, dataset, partition):
    (result,) = simulate(FLAT, dataset, partition, (0,), Execution(backend=backend, workers=1))
    assert result.metrics.stopped_at == 6
    assert [entry.round for entry in result.metrics.rounds] == [2, 4, 6]
    assert {"post_aggregation", "post_local"} <= set(result.metrics.moments)
    assert result.metrics.to_json()["stopped_at"] == 6


def test_a_simulation_that_improves_runs_to_its_end(dataset, partition):
    config = dataclasses.replace(FLAT, patience=7)
    assert simulate(config, dataset, partition)[0].metrics.stopped_at is None


def test_the_stopped_simulation_is_the_beginning_of_the_whole_one(dataset, partition):
    execution = Execution(moments=("post_aggregation",), workers=1)
    (short,) = simulate(FLAT, dataset, partition, (0,), execution)
    longer = dataclasses.replace(FLAT, patience=7)
    (whole,) = simulate(longer, dataset, partition, (0,), execution)
    assert short.metrics.rounds[:2] == whole.metrics.rounds[:2]
    assert short.metrics.rounds[2].reduced(["post_aggregation"]) == whole.metrics.rounds[2]


def test_each_seed_stops_where_it_would_alone(dataset, partition):
    config = dataclasses.replace(FLAT, eval_every=1, patience=1, min_delta=0.0)
    together = simulate(config, dataset, partition, (0, 1, 2, 3))
    alone = [simulate(config, dataset, partition, (seed,))[0] for seed in (0, 1, 2, 3)]
    assert [run.metrics for run in together] == [run.metrics for run in alone]
    assert len({run.metrics.stopped_at for run in together}) > 1


def test_what_decides_is_neither_trained_on_nor_tested(dataset, partition):
    import torch

    federation = Federation(dataset, partition, torch.device("cpu"), torch.float32, held_out=0.25)
    for client in range(partition.clients):
        train, held_out = set(federation.train[client]), set(federation.held_out[client])
        assert held_out
        assert not train & held_out
        assert train | held_out == set(partition.train[client])
        assert np.array_equal(federation.test[client], partition.test[client])


def test_a_search_holds_out_both_parts(dataset, partition):
    (result,) = simulate(dataclasses.replace(FLAT, validation=0.25), dataset, partition)
    sizes = [
        (client.train, client.test, len(own))
        for client, own in zip(result.metrics.per_client, partition.train, strict=True)
    ]
    assert all(train + test < whole for train, test, whole in sizes)


def test_an_interrupted_simulation_stops_at_the_same_plateau(dataset, partition, checkpointed):
    (whole,) = simulate(FLAT, dataset, partition)
    interrupt(5, FLAT, dataset, partition, (0,), checkpointed)
    (resumed,) = simulate(FLAT, dataset, partition, (0,), checkpointed)
    assert resumed.metrics == whole.metrics
    (again,) = simulate(FLAT, dataset, partition, (0,), checkpointed, lambda *_: pytest.fail("a round"))
    assert again.metrics == whole.metrics


@pytest.mark.parametrize("first", [4, 5, 6, 7])
def test_a_continued_simulation_stops_where_one_of_as_many_rounds_does(first, dataset, partition, tmp_path):
    execution = Execution(checkpoint_dir=str(tmp_path))
    simulate(dataclasses.replace(FLAT, rounds=first), dataset, partition, (0,), execution)
    (rest,) = simulate(FLAT, dataset, partition, (0,), execution)
    assert rest.metrics == simulate(FLAT, dataset, partition)[0].metrics


def test_a_client_with_one_sample_is_named(dataset, partition):
    few = dataclasses.replace(partition, train=(partition.train[0][:1], *partition.train[1:]))
    expected = "a share that leaves every client training samples; client 0 has only 1"
    with pytest.raises(InvalidInput, match=f"^stop_share: 0.25 is not accepted; expected {expected}$"):
        simulate(FLAT, dataset, few)


# ---- callbacks -----------------------------------------------------------------------------------------


def stopping(after: int):
    """A callback that ends the simulation after a round."""

    def on_round(round: int, *_: Any) -> None:
        if round == after:
            raise pfl.Stop

    return on_round


@pytest.mark.parametrize("after", [3, 4], ids=["between two evaluations", "with an evaluation"])
def test_a_callback_ends_a_simulation_with_a_valid_result(after, dataset, partition):
    options = dataclasses.asdict(CONFIG) | {"method": "fedavg"}
    runs = pfl.simulate(
        dataset=dataset, partition=partition, seeds=2, progress=False, on_round=stopping(after), **options
    )
    assert list(runs.to_frame("summary")["stopped_at"]) == [after, after]
    shorter = simulate(dataclasses.replace(CONFIG, rounds=after), dataset, partition, (0, 1))
    stopped = [dataclasses.replace(run.metrics, stopped_at=None) for run in runs]
    assert stopped == [run.metrics for run in shorter]


def test_a_stop_after_the_last_round_changes_nothing(dataset, partition):
    (whole,) = simulate(CONFIG, dataset, partition)
    (stopped,) = simulate(CONFIG, dataset, partition, (0,), on_round=stopping(CONFIG.rounds))
    assert stopped.metrics == whole.metrics


def test_a_simulation_that_a_callback_ended_goes_on_from_its_checkpoint(dataset, partition, tmp_path):
    execution = Execution(checkpoint_dir=str(tmp_path))
    simulate(CONFIG, dataset, partition, (0,), execution, stopping(3))
    rounds: list[int] = []
    (rest,) = simulate(CONFIG, dataset, partition, (0,), execution, lambda round, *_: rounds.append(round))
    assert rounds[0] == 4
    assert rest.metrics == simulate(CONFIG, dataset, partition)[0].metrics


def test_a_callback_stops_amid_rounds_that_a_device_computes_ahead(dataset, partition, monkeypatch):
    config = dataclasses.replace(CONFIG, eval_every=12)
    (shorter,) = simulate(dataclasses.replace(config, rounds=3), dataset, partition)
    monkeypatch.setattr(Simulation, "_next_stop", lambda _self, until, _saves: until)
    (stopped,) = simulate(config, dataset, partition, (0,), on_round=stopping(3))
    assert stopped.metrics.stopped_at == 3
    assert dataclasses.replace(stopped.metrics, stopped_at=None) == shorter.metrics
