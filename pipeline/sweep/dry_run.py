"""A dry run: a method with a network on a few synthetic images.

It checks that the two are compatible, and measures the size of their models and their time.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pfl.core.config import Config, Execution
from pfl.core.lazy import torch
from pfl.data.partition import Partition
from pfl.models import Shape

if TYPE_CHECKING:
    from pfl.engine.seed_run import SeedRun

CLIENTS = 2

LARGEST_BATCH = {"cpu": 16, "cuda": 1024}
"""Largest number of samples per batch. On a CPU, the time per sample hardly depends on it."""


@dataclass(frozen=True)
class Speed:
    """Seconds that a method with a network takes on one core, or on one GPU.

    Attributes:
        sample: local training per round and training sample of a participant, all epochs together.
        client: local training per round and participant, for a method that takes a number of steps.
        server: the server's work per round.
        test: evaluation per test sample, all moments together.
    """

    sample: float
    client: float
    server: float
    test: float

    def seconds(self, config: Config, partition: Partition) -> float:
        """Seconds of a whole simulation."""
        mean = float(partition.sizes.mean())
        clients = config.participants(partition.clients)
        a_round = clients * (self.client + self.sample * mean) + self.server
        evaluations = math.ceil(config.rounds / config.eval_every)
        return config.rounds * a_round + evaluations * self.test * sum(map(len, partition.test))


class DryRun:
    """A simulation on synthetic images, before its first round; all clients take part, with one batch each.

    Args:
        device: "cpu" or "cuda".

    Raises:
        InvalidInput: the method or the network refuses the configuration.
        Exception: of any class, from a third-party method or network.
    """

    def __init__(
        self, config: Config, shape: Shape, classes: int, device: str = "cpu", clients: int = CLIENTS
    ):
        from pfl.data.federation import Federation
        from pfl.engine.device import backend_for
        from pfl.run.simulate import make_simulation
        from pfl.testing.synthetic import make_dataset

        self._config, self._device = config, torch.device(device)
        self._samples = min(config.batch_size, LARGEST_BATCH[device])
        train, test = np.arange(2 * clients * self._samples).reshape(2, clients, self._samples)
        partition = Partition("made-up", tuple(train), tuple(test), data_checksum="")
        data = make_dataset(shape, classes, 2 * clients * self._samples)
        dtype = getattr(torch, config.dtype)
        federation = Federation(data, partition, self._device, dtype, config.input_scale)
        all_train = dataclasses.replace(config, participation=1.0, eval_every=10**9)
        backend = backend_for(Execution(workers=1), self._device)
        self._simulation = make_simulation([all_train], federation, [0], backend)
        self._clients = clients

    @property
    def run(self) -> SeedRun:
        """The method, and the state of its federation."""
        return self._simulation.runs[0]

    @property
    def model_bytes(self) -> int:
        """Size of one client's model."""
        tensors = self.run.server.store.tensors.values()
        return sum(tensor.shape[1:].numel() * tensor.dtype.itemsize for tensor in tensors)

    def speed(self, cold: bool) -> Speed:
        """Measure a round and an evaluation.

        Args:
            cold: run another round first, for compilation.
        """
        from pfl.engine.device import numerics, threads
        from pfl.engine.evaluation import evaluate

        simulation, server = self._simulation, self.run.server
        with numerics(self._config.precision), threads(1):
            if cold:
                simulation.advance()
            before = simulation.training_seconds
            whole, busy = _took(simulation.advance, self._device)
            local = busy * (simulation.training_seconds - before) / whole
            _, tested = _took(lambda: evaluate(server, simulation.program.method, {}), self._device)
        by_steps = any(phase.steps for phase in simulation.program.method.phases(server))
        return Speed(
            sample=0.0 if by_steps else local / (self._clients * self._samples),
            client=local / self._clients if by_steps else 0.0,
            server=busy - local,
            test=tested / (self._clients * self._samples),
        )


def _took(work: Callable[[], Any], device: torch.device) -> tuple[float, float]:
    """Seconds of wall time and, on a CPU, seconds of this thread alone, regardless of other load."""
    wall, core = time.perf_counter(), time.thread_time()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    wall, core = time.perf_counter() - wall, time.thread_time() - core
    return wall, wall if device.type == "cuda" else core
