"""Estimates of the duration of a sweep: before it starts by dry runs, then by its finished runs.

Sizes are in whole simulations: a step of a search counts by its share of the rounds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import mean
from typing import TYPE_CHECKING, Any

from pfl.core.config import Config
from pfl.core.text import amount, duration
from pfl.run.trials import Trial
from pipeline.spec.cells import Cell, cells
from pipeline.spec.table import Table
from pipeline.sweep.budget import SearchStep, Steps
from pipeline.sweep.search import plan_of, planned

if TYPE_CHECKING:
    from pipeline.sweep.cell_scheduler import CellScheduler
    from pipeline.sweep.dry_run import Speed
    from pipeline.sweep.scheduler import Scheduler

STARTUP = 20.0
"""Seconds until the first run begins: of Ray, then of the workers' processes, which start together."""

OVERHEAD = 0.5
"""Seconds that a run takes beside its simulation: handing it out, its checkpoint, its record."""

BYTES_PER_RUN = 300_000  # a ledger row, twice, and a run in MLflow
LARGE_HOURS = 2.0


# ---- the size of a table -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Extent:
    """How large a table is.

    Attributes:
        runs: by the plan of each search; trials that cost more or less than the pinned one change it.
        client_epochs: local epochs of all clients in all runs, as scheduled, also of rows that take a
            number of steps instead; None if a number of clients follows from the data.
    """

    cells: int
    runs: int
    client_epochs: int | None
    searched: bool

    @classmethod
    def of(cls, name: str, table: Table) -> Extent:
        whole = cells(name, table)
        runs, epochs, seeds = 0, 0.0, table.seeds
        for cell in _distinct(whole):
            training = float(len(seeds))
            runs += len(seeds)
            if cell.search:
                steps = planned(plan_of(cell.config, cell.search, seeds))
                runs += len(steps) + len(seeds)
                training += _training(steps, cell.config.rounds) + len(seeds)
            if cell.clients:
                participants = cell.config.participants(cell.clients)
                epochs += training * cell.config.rounds * cell.config.epochs * participants
        known = all(cell.clients for cell in whole)
        return cls(len(whole), runs, round(epochs) if known else None, bool(table.searched_rows))

    @property
    def text(self) -> str:
        """For example "14 cells, about 270 runs"."""
        return f"{amount(self.cells, 'cell')}, {'about ' * self.searched}{amount(self.runs, 'run')}"


def _distinct(whole: Sequence[Cell]) -> list[Cell]:
    """A table's cells, less those that read other numbers off the simulations of another cell."""
    simulated = {
        (cell.dataset, cell.partition, cell.clients, str(cell.config), str(cell.search)): cell
        for cell in whole
    }
    return list(simulated.values())


def _training(steps: Steps, rounds: int) -> float:
    return sum(step.until - step.after for step in steps) / rounds


# ---- the duration of a sweep ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Expected:
    """What a dry run tells about a cell.

    Attributes:
        kind: cells of the same kind differ from their expected times by about the same factor.
        seconds: of a whole simulation; None if the dry run failed.
        models: bytes of the models of all clients.
    """

    kind: str
    seconds: float | None = None
    models: int = 0


@dataclass
class Work:
    """The runs of a cell.

    Attributes:
        runs, training: pending.
        chain: pending training of runs that have to follow one another.
        finished, trained: since the sweep began.
    """

    runs: int = 0
    training: float = 0.0
    chain: float = 0.0
    finished: int = 0
    trained: float = 0.0


@dataclass(frozen=True)
class Running:
    """The trials of one stack that is running, and the last round that they have reported."""

    trials: Sequence[Trial]
    round: int

    @property
    def part(self) -> float:
        """The part of their rounds that has been run, in [0, 1]."""
        return self.round / int(self.trials[0].until or self.trials[0].config["rounds"])


