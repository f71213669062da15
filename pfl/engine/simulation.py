"""A whole simulation, from initialisation to the last evaluation: the main path of the engine."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from pfl.core.config import Config, Execution
from pfl.core.errors import InvalidInput
from pfl.core.rng import integer_seed
from pfl.data.federation import Federation
from pfl.engine import checkpoint, unseen
from pfl.engine.device import peak_memory
from pfl.engine.local_training import Backend, Task, Trained
from pfl.engine.method import Method
from pfl.engine.metrics import Evaluated, Measured
from pfl.engine.result import Result, hardware, versions
from pfl.engine.returned import name_of, wrong_type
from pfl.engine.round import begin_round, end_round
from pfl.engine.seed_run import SeedRun
from pfl.engine.server import Server
from pfl.engine.stopwatch import Stopwatch
from pfl.engine.unseen import AllClients
from pfl.models import Shape
from pfl.models._adapted import check_constants, supported
from pfl.models._network import Network

BYTES_PER_SCALAR = 4
AHEAD = 20
"""Maximum number of rounds queued on a GPU before the host reads their losses."""
MOST_KEPT = 256 << 20
"""Maximum bytes of a state that is copied for a rollback. With larger ones, the host's share of a round is
small."""

OnRound = Callable[[int, int, Evaluated | None], object]
"""Called after every round with the round, the number of rounds, and the latest evaluation of the first seed.
It may raise `Stop`."""


def _copied(value: Any) -> Any:
    """A copy of a tensor or an array, and a NumPy number as one of Python; other values as they are."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, np.generic):
        return value.item()
    return value.copy() if isinstance(value, np.ndarray) else value


class Stop(Exception):  # noqa: N818 - a signal like StopIteration, not an error
    """Raise it in ``on_round`` to end the simulation after this round and return its results."""


Measure = Callable[[Server, Network], Any]
"""Called after every round with the server of each seed and with the clients' network, to which a client's
tensors can be bound. Results other than None are kept: numbers, strings, tensors, arrays, lists, mappings."""


def client_network(
    config: Config,
    method: Method,
    network: Callable[[Shape, int], Network],
    federation: Federation,
    seed: int,
) -> Network:
    """The networks of a client with the common initialisation of ``seed``, on the device and in the dtype of
    ``federation``."""
    hook = name_of(method, "client_network")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(integer_seed(seed, "initialisation"))
        net = method.client_network(network(federation.shape, federation.classes), federation)
    if not isinstance(net, Network):
        raise wrong_type(hook, net, "a Network, optionally with submodules")
    try:
        net = supported(config.model, net)
    except InvalidInput as error:
        error.locate(hook)
        raise
    for module in net.modules():
        if isinstance(module, Network):  # methods may add networks
            module.bf16 = config.precision == "bf16"
    return net.to(device=federation.device, dtype=federation.dtype)


