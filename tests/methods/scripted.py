"""A federation whose clients do what a script says, so that a method's arithmetic can be checked by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from pfl.core.config import Config
from pfl.engine.local_training import Task, Trained
from pfl.engine.loop import LoopBackend
from pfl.engine.simulation import Simulation
from pfl.testing.synthetic import make_clients, make_dataset
from tests.conftest import simulation_of

Script = Callable[[str, int, int], float] | Sequence[float]
"""What training adds to every parameter, for (purpose, round, client), or for each client at any time."""


class Scripted(LoopBackend):
    """Local training that adds a scripted number to every parameter, so that models stay one number each.

    Attributes:
        initial: the parameters of the common initialisation, by name.
    """

    initial: dict[str, Tensor]

    def __init__(self, script: Script):
        self.script = script if callable(script) else lambda _purpose, _round, client: script[client]

    def train(self, task: Task) -> Trained:
        changes = [self.script(task.purpose, task.round, client) for client in task.clients]
        tensors = dict(task.start)
        for name in task.programs[0].groups.trainable:
            stack = task.start[name]
            moved = torch.tensor(changes, dtype=stack.dtype).view(-1, *[1] * (stack.dim() - 1))
            tensors[name] = stack + moved
        return Trained(tensors, dict(task.state), torch.zeros(len(changes), dtype=torch.float64), 0)


def scripted(
    method: str,
    script: Script,
    sizes: list[int],
    participation: float = 1.0,
    changes: Mapping[str, Any] = MappingProxyType({}),
    **hyper,
) -> Simulation:
    """A simulation of ``method`` with clients of these training sizes; nothing is evaluated."""
    data = make_dataset()
    config = Config(
        method=method,
        hyperparameters=hyper,
        model="lenet5",
        participation=participation,
        rounds=1000,
        eval_every=1000,
        dtype="float64",
        **changes,
    )
    backend = Scripted(script)
    simulation = simulation_of(config, data, make_clients(data, sizes), backend)
    server = simulation.runs[0].server
    backend.initial = {name: server.store.tensors[name][0].clone() for name in server.groups.trainable}
    return simulation


def numbers(simulation: Simulation, tensors: dict[str, Tensor]) -> list[float]:
    """How far each row of ``tensors`` (K, *shape) is from the initialisation: the same in every element."""
    initial = simulation.backend.initial
    moved = torch.cat([(tensors[name] - initial[name]).flatten(1) for name in initial], 1)
    assert (moved - moved[:, :1]).abs().max() < 1e-12
    return moved[:, 0].tolist()


def models(simulation: Simulation) -> list[float]:
    """The number of every client's model in the client store."""
    store = simulation.runs[0].server.store
    return numbers(simulation, {name: store[name] for name in simulation.backend.initial})


def history(simulation: Simulation, rounds: int) -> list[list[float]]:
    """`models` after each of the next ``rounds``."""
    observed = []
    for _ in range(rounds):
        simulation.advance()
        observed.append(models(simulation))
    return observed