def dry_runs(
    scheduler: Scheduler, datasets: Mapping[str, Any], device: str, workers: int = 1
) -> dict[str, Expected]:
    """By cell, what a dry run of its method and network tells; each pair runs once.

    A failed dry run leaves the time unknown; the sweep itself will record the cause.

    Args:
        datasets: shape and number of classes of each, as in the manifest.
        device: "cpu" or "cuda".
        workers: processes that share the clients of a round.
    """
    from pipeline.sweep.dry_run import CLIENTS, DryRun

    measured: dict[str, tuple[Speed, int]] = {}
    warm: set[tuple[Any, ...]] = set()
    expected = {}
    for one in scheduler.cells:
        config, images = one.cell.config, datasets[one.cell.dataset]
        shape, classes = tuple(images["shape"]), images["classes"]
        kind = _kind(config, (*shape, classes))
        expected[one.cell.id] = Expected(kind)
        if one.finished:
            continue
        try:
            if kind not in measured:
                clients = CLIENTS if device == "cpu" else config.participants(one.partition.clients)
                dry = DryRun(config, shape, classes, device, clients)
                network = config.model, shape, config.batch_size
                measured[kind] = dry.speed(network not in warm), dry.model_bytes
                warm.add(network)
        except (Exception, SystemExit):  # for example in a third-party method
            continue
        speed, model = measured[kind]
        seconds = speed.seconds(config, one.partition) / workers
        expected[one.cell.id] = Expected(kind, seconds, model * one.partition.clients)
    return expected


def _kind(config: Config, images: tuple[int, ...]) -> str:
    """What the time depends on; of the hyperparameters, only non-real ones such as steps and variants."""
    counts = {name: value for name, value in config.hyperparameters.items() if not isinstance(value, float)}
    schedule = (config.batch_size, config.epochs, config.dtype, config.precision)
    return json.dumps([config.method, counts, config.model, *images, *schedule], sort_keys=True)


class TimeLeft:
    """The remaining time of a sweep.

    A whole simulation of a cell takes the mean time of those that have finished. Until one has, it takes the
    time that was expected, times a factor by which others of the same kind, or else all others, differ from
    theirs. All that is then multiplied by a factor by which the sweep so far took longer than this.

    Args:
        expected: by cell.
    """

    def __init__(self, scheduler: Scheduler, expected: Mapping[str, Expected]):
        self._scheduler = scheduler
        self._expected = [expected[cell.cell.id] for cell in scheduler.cells]
        self._began: dict[str, int] = {}  # by key, the round at which a run was seen first
        self._rounds: dict[str, int] = {}
        self._slots, self._active, self._now, self._busy = 1, 0, 0.0, 0.0
        self._before: list[Work] | None = None  # as the first run had finished, since when the clock runs

    def update(self, now: float, slots: int, running: Sequence[Running]) -> None:
        """Note the state of the sweep, in any order of events but with growing ``now``, in seconds."""
        self._busy += (now - self._now) * self._active
        self._now, self._slots, self._active = now, slots, min(len(running), slots)
        self._rounds = {
            key: one.round
            for one in running
            for trial in one.trials
            for key in trial.keys()  # noqa: SIM118 - a method
        }
        for key, round in self._rounds.items():
            self._began.setdefault(key, round)
        if self._before is None and self._scheduler.ran:
            self._before, self._busy = self.work(), 0.0

    @property
    def seconds(self) -> float | None:
        """None before the first run has finished."""
        before = self._before
        if before is None:
            return None
        work = self.work()
        costs = self.costs()
        done = sum(
            cost * max(0.0, now.trained - then.trained) + OVERHEAD * (now.finished - then.finished)
            for cost, now, then in zip(costs, work, before, strict=True)
        )
        left = remaining(costs, work, self._slots)
        # As if one run per slot had taken its time, so that a moment does not decide.
        usual = self._slots * total(costs, work) / max(1, sum(one.runs for one in work))
        return left * (self._busy + usual) / (done + usual) if usual else 0.0

    def costs(self) -> list[float]:
        """Seconds of a whole simulation of each cell."""
        measured = []
        for cell in self._scheduler.cells:
            ended = [self._scheduler.outcomes.get(key) for key in cell.pinned.keys if key in self._began]
            took = [one.measured.wall_seconds for one in ended if one and not one.failure]
            measured.append(mean(took) if took else None)
        return fitted(self._expected, measured)

    def work(self) -> list[Work]:
        """What each cell has done and has still to do; a run that cells share counts for the first."""
        counted: set[str] = set()
        return [self._work_of(cell, counted) for cell in self._scheduler.cells]

    def _work_of(self, cell: CellScheduler, counted: set[str]) -> Work:
        work, rounds = Work(), cell.cell.config.rounds
        longest = {"final": 0.0, "search": 0.0}
        for candidate in cell.candidates:
            for key in candidate.keys:
                if key in counted:
                    continue
                counted.add(key)
                began = max(candidate.after, self._began.get(key, 0))
                if key in cell.seen:
                    if key in self._began:
                        work.finished += 1
                        work.trained += candidate.share - (began - candidate.after) / rounds
                    continue
                at = max(began, self._rounds.get(key, 0))
                left = candidate.share - (at - candidate.after) / rounds
                work.runs += 1
                work.training += left
                work.trained += (at - began) / rounds
                longest[candidate.trial.phase] = max(longest[candidate.trial.phase], left)
        ahead = cell.steps_to_come
        if cell.to_come:
            seeds = cell.to_come - len(ahead)
            work.runs += cell.to_come
            work.training += _training(ahead, rounds) + seeds
            longest["search"] += 1 + _chain(ahead, rounds, cell.pinned.trial.seeds[0])
        work.chain = max(longest.values())
        return work


