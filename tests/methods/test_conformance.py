"""What every registered method must do, a user's too."""

from __future__ import annotations

import dataclasses
import inspect

import numpy as np
import pytest
import torch
from torch.utils._pytree import keystr, tree_leaves_with_path

from pfl.core.config import Execution
from pfl.core.errors import InvalidInput
from pfl.data.partition import Partition
from pfl.engine.evaluation import moments
from pfl.engine.method import FIELDS
from pfl.engine.round import begin_round
from pfl.methods import METHODS
from pfl.methods._families import FAMILIES
from pfl.run.simulation import simulate, simulate_together
from pfl.run.validation import validated
from pfl.testing.emulated import DEVICE, emulated
from pfl.testing.federation import make_clients
from tests.conftest import CONFIG, SAMPLE, interrupt, sampled
from tests.methods.toy import after_rounds

every_method = pytest.mark.parametrize("method", list(METHODS))
sampled_methods = pytest.mark.parametrize("method", sampled(METHODS))
"""All in the slow suite, a few of them in the fast one."""


def run(method, dataset, partition, execution=Execution(), **changes):
    config = dataclasses.replace(CONFIG, method=method, **changes)
    return simulate(config, dataset, partition, (0,), execution)[0].metrics.to_json()


def assert_close(first, second):
    for ours, theirs in zip(first["rounds"], second["rounds"], strict=True):
        for moment in ("post_aggregation", "post_local"):
            assert ours[moment] == pytest.approx(theirs[moment], abs=1e-9)
        assert ours["train_loss"] == pytest.approx(theirs["train_loss"], abs=1e-9)
    assert first["per_client"] == second["per_client"]


@every_method
@pytest.mark.parametrize("participation", [0.5, pytest.param(1.0, marks=pytest.mark.slow)])
def test_loop_and_stacked_agree_on_every_moment_and_average(method, participation, dataset, partition):
    loop, stacked = (
        run(method, dataset, partition, Execution(backend=backend), participation=participation)
        for backend in ("loop", "stacked")
    )
    assert_close(loop, stacked)
    for moment in ("post_aggregation", "post_local"):
        for average in ("pooled", "client_mean", "client_mean_weighted"):
            assert 0 <= loop["moments"][moment][average]["last"] <= 100
    assert loop["accuracy"] == loop["moments"][loop["headline"]]


@pytest.mark.parametrize(
    ("method", "hyperparameters"),
    [
        ("fedfomo", {"baseline": "before_training"}),
        ("fedgen", {"qualifies": "largest"}),
        ("fedrep", {"final_head_epochs": 2}),
        pytest.param("pfedme", {"weights": "equal"}, marks=pytest.mark.slow),
    ],
)
def test_an_option_gives_the_same_numbers_in_both_backends_and_after_an_interruption(
    method, hyperparameters, dataset, partition, checkpointed
):
    config = dataclasses.replace(CONFIG, method=method, hyperparameters=hyperparameters, rounds=4)
    loop, stacked = (
        simulate(config, dataset, partition, (0,), Execution(backend=backend))[0].metrics.to_json()
        for backend in ("loop", "stacked")
    )
    assert_close(loop, stacked)
    interrupt(3, config, dataset, partition, (0,), checkpointed)
    assert simulate(config, dataset, partition, (0,), checkpointed)[0].metrics.to_json() == loop


@sampled_methods
def test_configurations_in_one_stack_agree_with_each_alone(method, dataset, partition):
    config = validated(dataclasses.replace(CONFIG, method=method))
    own = METHODS[method].from_dict(config.hyperparameters)
    nearby = {name: other(own, name, value) for name, value in own.numbers().items()}
    configs = [
        config,
        dataclasses.replace(config, lr=config.lr / 2),
        dataclasses.replace(config, lr=config.lr / 4, hyperparameters={**config.hyperparameters, **nearby}),
    ]
    seeds, execution = (0, 1), Execution(backend="stacked")
    together = simulate_together(configs, dataset, partition, seeds, execution)
    for one, results in zip(configs, together, strict=True):
        alone = simulate(one, dataset, partition, seeds, Execution(backend="loop"))
        for ours, theirs in zip(results, alone, strict=True):
            assert_close(ours.metrics.to_json(), theirs.metrics.to_json())


def other(method, name, value):
    """Another value of a hyperparameter than its own, in its domain."""
    for near in (value * 0.8, value + 0.1, value * 1.2):
        try:
            dataclasses.replace(method, **{name: near})
        except InvalidInput:
            continue
        if near != value:
            return near
    raise AssertionError(f"{name} can only be {value}")


# The other methods compute beside the host in the test of recorded steps.
@pytest.mark.parametrize("method", SAMPLE)
@pytest.mark.parametrize("backend", ["loop", "stacked"])
def test_a_device_beside_the_host_gives_the_same_numbers(method, backend, dataset, partition):
    expected = run(method, dataset, partition, Execution(backend=backend))
    with emulated():
        result = run(method, dataset, partition, Execution(device=str(DEVICE), backend=backend))
    assert_close(result, expected)


