"""Memory that does not suffice: smaller stacks, the same numbers."""

from __future__ import annotations

import dataclasses
import weakref

import pytest
import torch

from pfl.core import memory
from pfl.core.config import Config, Execution
from pfl.engine import stacked
from pfl.engine.stacked import StackedBackend
from pfl.run.simulate import simulate_configs
from pfl.run.validation import validated
from tests.conftest import CONFIG, make_trial, run_trial, simulate

STACKED = Execution(backend="stacked")


@pytest.fixture
def scarce(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A device with memory for two clients in training and forty images in an evaluation.

    Collects the sizes of the stacks that were tried in training.
    """
    tried = []
    train, for_all_clients = StackedBackend._train, stacked.for_all_clients

    def train_two(backend, task):
        tried.append(len(task.clients))
        if len(task.clients) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return train(backend, task)

    def evaluate_forty(function, params, state, x, labels, *more):
        if labels.numel() > 40:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return for_all_clients(function, params, state, x, labels, *more)

    monkeypatch.setattr(StackedBackend, "_train", train_two)
    monkeypatch.setattr(stacked, "for_all_clients", evaluate_forty)
    return tried


@pytest.mark.parametrize("method", ["fedbabu", pytest.param("perfedavg", marks=pytest.mark.slow)])
def test_a_smaller_stack_gives_the_same_numbers(method, dataset, partition, request):
    config = dataclasses.replace(CONFIG, method=method, participation=1.0, epochs=1)
    whole = simulate(config, dataset, partition, (0, 1), STACKED)
    request.getfixturevalue("scarce")
    chunked = simulate(config, dataset, partition, (0, 1), STACKED)
    for ours, theirs in zip(whole, chunked, strict=True):
        rounds = (result.metrics.to_json()["rounds"] for result in (ours, theirs))
        for whole_round, chunked_round in zip(*rounds, strict=True):
            assert whole_round["post_local"] == pytest.approx(chunked_round["post_local"], abs=1e-9)
            assert whole_round["post_aggregation"] == pytest.approx(
                chunked_round["post_aggregation"], abs=1e-9
            )
            assert whole_round["train_loss"] == pytest.approx(chunked_round["train_loss"], abs=1e-9)


def test_what_did_not_fit_once_is_not_tried_again(scarce, dataset, partition, caplog):
    config = dataclasses.replace(CONFIG, method="fedavg", participation=1.0, rounds=2)
    simulate(config, dataset, partition, (0,), STACKED)
    assert scarce == [6, 3, 1, 1, 1, 1, 1, 1] + [1] * 6
    assert "out of memory: continuing with 3 clients at once" in caplog.text


def test_memory_that_does_not_suffice_for_one_client_ends_the_simulation(dataset, partition, monkeypatch):
    def exhausted(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(StackedBackend, "_train", exhausted)
    with pytest.raises(torch.OutOfMemoryError):
        simulate(dataclasses.replace(CONFIG, method="fedavg"), dataset, partition, (0,), STACKED)


def test_another_error_is_not_taken_for_want_of_memory():
    assert not memory.is_out_of_memory(RuntimeError("shape mismatch"))
    assert memory.is_out_of_memory(MemoryError())


def test_tensors_that_did_not_fit_are_freed_before_the_next_attempt():
    tensors = []

    def attempt(size):
        if size > 1:
            too_large = torch.zeros(size)
            tensors.append(weakref.ref(too_large))
            raise MemoryError
        return [tensor() for tensor in tensors]

    assert stacked._halving(attempt, 4, "clients") == ([None, None], 1)


def test_seeds_that_do_not_fit_together_run_one_after_another(dataset, partition, monkeypatch, tmp_path):
    def too_many(configs, dataset, partition, seeds, *more, **options):
        if len(seeds) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return simulate_configs(configs, dataset, partition, seeds, *more, **options)

    config = validated(Config(model="lenet5_bn", rounds=2, batch_size=8, eval_every=1))
    trial = make_trial(config, dataset, partition, (0, 1))
    together = run_trial(trial, dataset, partition)
    monkeypatch.setattr("pfl.run.simulate.simulate_configs", too_many)
    execution = Execution(checkpoint_dir=str(tmp_path / "trial"))
    alone = run_trial(trial, dataset, partition, execution)
    assert [row.key for row in alone] == trial.keys
    assert [row.metrics for row in alone] == [row.metrics for row in together]
