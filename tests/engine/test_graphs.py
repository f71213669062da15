"""Steps of a stack are recorded, and replayed where as many clients take part with batches that fit."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pfl.core.config import Config
from pfl.data.federation import Federation
from pfl.engine.graphs import Capture
from pfl.engine.local_training import StepBatches
from pfl.engine.simulation import Simulation
from pfl.engine.stacked import MOST_RECORDED, StackedBackend
from pfl.engine.step_inputs import StepInputs, Tables
from pfl.run.simulate import make_simulation
from pfl.run.validation import validated
from pfl.testing.emulated import DEVICE, emulated
from pfl.testing.synthetic import make_clients, make_dataset
from tests.conftest import CONFIG, simulation_of


def simulation(configs, dataset, partition, capture: Capture | None, place=DEVICE) -> Simulation:
    """Of all configurations with two seeds, on the stacked backend."""
    federation = Federation(dataset, partition, torch.device(place), torch.float64)
    backend = StackedBackend(lambda: capture) if capture else StackedBackend()
    return make_simulation([validated(config) for config in configs], federation, (0, 1), backend)


def losses(*arguments) -> list[float]:
    """The training losses in the third round of a `simulation`."""
    ours = simulation(*arguments)
    for _ in range(3):
        ours.advance()
    return [run.history[-1].train_loss for run in ours.runs]


@pytest.mark.parametrize(
    ("method", "number"), [("fedprox", "mu"), pytest.param("pfedme", "lam", marks=pytest.mark.slow)]
)
def test_trials_that_differ_in_numbers_are_recorded_in_one_stack(method, number, dataset, partition):
    config = dataclasses.replace(CONFIG, method=method, momentum=0.5, weight_decay=1e-3)
    configs = [
        dataclasses.replace(config, lr=lr, hyperparameters={number: value})
        for lr, value in ((0.1, 0.5), (0.05, 0.5), (0.1, 2.0))
    ]
    with emulated() as device:
        captured = losses(configs, dataset, partition, device.capture)
    assert captured == pytest.approx(losses(configs, dataset, partition, None, "cpu"), abs=1e-12)
    assert device.replays


def test_every_step_but_the_first_is_a_replay(dataset, partition):
    config = dataclasses.replace(CONFIG, participation=1.0)
    with emulated() as device:
        trained = simulation([config], dataset, partition, device.capture)
        for _ in range(3):
            trained.advance()
    largest = max(map(len, partition.train))
    steps = config.epochs * math.ceil(largest / config.batch_size)
    assert device.replays == 3 * steps - 1
    (stack,) = trained.backend._recorded.values()
    assert len(stack.runners[0]._do._recorded) <= len(partition.train) * 2  # one for each number of clients


def test_a_learning_rate_that_moves_over_the_rounds_is_recorded_once(dataset, partition):
    config = dataclasses.replace(CONFIG, participation=1.0, lr_schedule="cosine")
    with emulated() as device:
        trained = simulation([config], dataset, partition, device.capture)
        for _ in range(3):
            trained.advance()
    assert len(trained.backend._recorded) == 1
    assert losses([config], dataset, partition, None, "cpu") == pytest.approx(
        [run.history[-1].train_loss for run in trained.runs], abs=1e-12
    )


def test_where_recording_fails_the_steps_are_done_all_the_same(dataset, partition, caplog):
    def fails(_):
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    uncaptured = losses([CONFIG], dataset, partition, fails, "cpu")
    assert uncaptured == losses([CONFIG], dataset, partition, None, "cpu")
    (said,) = {record.getMessage() for record in caplog.records}
    assert said == "steps are not recorded, which is slower: operation not permitted when stream is capturing"


def test_clients_that_memory_does_not_suffice_to_record_are_trained_in_parts(dataset, partition, caplog):
    def runs_out(_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        losses([CONFIG], dataset, partition, runs_out, "cpu")
    assert "continuing with 1 clients at once" in caplog.text


def test_few_stacks_are_kept(dataset, partition):
    backend = StackedBackend(lambda: lambda work: work)
    for participation in (1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1.0):
        config = Config(model="lenet5_bn", participation=participation, batch_size=8, dtype="float64")
        simulation_of(config, dataset, partition, backend).advance()
    assert len(backend._recorded) == MOST_RECORDED


PROGRAM = SimpleNamespace(
    keyed=False, federation=SimpleNamespace(device=torch.device("cpu"), dtype=torch.float64)
)


def steps(*batches: list[int]) -> list[StepBatches]:
    """A client's, with a batch each."""
    return [StepBatches((np.array(batch),), None, key=0) for batch in batches]


TWO_CLIENTS = [steps([1, 2, 3], [4, 5]), steps([6, 7])]


@pytest.mark.parametrize(
    ("plans", "fit"),
    [
        ([steps([1]), []], True),
        ([steps([1], [2], [3]), []], True),
        ([steps([1], [2], [3], [4]), []], False),
        ([steps([1, 2, 3, 4]), []], False),
        ([[], []], False),
    ],
    ids=["smaller", "as many steps", "more steps", "larger batches", "no step"],
)
def test_there_is_room_for_as_many_steps_of_as_large_batches(plans, fit):
    inputs = StepInputs(Tables.of(PROGRAM, TWO_CLIENTS), 3, PROGRAM)
    assert inputs.fit(Tables.of(PROGRAM, plans, 3)) is fit


def test_a_phase_without_steps_has_none():
    tables = Tables.of(PROGRAM, [[], []])
    assert (tables.active, tables.samples) == ([], 0)


def test_a_later_round_with_larger_batches_replays_the_same_steps():
    data = make_dataset()
    parts = make_clients(data, sizes=[4, 40, 4, 30, 4, 4])  # clients 5 and 2 take part first, then 5 and 3
    config = dataclasses.replace(CONFIG, participation=1 / 6, batch_size=16)
    with emulated() as device:
        captured = losses([config], data, parts, device.capture)
    assert captured == pytest.approx(losses([config], data, parts, None, "cpu"), abs=1e-12)
    assert device.replays


def test_the_size_of_padded_batches_does_not_depend_on_earlier_rounds(monkeypatch):
    """Nor does the rounding of a resumed simulation."""
    data = make_dataset()
    parts = make_clients(data, sizes=[4, 40, 4, 30, 4, 4])
    config = dataclasses.replace(CONFIG, participation=1 / 6, batch_size=36)
    sizes = set()
    put = StepInputs.put
    monkeypatch.setattr(StepInputs, "put", lambda self, t: sizes.add(t.indices.shape[-1]) or put(self, t))
    with emulated() as device:
        losses([config], data, parts, device.capture)
    assert sizes == {36}
