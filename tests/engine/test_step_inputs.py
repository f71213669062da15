"""What the steps of a stack see: each client's own batches, padded to the largest, in their order."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pfl.engine.local_training import StepBatches
from pfl.engine.step_inputs import StepInputs, Tables
from pfl.testing.emulated import emulated
from pfl.testing.synthetic import make_clients, make_dataset
from tests.conftest import CONFIG
from tests.engine.test_graphs import losses

PROGRAM = SimpleNamespace(
    keyed=True, federation=SimpleNamespace(device=torch.device("cpu"), dtype=torch.float64)
)


def steps(*batches: list[int]) -> list[StepBatches]:
    """A client's, with a batch each."""
    return [StepBatches((np.array(batch),), None, 10 + i) for i, batch in enumerate(batches)]


TWO_CLIENTS = [steps([1, 2, 3], [4, 5]), steps([6, 7])]


def test_each_step_sees_the_clients_that_still_train():
    tables = Tables.of(PROGRAM, TWO_CLIENTS)
    assert tables.active == [2, 1]
    assert tables.samples == 7
    inputs = StepInputs(tables, 5, PROGRAM)
    for _ in range(2):  # a second run begins with the first step again
        inputs.put(tables)
        ((index, real, noise, keys),) = inputs.take(2)
        assert index.tolist() == [[1, 2, 3], [6, 7, 0]]
        assert real.tolist() == [[1, 1, 1], [1, 1, 0]]
        assert noise is None
        assert keys.tolist() == [10, 10]
        ((index, real, _, keys),) = inputs.take(1)
        assert index.tolist() == [[4, 5, 0]]
        assert real.tolist() == [[1, 1, 0]]
        assert keys.tolist() == [11]


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
    assert inputs.fit(Tables.of(PROGRAM, plans, inputs.width)) is fit


def test_a_phase_without_steps_has_none():
    tables = Tables.of(PROGRAM, [[], []])
    assert (tables.active, tables.samples) == ([], 0)


def test_a_later_round_with_larger_batches_is_recorded_anew():
    data = make_dataset()
    parts = make_clients(data, sizes=[4, 40, 4, 30, 4, 4])  # clients 5 and 2 take part first, then 5 and 3
    config = dataclasses.replace(CONFIG, participation=1 / 6, batch_size=16)
    with emulated() as device:
        captured = losses([config], data, parts, device.capture)
    assert captured == pytest.approx(losses([config], data, parts, None, "cpu"), abs=1e-12)
    assert device.replays
