"""Estimates of the duration of a sweep: from dry runs before it starts, then from its finished runs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, groupby
from statistics import mean
from typing import TYPE_CHECKING

from pfl.core.config import Config
from pfl.core.text import amount
from pfl.run.trials import Trial
from pipeline.formatting import duration
from pipeline.spec.cells import cells
from pipeline.spec.fingerprints import images
from pipeline.spec.search_space import search_seeds
from pipeline.spec.table import Table
from pipeline.sweep.budget import SearchStep, Steps
from pipeline.sweep.dry_run import CLIENTS, DryRun, Speed
from pipeline.sweep.search import plan_of, planned

if TYPE_CHECKING:
    from pipeline.sweep.scheduler import Scheduler

STARTUP = 20.0
"""Seconds until the first run begins: Ray starts, then all workers' processes."""

OVERHEAD = 0.1
"""Seconds that a run takes besides its simulation: dispatch, checkpoint, record."""

USUALLY_COME = 0.7
"""Share of a search's planned runs that are needed: often it keeps the pinned configuration."""

END = 10**9  # after the last round of any run
BYTES_PER_RUN = 300_000  # a record in two files, and a run in MLflow
LARGE_HOURS = 2.0


# ---- the size of a table -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Extent:
    """The size of a table.

    Attributes:
        runs: by the plan of each search; trials that cost more or less than the pinned one change it.
        client_epochs: scheduled local epochs of all clients in all runs, even for rows that take a number of
            steps instead; None if a number of clients follows from the data.
    """

    cells: int
    runs: int
    client_epochs: int | None
    searched: bool

    @classmethod
    def of(cls, name: str, table: Table) -> Extent:
        whole = cells(name, table)
        simulated = {  # cells that share simulations count once
            (cell.dataset, cell.partition, cell.clients, str(cell.config), str(cell.search)): cell
            for cell in whole
        }
        runs, epochs, seeds = 0, 0.0, table.seeds
        for cell in simulated.values():
            training = float(len(seeds))
            runs += len(seeds)
            if cell.search:
                steps = planned(plan_of(cell.config, cell.search, seeds))
                runs += len(steps) + len(seeds)
                training += sum(step.until - step.after for step in steps) / cell.config.rounds + len(seeds)
            if cell.clients:
                participants = cell.config.participants(cell.clients)
                epochs += training * cell.config.rounds * cell.config.epochs * participants
        known = all(cell.clients for cell in whole)
        return cls(len(whole), runs, round(epochs) if known else None, bool(table.searches))

    @property
    def text(self) -> str:
        """For example "14 cells, about 270 runs"."""
        return f"{amount(self.cells, 'cell')}, {'about ' * self.searched}{amount(self.runs, 'run')}"


# ---- the duration of a sweep ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Expected:
    """The outcome of a cell's dry run.

    Attributes:
        kind: cells of the same kind differ from their expected times by about the same factor.
        seconds: time of a whole simulation.
        models: bytes of the models of all clients.
    """

    kind: str
    seconds: float
    models: int = 0


@dataclass
class Work:
    """Runs of a sweep, in slot-seconds.

    Attributes:
        runs: number of pending runs.
        pending: their time.
        chain: the longest part of it that must run in sequence.
        done: the time of what this sweep has run.
    """

    runs: int = 0
    pending: float = 0.0
    chain: float = 0.0
    done: float = 0.0

    def on(self, slots: int) -> float:
        """The time of the pending runs: the mean of the bounds of list scheduling (Graham, 1966)."""
        least = max(self.pending / slots, self.chain)
        most = self.pending / slots + self.chain * (1 - 1 / slots)
        return (least + most) / 2


@dataclass(frozen=True)
class Running:
    """The trials of one stack that is running, and the last round that they have reported."""

    trials: Sequence[Trial]
    round: int

    @property
    def part(self) -> float:
        """The fraction of their rounds that has been run."""
        return self.round / int(self.trials[0].until or self.trials[0].config["rounds"])


