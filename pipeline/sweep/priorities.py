"""The pending runs of a table that fit into a time limit, the most informative ones first."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from pfl.core.config import CHECKPOINT, CHECKPOINT_EVERY
from pfl.run.trials import Trial
from pipeline.spec.published import Published
from pipeline.spec.table import Table, printed_cells
from pipeline.spec.table_claims import Place
from pipeline.store.heartbeat import reached
from pipeline.store.workspace import checkpoint_folder
from pipeline.sweep.estimate import OVERHEAD, STARTUP, Expected, Work
from pipeline.sweep.scheduler import Scheduler

RULE = (
    "Only cells whose published number can be compared are computed, each in its pinned configuration. First "
    "come the paper's own method and the strongest baseline of every column, that with the highest published "
    "accuracy; then all other cells; then the same with the table's second seed, and so on. Within each of "
    "these groups, cheap cells come before expensive ones. A run that does not fit into the remaining time "
    "is left out, and cheaper ones after it still have their turn."
)


@dataclass(frozen=True)
class PendingRun:
    """A simulation that the ledger does not have.

    Attributes:
        cells: the cells that report a number of it.
        seconds: its expected time, without the rounds in its checkpoint.
    """

    key: str
    cells: tuple[str, ...]
    seed: int
    seconds: float


@dataclass(frozen=True)
class RunPlan:
    """The pending runs that fit into a time limit, and the others, both in the order of `RULE`.

    Attributes:
        slots: number of parallel runs.
    """

    chosen: tuple[PendingRun, ...]
    left_out: tuple[PendingRun, ...]
    slots: int

    @property
    def runs(self) -> tuple[PendingRun, ...]:
        return self.chosen + self.left_out


def comparable_cells(table: Table) -> dict[Place, Published]:
    """The published numbers of a table's cells, without those that a table declares as incomparable.

    Raises:
        InvalidInput: as in `printed_cells`.
    """
    left_out = table.published.incomparable_rows if table.published else set()
    return {
        (setting, row): number
        for (setting, row), number in printed_cells(table).items()
        if setting in table.settings and row not in left_out
    }


def plan(
    scheduler: Scheduler, table: Table, expected: Mapping[str, Expected], slots: int, seconds: float
) -> RunPlan:
    """Choose among the pending runs of a scheduler's pinned configurations, by `RULE`.

    Args:
        expected: by cell; other cells take the mean time.
        slots: number of parallel runs.
        seconds: time limit of the chosen runs together.
    """
    chosen: list[PendingRun] = []
    left_out: list[PendingRun] = []
    for run in _in_order(scheduler, table, expected):
        fits = time_of([*chosen, run], slots) <= seconds
        (chosen if fits else left_out).append(run)
    return RunPlan(tuple(chosen), tuple(left_out), slots)


def time_of(runs: Collection[PendingRun], slots: int) -> float:
    """Expected seconds of runs that start together on ``slots`` slots."""
    times = [run.seconds for run in runs]
    return STARTUP + Work(len(times), sum(times), max(times)).on(slots) if times else 0.0


def _in_order(scheduler: Scheduler, table: Table, expected: Mapping[str, Expected]) -> Sequence[PendingRun]:
    known = {cell: OVERHEAD + run.seconds for cell, run in expected.items()}
    usual = mean(known.values()) if known else 0.0
    seconds = {cell.cell.id: known.get(cell.cell.id, usual) for cell in scheduler.cells}
    leading = _leading(table)
    columns: dict[str, float] = {}
    for cell in scheduler.cells:
        if (cell.cell.setting, cell.cell.row) in leading:
            columns[cell.cell.setting] = columns.get(cell.cell.setting, 0.0) + seconds[cell.cell.id]
    ranks: dict[str, tuple[object, ...]] = {}
    runs: dict[str, PendingRun] = {}
    for cell in scheduler.cells:
        name, setting = cell.cell.id, cell.cell.setting
        position = leading.get((setting, cell.cell.row))
        for seed, key in cell.pinned.runs:
            if key in cell.seen:
                continue
            rank: tuple[object, ...]
            if position is None:
                rank = table.seeds.index(seed), 1, seconds[name], setting, 0
            else:  # the two leading cells of a column stay together
                rank = table.seeds.index(seed), 0, columns[setting], setting, position
            ranks[key] = min(rank, ranks.get(key, rank))
            cells = runs[key].cells if key in runs else ()
            left = share_left(dataclasses.replace(cell.pinned.trial, seeds=(seed,)))
            runs[key] = PendingRun(key, (*cells, name), seed, seconds[name] * left)
    return sorted(runs.values(), key=lambda run: ranks[run.key])


def share_left(trial: Trial) -> float:
    """The share of a trial's rounds that are not in a checkpoint of an earlier call."""
    rounds: int = trial.config["rounds"]
    begun = (checkpoint_folder(trial) / CHECKPOINT).exists()
    return 1 - (reached([trial]) or 0) // CHECKPOINT_EVERY * CHECKPOINT_EVERY / rounds if begun else 1.0


def _leading(table: Table) -> dict[Place, int]:
    """Per column, the table's reference (0) and the other row with the highest published accuracy (1)."""
    printed = comparable_cells(table)
    leading: dict[Place, int] = {}
    for setting in table.settings:
        rows = {
            row: number.mean
            for (name, row), number in printed.items()
            if name == setting and number.is_accuracy
        }
        # The reference first; ties in the order of the table.
        ordered = sorted(rows, key=lambda row: (row != table.reference, -rows[row]))
        leading |= {(setting, row): position for position, row in enumerate(ordered[:2])}
    return leading
