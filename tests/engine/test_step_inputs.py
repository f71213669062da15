"""Recorded steps of a stack serve a later round whose batches fit."""

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
