"""A simulation depends on nothing around it, and changes nothing there; its randomness is keyed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pfl.core.config import Execution
from pfl.core.rng import generator, integer_seed
from tests.conftest import CONFIG, simulate


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


def test_every_part_of_the_key_counts():
    keys = [(0, "a", 0, 0), (1, "a", 0, 0), (0, "b", 0, 0), (0, "a", 1, 0), (0, "a", 0, 1)]
    assert len({float(generator(*key).random()) for key in keys}) == len(keys)
    assert len({integer_seed(*key) for key in keys}) == len(keys)