class Simulation:
    """The rounds of a simulation, for all its configurations and seeds.

    Args:
        configs: validated configurations that differ only in the learning rate, real-valued hyperparameters,
            and those that only the adaptation before an evaluation reads, which share one training.
        methods: the method of each configuration, with its hyperparameters.
        network: builds the network from the shape of the images and the number of classes.
        federations: the clients' data, for each seed.
        seeds: each configuration is run once per seed.
        backend: runs local programs and evaluations.
        measure: called after every round, with the server of each seed.
        moments: as in `pfl.core.config.Execution`.
        all_clients: for each federation, all clients including unseen ones; by default there are none.
    """

    def __init__(
        self,
        configs: Sequence[Config],
        methods: Sequence[Method],
        network: Callable[[Shape, int], Network],
        federations: Sequence[Federation],
        seeds: Sequence[int],
        backend: Backend,
        measure: Measure | None = None,
        moments: Sequence[str] = (),
        all_clients: Sequence[AllClients] = (),
    ):
        complete = [clients.federation for clients in all_clients] or federations
        self.partitions = [federation.partition for federation in complete] * len(configs)
        self.moments = moments
        self.config = configs[0]
        self.measure = measure
        self.network = network
        self.federation = federations[0]
        self.backend = backend
        self.stopwatch = Stopwatch(self.federation.device)
        self.runs: list[SeedRun] = []
        self._by_training: dict[Hashable, SeedRun] = {}
        for config, method in zip(configs, methods, strict=True):
            per_seed: Sequence[AllClients | None] = all_clients or [None] * len(seeds)
            self.runs += [
                self._start(config, method, *inputs)
                for inputs in zip(federations, seeds, per_seed, strict=True)
            ]
        self.program = self.runs[0].server.program
        self.seconds = 0.0
        self.samples = 0

    def _start(
        self,
        config: Config,
        method: Method,
        federation: Federation,
        seed: int,
        all_clients: AllClients | None,
    ) -> SeedRun:
        def new_server(
            config: Config, federation: Federation, method: Method, other: Network | None = None
        ) -> Server:
            net = client_network(self.config, method, self.network, federation, seed)
            if other:
                check_constants(self.config.model, net, other)
            # Configurations share one template, to which backends bind each client's tensors.
            template = other if self.runs else None
            return Server(config, federation, seed, method, net, self.backend, self.stopwatch, template)

        started = next(iter(self._by_training.values()), None)
        other = started.server.program.net if started else None
        training = (seed, config.lr, method.as_trained())
        first = self._by_training.get(training)
        server = first.server if first else new_server(config, federation, method, other)
        run = SeedRun(method, server, ids=range(server.clients))
        if first:
            run.known = first.known
        if all_clients:
            run.ids = all_clients.order.ids
            run.test_unseen = partial(unseen.evaluate, server, method, all_clients, new_server)
        self._by_training.setdefault(training, run)
        return run

    @property
    def training_seconds(self) -> float:
        """Seconds of the clients' computations so far, without evaluations."""
        return self.stopwatch.seconds

    @property
    def round(self) -> int:
        return max(run.server.round for run in self.runs)

    def run(
        self, execution: Execution, on_round: OnRound | None = None, identity: Sequence[Any] = ()
    ) -> list[Result]:
        """Run the pending rounds up to ``execution.until``, resuming from the checkpoint in
        ``execution.checkpoint_dir`` if there is one.

        Args:
            identity: identifies the code and the configurations; a checkpoint of another one is rejected.
        """
        folder = Path(execution.checkpoint_dir) if execution.checkpoint_dir else None
        fingerprint = self._fingerprint(identity) if folder else ""
        until = execution.until or self.config.rounds
        if folder:
            self._resume(folder, fingerprint, until)
        began, before = time.perf_counter(), self.seconds

        def tell() -> None:
            history = self.runs[0].history
            if on_round:
                on_round(self.round, self.config.rounds, history[-1] if history else None)

        while self.round < until and self._alive():
            try:
                self._go_to(self._next_stop(until, folder is not None), tell)
                self.seconds = before + time.perf_counter() - began
                tell()
                stopped = False
            except Stop:
                self.seconds = before + time.perf_counter() - began
                stopped = True
            ends = stopped or self.round == until or not self._alive()
            if folder and (self.round % checkpoint.EVERY == 0 or ends):
                checkpoint.save(folder, self._state(fingerprint))
            if stopped:
                self._stop()
                break
        return [self._result(run, execution) for run in self.runs]

    def advance(self) -> None:
        """Run one round, with its evaluation, of every run that has not ended."""
        self._go_to(self.round + 1)

    def _next_stop(self, until: int, saves: bool) -> int:
        """The round at whose end the host next waits for the device, at most ``until``.

        On a CPU it is the next round. A GPU receives several rounds at once, so that it does not wait for the
        host between them: up to an evaluation or, if the simulation ``saves`` them, a checkpoint.
        """
        following = self.round + 1
        if self.federation.device.type == "cpu" or self.measure:
            return following
        tensors = filter(torch.is_tensor, tree_leaves(self._runs_state()))
        if sum(tensor.nbytes for tensor in tensors) > MOST_KEPT:
            return following
        periods = [AHEAD, self.config.eval_every, *([checkpoint.EVERY] if saves else [])]
        return min(until, *(-(-following // period) * period for period in periods))

    def _go_to(self, stop: int, tell: Callable[[], None] = lambda: None) -> None:
        """Run the rounds up to ``stop`` of every run that has not ended, and the evaluations due then.

        Only at the end does the host learn whether a run has diverged. If one did before the last round, all
        rounds are computed again one by one, so that it ends there.

        Args:
            tell: called after every round except the last.
        """
        runs = self._alive()
        stopped: Stop | None = None
        kept = None if stop == self.round + 1 else tree_map_only(Tensor, Tensor.clone, self._runs_state())
        for number in range(self.round + 1, stop + 1):
            self._compute_round(runs)
            if number < stop:
                try:
                    tell()
                except Stop as signal:
                    stop, stopped = number, signal
                    break
        diverged_before = [run.read() for run in runs]
        if any(diverged_before):
            assert kept is not None
            self._restore(kept)
            while self.round < stop and self._alive():
                self.advance()
        else:
            for run in runs:
                self._evaluate(run)
        if stopped:
            raise stopped

    def _compute_round(self, runs: Sequence[SeedRun]) -> None:
        """Compute one round of ``runs``."""
        servers = list(dict.fromkeys(run.server for run in runs))
        tasks = [begin_round(server, server.program.method) for server in servers]
        results = dict(zip(servers, self._train(tasks), strict=True))
        for server, task in zip(servers, tasks, strict=True):
            end_round(server, server.program.method, task, results[server])
            if server.round == 1:
                server.check_state(type(server.program.method).__name__)
        for run in runs:
            run.unread.append(results[run.server].losses)
            down, up = run.server.traffic.total
            run.bytes_down += BYTES_PER_SCALAR * down
            run.bytes_up += BYTES_PER_SCALAR * up
            if self.measure:
                measurement = self.measure(run.server, self.program.net)
                # Later rounds change the tensors of the server in place.
                kept = tree_map(_copied, measurement)
                run.measurements += [] if measurement is None else [kept]

    def _train(self, tasks: Sequence[Task]) -> list[Trained]:
        """The result of each task; tasks of the same structure are trained together."""
        alike: dict[Any, list[int]] = {}
        for number, task in enumerate(tasks):
            alike.setdefault(task.structure, []).append(number)
        trained: dict[int, Trained] = {}
        for numbers in alike.values():
            with self.stopwatch.running():
                together = self.backend.train(Task.joined([tasks[number] for number in numbers]))
            self.samples += together.samples
            first = 0
            for number in numbers:
                last = first + len(tasks[number].clients)
                trained[number] = together.part(slice(first, last))
                first = last
        return [trained[number] for number in range(len(tasks))]

    def _evaluate(self, run: SeedRun) -> None:
        """Evaluate ``run`` if an evaluation is due."""
        due = run.server.round % self.config.eval_every == 0
        last = run.server.round == self.config.rounds or run.diverged_at is not None
        with self.stopwatch.paused():
            plateau = due and self.config.patience and run.diverged_at is None and run.reaches_plateau()
            if last:
                run.finish()
            elif plateau:
                run.stop()
            elif due:
                run.evaluate(self.moments)
                run.losses = []

    def _stop(self) -> None:
        """End all runs after this round."""
        with self.stopwatch.paused():
            for run in self._alive():
                if run.server.round < self.config.rounds:
                    run.stop()

    def _alive(self) -> list[SeedRun]:
        return [run for run in self.runs if not run.ended]

    # ---- checkpoints and results -----------------------------------------------------------------------

    def _fingerprint(self, identity: Sequence[Any]) -> str:
        """Identifies what is computed, the code and the moments of the history, in every checkpoint."""
        runs = [
            (run.server.seed, partition.data_checksum, partition.checksum)
            for run, partition in zip(self.runs, self.partitions, strict=True)
        ]
        return json.dumps([*identity, runs, list(self.moments)], sort_keys=True)

    def _state(self, fingerprint: str) -> dict[str, Any]:
        return {
            "fingerprint": fingerprint,
            "rounds": self.config.rounds,
            "runs": self._runs_state(),
            "seconds": self.seconds,
            "training_seconds": self.training_seconds,
            "samples": self.samples,
        }

    def _runs_state(self) -> list[dict[str, Any]]:
        return [run.state() for run in self.runs]

    def _restore(self, states: Sequence[dict[str, Any]]) -> None:
        """Restore what `_runs_state` returned."""
        for run, state in zip(self.runs, states, strict=True):
            run.restore(state)

    def _resume(self, folder: Path, fingerprint: str, until: int) -> None:
        state = checkpoint.load(folder)
        if state is None:
            return
        with checkpoint.readable(folder):
            if state["fingerprint"] != fingerprint:
                raise InvalidInput(
                    "checkpoint",
                    str(folder),
                    "an empty folder, or one with a checkpoint of this simulation (same configuration, data, "
                    "partition, seed and code)",
                )
            rounds = int(state["rounds"])
            if rounds > self.config.rounds:
                accepted = f"at least {rounds}, as the checkpoint in {folder} has {rounds} rounds"
                raise InvalidInput("rounds", self.config.rounds, accepted)
            if max(saved["round"] for saved in state["runs"]) > until:
                return
            self._restore(state["runs"])
            if rounds < self.config.rounds:
                self._continue(rounds)
            self.seconds, self.samples = float(state["seconds"]), int(state["samples"])
            self.stopwatch.seconds = float(state["training_seconds"])

    def _continue(self, rounds: int) -> None:
        """Adapt the restored state of a simulation with fewer ``rounds`` to this one.

        Raises:
            InvalidInput: the state may depend on the number of rounds.
        """
        depending = (
            (self.config.lr_schedule == "cosine", "lr_schedule cosine"),
            (self.config.observe != "accuracy", f"observe {self.config.observe}"),
            (any(run.server.rounds_read for run in self.runs), self.config.method),
        )
        for depends, name in depending:
            if depends:
                accepted = f"{rounds}, as in the checkpoint: {name} depends on the total number of rounds"
                raise InvalidInput("rounds", self.config.rounds, accepted)
        for run in self.runs:
            if run.server.round == rounds and run.stopped_at is None:
                run.reopen(self.config.eval_every, self.moments)

    def _result(self, run: SeedRun, execution: Execution) -> Result:
        measured = Measured(
            wall_seconds=self.seconds / len(self.runs),
            train_seconds=self.training_seconds / len(self.runs),
            samples_per_second=self.samples / self.training_seconds if self.training_seconds else 0.0,
            peak_memory_bytes=peak_memory(self.federation.device),
        )
        return Result(
            seed=run.server.seed,
            metrics=run.metrics(),
            measured=measured,
            hardware=hardware(execution, self.federation.device),
            versions=versions(),
            measurements=run.measurements,
        )