@sampled_methods
def test_recorded_steps_give_the_same_numbers(method, dataset, partition, monkeypatch):
    expected = run(method, dataset, partition, Execution(backend="loop"))
    with emulated() as device:
        monkeypatch.setattr("pfl.engine.device.captures_on", lambda _: lambda: device.capture)
        execution = Execution(device=str(DEVICE), backend="stacked")
        result = run(method, dataset, partition, execution)
    assert_close(result, expected)
    assert device.replays


@sampled_methods
def test_resume_is_bit_identical(method, dataset, partition, checkpointed):
    whole = run(method, dataset, partition, dtype="float32", rounds=4)
    config = dataclasses.replace(CONFIG, method=method, dtype="float32", rounds=4)
    interrupt(3, config, dataset, partition, (0,), checkpointed)
    resumed = simulate(config, dataset, partition, (0,), checkpointed)[0].metrics.to_json()
    assert resumed == whole


@sampled_methods
def test_one_client_alone(method, dataset):
    metrics = run(method, dataset, make_clients(dataset, sizes=[20]), participation=1.0)
    assert len(metrics["per_client"]) == 1


@sampled_methods
@pytest.mark.parametrize("backend", ["loop", "stacked"])
def test_a_client_with_one_batch_and_one_with_a_single_sample(method, backend, dataset):
    clients = make_clients(dataset, sizes=[8, 1, 20])
    metrics = run(method, dataset, clients, Execution(backend=backend), participation=1.0)
    assert np.isfinite([entry["train_loss"] for entry in metrics["rounds"]]).all()


@sampled_methods
def test_a_client_with_one_class(method, dataset):
    members = np.flatnonzero(dataset.labels == 0)
    others = np.flatnonzero(dataset.labels != 0)
    split = Partition(
        spec="file:tests.json",
        train=(members[:12], others[:16], others[16:30]),
        test=(members[12:20], others[30:40], others[40:50]),
        data_checksum=dataset.checksum,
    )
    assert "diverged_at" not in run(method, dataset, split, participation=1.0)


@sampled_methods
def test_the_backends_agree_with_local_batch_norm_statistics(method, dataset, partition):
    loop, stacked = (
        run(method, dataset, partition, Execution(backend=backend), bn_stats="local")
        for backend in ("loop", "stacked")
    )
    assert_close(loop, stacked)


@every_method
def test_local_batch_norm_statistics_are_what_each_client_trained(method, dataset, partition):
    _, server = after_rounds(method, dataset, partition, 1, bn_stats="local")
    for name in server.groups["bn_stats"]:
        assert torch.equal(server.bank[name][server.participants], server.trained[name])


@every_method
def test_hooks_that_answer_change_no_state_and_return_the_same_twice(method, dataset, partition):
    simulation, server = after_rounds(method, dataset, partition, 2)
    own = simulation.program.method
    begin_round(server, own)

    def state():
        stored = {name: (stack.values, stack.rows.at) for name, stack in server.bank.stacks.items()}
        own = tree_leaves_with_path({"server": server.state, "client": server.client_state})
        return {keystr(path): tensor.clone() for path, tensor in own} | {
            f"bank {name} {k}": t.clone() for name, pair in stored.items() for k, t in enumerate(pair)
        }

    def answers():
        tensors = {"participants": own.participants(server).clone()} | {
            f"{moment} {name}": tensor.clone()
            for moment in moments(own, server)
            for name, tensor in own.personal(server, moment).items()
        }
        return tensors, [comparable(phase) for phase in (*own.phases(server), *own.adaptation(server))]

    before = state()
    first, phases = answers()
    again, same = answers()
    assert same == phases
    for ours, theirs in ((again, first), (state(), before)):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def comparable(phase):
    """The values of a phase; a function that is made anew as its code and what it captures."""
    return [
        (value.__code__, [cell.cell_contents for cell in value.__closure__ or ()])
        if inspect.isfunction(value)
        else value
        for value in vars(phase).values()
    ]


@every_method
def test_the_declaration_is_complete(method):
    cls = METHODS[method]
    assert tuple(cls.fields()) == FIELDS, f"the docstring of {cls.__name__} lacks a field, or their order"
    assert METHODS.summary(method).endswith(".")
    assert cls.family in FAMILIES
    for name, declared in cls.declarations().items():
        assert declared.about, name
        if declared.when:
            condition, *values = declared.when
            assert set(values) < set(cls.declarations()[condition].choices), name
            assert not cls.declarations()[condition].when, name
        if declared.search:
            assert declared.choices or declared.search[0] < declared.search[1]
            for bound in declared.search:
                declared.check(
                    name,
                    type(cls.__dataclass_fields__[name].default)(bound),
                    cls.__dataclass_fields__[name].default,
                )