def dry_runs(scheduler: Scheduler, device: str) -> dict[str, Expected]:
    """Outcomes of dry runs by cell; cells of a kind (`_kind`) share one.

    Kinds without an unfinished cell are left out, and those that fail: the sweep will record the cause.

    Args:
        device: "cpu" or "cuda".
    """
    measured: dict[str, tuple[Speed, int]] = {}
    tried: set[tuple[str, int]] = set()
    warm: set[object] = set()
    expected = {}
    for cell in scheduler.cells:
        config, partition = cell.cell.config, cell.partition
        shape, classes = images(cell.cell.dataset)
        kind = _kind(config, (*shape, classes))
        with suppress(Exception, SystemExit):  # for example in a third-party method
            clients = CLIENTS if device == "cpu" else config.participants(partition.clients)
            if not (kind in measured or (kind, clients) in tried or cell.finished):
                tried.add((kind, clients))
                dry = DryRun(config, shape, classes, device, clients)
                network = config.model, shape, config.batch_size
                measured[kind] = dry.speed(network not in warm), dry.model_bytes
                warm.add(network)
        if kind in measured:
            speed, model = measured[kind]
            seconds = speed.seconds(config, partition) / scheduler.resources.cpus
            expected[cell.cell.id] = Expected(kind, seconds, model * partition.clients)
    return expected


def _kind(config: Config, images: tuple[int, ...]) -> str:
    """What the time depends on; of the hyperparameters, all but floats, such as steps and variants."""
    counts = {name: value for name, value in config.hyperparameters.items() if not isinstance(value, float)}
    schedule = (config.batch_size, config.epochs, config.dtype, config.precision)
    return json.dumps([config.method, counts, config.model, *images, *schedule], sort_keys=True)


class TimeLeft:
    """The remaining time of a sweep.

    The expected time of a simulation is scaled by the factor by which finished ones of its kind, or else of
    any kind, differ from theirs. The sum is scaled by the sweep's slowdown relative to this so far.

    Args:
        expected: by cell; other cells take the mean time.
    """

    def __init__(self, scheduler: Scheduler, expected: Mapping[str, Expected]):
        self.scheduler = scheduler
        self.expected = expected
        self._rounds: dict[str, int] = {}  # by key of a running simulation
        self._began: dict[str, int] = {}  # by key, the round from which it counts as this sweep's work
        self._slots, self._active, self._now, self._busy = 1, 0, 0.0, 0.0
        self._measuring = False
        self._planned = [(len(cell.keys), cell.to_come) for cell in scheduler.cells]

    def update(self, now: float, slots: int, running: Sequence[Running]) -> None:
        """Note the trials that run at ``now``, in seconds. The clock starts when the first run finishes."""
        self._busy += (now - self._now) * self._active
        self._now, self._slots, self._active = now, slots, min(len(running), slots)
        stacks = [(stack.round, [trial.keys for trial in stack.trials]) for stack in running]
        self._rounds = {key: round for round, keys in stacks for key in chain.from_iterable(keys)}
        self._began = self._rounds | self._began
        if not self._measuring and self.scheduler.ran:
            self._measuring, self._busy = True, 0.0
            self._began = {key: self._rounds.get(key, END) for key in self._began}

    @property
    def seconds(self) -> float | None:
        """Estimated seconds left; None before the first run has finished."""
        if not self._measuring:
            return None
        work = self.work()
        # As if one run per slot had taken the expected time, so that the first measurements do not dominate.
        usual = self._slots * work.pending / max(1, work.runs)
        return work.on(self._slots) * (self._busy + usual) / (work.done + usual) if usual else 0.0

    def work(self) -> Work:
        """The pending and finished work; a run that cells share counts once."""
        work, counted, share_needed = Work(), set[str](), self._share_needed()
        for cell, seconds in zip(self.scheduler.cells, self._costs(), strict=True):
            rounds = cell.cell.config.rounds
            a_round = seconds / rounds
            longest = {"final": 0.0, "search": 0.0}
            for candidate in cell.candidates:
                last, phase = candidate.trial.until or rounds, candidate.trial.phase
                for key in candidate.keys:
                    if key in counted:
                        continue
                    counted.add(key)
                    first = min(last, max(candidate.after, self._began.get(key, 0)))
                    if key in cell.seen:
                        work.done += (OVERHEAD + (last - first) * a_round) * (key in self._began)
                        continue
                    at = max(first, self._rounds.get(key, 0))
                    left = OVERHEAD + (last - at) * a_round
                    work.done += (at - first) * a_round
                    work.pending += left
                    work.runs += 1
                    longest[phase] = max(longest[phase], left)
            if cell.to_come:
                ahead = [step.until - step.after for step in cell.steps_to_come]
                selected = [rounds] * (cell.to_come - len(ahead))
                first_seed = search_seeds(cell.pinned.trial.seeds)[0]
                in_turn = [rounds, *_in_turn(cell.steps_to_come, rounds, first_seed)]
                work.runs += cell.to_come
                work.pending += share_needed * sum(OVERHEAD + each * a_round for each in (*ahead, *selected))
                longest["search"] += share_needed * sum(OVERHEAD + each * a_round for each in in_turn)
            work.chain = max(work.chain, *longest.values())
        return work

    def _share_needed(self) -> float:
        """The share of their planned runs that finished searches have requested; a guess before the first."""
        ended = [
            (len(cell.keys) - known, to_come)
            for cell, (known, to_come) in zip(self.scheduler.cells, self._planned, strict=True)
            if to_come and not cell.to_come
        ]
        if not ended:
            return USUALLY_COME
        return sum(requested for requested, _ in ended) / sum(planned for _, planned in ended)

    def _costs(self) -> list[float]:
        """Seconds of a whole simulation in each cell."""
        took = []
        for cell in self.scheduler.cells:
            if expected := self.expected.get(cell.cell.id):
                ended = (self.scheduler.outcomes.get(key) for key in cell.pinned.keys if key in self._began)
                took += [
                    (expected, record.measured.wall_seconds)
                    for record in ended
                    if record and not record.failure
                ]

        def seconds(expected: Expected) -> float:
            pairs = [pair for pair in took if pair[0].kind == expected.kind] or took
            factor = (
                sum(wall for _, wall in pairs) / sum(known.seconds for known, _ in pairs) if pairs else 1.0
            )
            return expected.seconds * factor

        known = {cell: seconds(expected) for cell, expected in self.expected.items()}
        usual = mean(known.values()) if known else 0.0
        return [known.get(cell.cell.id, usual) for cell in self.scheduler.cells]