def _chain(steps: Steps, rounds: int, seed: int) -> float:
    """The training of steps of a search that have to follow one another: of each rung, one.

    A trial with the first ``seed`` that runs from the first round to the last is alone in its bracket.
    """

    def rung(step: SearchStep) -> tuple[int, int, int | None]:
        alone = step.until - step.after == rounds and step.seed == seed
        return step.after, step.until, step.trial if alone else None

    return sum(until - after for (after, until, _), _ in groupby(steps, rung)) / rounds


def fitted(expected: Sequence[Expected], measured: Sequence[float | None]) -> list[float]:
    """Seconds of a simulation in each cell, in the order of the arguments.

    >>> fitted([Expected("a", 2), Expected("a", 4), Expected("b", 3), Expected("c")], [5, None, None, None])
    [5, 10.0, 7.5, 7.5]
    """
    pairs = [
        (one.kind, one.seconds, took)
        for one, took in zip(expected, measured, strict=True)
        if one.seconds and took is not None
    ]

    def factor(kind: str) -> float:
        own = [pair for pair in pairs if pair[0] == kind] or pairs
        return sum(took for *_, took in own) / sum(seconds for _, seconds, _ in own) if own else 1.0

    costs = [
        took if took is not None else None if one.seconds is None else one.seconds * factor(one.kind)
        for one, took in zip(expected, measured, strict=True)
    ]
    known = [cost for cost in costs if cost is not None]
    return [cost if cost is not None else mean(known) if known else 0.0 for cost in costs]


def total(costs: Sequence[float], work: Sequence[Work]) -> float:
    """Seconds of the pending runs, one after another."""
    return sum(cost * one.training + OVERHEAD * one.runs for cost, one in zip(costs, work, strict=True))


def remaining(costs: Sequence[float], work: Sequence[Work], slots: int) -> float:
    """Seconds of the pending runs on ``slots``; no order of them takes less, and any takes at most twice it
    (Graham, 1969), if costs are right."""
    chain = max((cost * one.chain for cost, one in zip(costs, work, strict=True)), default=0.0)
    return max(total(costs, work) / slots, chain)


def first_line(
    table: str, scheduler: Scheduler, expected: Mapping[str, Expected], slots: int, device: str, cpus: int
) -> str:
    """The size and the duration of what a sweep has still to run; for a long one, how to run less.

    Args:
        slots: trials that run at a time.
        cpus: cores of each.
    """
    left = TimeLeft(scheduler, expected)
    costs, work = left.costs(), left.work()
    cluster = os.environ.get("RAY_ADDRESS")
    where = f"the Ray cluster at {cluster}; on this machine alone" if cluster else "this machine"
    text = (
        f"{table}: {'about ' * any(cell.to_come for cell in scheduler.cells)}{amount(scheduler.total, 'run')}"
    )
    if scheduler.served:
        text += f", {scheduler.served} of them from the ledger"
    text += f"; on {where}, {slots} at a time"
    hours = 0.0
    if any(one.seconds for one in expected.values()):
        hours = total(costs, work) / 3600 * (1 if device == "cuda" else cpus)
        seconds = STARTUP + remaining(costs, work, slots)
        kind = "GPU" if device == "cuda" else "core"
        text += f", about {duration(seconds)} ({hours:.2g} {kind}-hours)"
    models = [one.models for one in expected.values()]
    kept = sum(
        min(one.runs, 2 * len(cell.pinned.keys)) * of_cell
        for cell, one, of_cell in zip(scheduler.cells, work, models, strict=True)
    )
    disk = BYTES_PER_RUN * sum(one.runs for one in work) + slots * max(models, default=0)
    text += f", {(disk + kept * scheduler.keeps_models) / 1e6:.0f} MB of disk"
    if hours > LARGE_HOURS:
        text += (
            f"\nTo run a part of it: dvc exp run -S 'tables=[{table}]' -S 'subset.settings=[...]' "
            "-S 'subset.methods=[...]' -S 'subset.seeds=[...]'. What has run is not run again."
        )
    return text
