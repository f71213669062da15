"""A simulation depends on nothing around it, and changes nothing there."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from pfl.core.config import Execution
from pfl.methods import METHODS
from pfl.run.simulate import simulate
from tests.conftest import CONFIG


def shake(seed: int) -> None:
    """Seed every global random state that there is."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)


def states() -> list[object]:
    """Of NumPy and torch; imports move Python's."""
    return [np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]  # noqa: NPY002


@pytest.mark.parametrize("method", METHODS)
def test_no_global_random_state_decides_a_number_or_is_moved(method, dataset, partition):
    config = dataclasses.replace(CONFIG, method=method, rounds=1, epochs=1)
    metrics = []
    for seed in (1, 2):
        shake(seed)
        before = states()
        metrics.append(simulate(config, dataset, partition)[0].metrics)
        assert states() == before
    assert metrics[0] == metrics[1]


def test_the_working_directory_decides_nothing_and_stays_empty(dataset, partition, tmp_path, monkeypatch):
    here = simulate(CONFIG, dataset, partition)[0].metrics
    monkeypatch.chdir(tmp_path)
    assert simulate(CONFIG, dataset, partition)[0].metrics == here
    assert not list(Path.cwd().iterdir())


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_are_those_of_the_trial_and_afterwards_as_before(threads, dataset, partition):
    before, within = torch.get_num_threads(), []
    simulate(
        CONFIG,
        dataset,
        partition,
        execution=Execution(threads=threads),
        on_round=lambda *_: within.append(torch.get_num_threads()),
    )
    assert set(within) == {threads}
    assert torch.get_num_threads() == before