def _in_turn(steps: Steps, rounds: int, seed: int) -> list[int]:
    """The rounds of the steps of a search that must run in sequence: one step per rung.

    A trial with the first ``seed`` of a search that runs from the first round to the last is alone in its
    bracket.
    """

    def rung(step: SearchStep) -> tuple[int, int, int | None]:
        alone = step.until - step.after == rounds and step.seed == seed
        return step.after, step.until, step.trial if alone else None

    return [until - after for (after, until, _), _ in groupby(steps, rung)]


def first_line(table: str, left: TimeLeft, slots: int, device: str, less: str = "") -> str:
    """The size and the duration of a sweep's pending runs; for a long one, how to run less.

    Args:
        slots: number of trials in parallel.
        less: how to run a part, shown if this takes long.
    """
    scheduler, work = left.scheduler, left.work()
    cluster = os.environ.get("RAY_ADDRESS")
    where = f"the Ray cluster at {cluster}; on this machine alone" if cluster else "this machine"
    about = "about " * any(cell.to_come for cell in scheduler.cells)
    text = f"{table}: {about}{amount(scheduler.total, 'run')}"
    if scheduler.served:
        text += f", {scheduler.served} of them from the ledger"
    text += f"; on {where}, {slots} at a time"
    hours = work.pending / 3600 * (1 if device == "cuda" else scheduler.resources.cpus)
    if left.expected:
        kind = "GPU" if device == "cuda" else "core"
        shown = f"{hours:,.0f}" if hours >= 10 else f"{hours:.2g}"
        text += f", about {duration(STARTUP + work.on(slots))} ({shown} {kind}-hours)"
    models = {cell: expected.models for cell, expected in left.expected.items()}
    disk = BYTES_PER_RUN * work.runs + slots * max(models.values(), default=0)
    if scheduler.keeps_models:
        for cell in scheduler.cells:
            disk += len(cell.pinned.keys) * (2 if cell.proposer else 1) * models.get(cell.cell.id, 0)
    text += f", {disk / 1e6:.0f} MB of disk"
    if less and hours > LARGE_HOURS:
        text += f"\nTo run a part of it: {less}. Finished runs are not repeated."
    return text
