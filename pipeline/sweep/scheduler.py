"""The pending trials of a table and their outcomes, independent of Ray."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from pfl.core.config import Config
from pfl.data.dataset import load
from pfl.data.partition import Division, make_division
from pfl.methods import METHODS
from pfl.run.trials import Record, Trial
from pfl.run.validation import stackable, train_alike
from pipeline.spec.cells import Cell, by_partition, cells
from pipeline.spec.imported_trials import imported_trials
from pipeline.spec.table import Table
from pipeline.store.ledger import Ledger
from pipeline.store.results import CellResult
from pipeline.store.workspace import checkpoint_folder, models_file
from pipeline.sweep.cell_scheduler import CellScheduler


def scheduler_of(name: str, table: Table, ledger: Ledger, **callbacks: Any) -> Scheduler:
    """The scheduler of a table, with the records that the ledger already has.

    The data sets are fetched if needed, and partitioned.

    Args:
        callbacks: those of `Scheduler`.
    """
    wanted = cells(name, table)
    datasets = {dataset: load(dataset) for dataset in {cell.dataset for cell in wanted}}
    partitions = {
        division: make_division(cell.partition, datasets[cell.dataset], cell.clients, table.drawn_seeds)
        for division, cell in by_partition(wanted).items()
    }
    return Scheduler(wanted, table, partitions, ledger, **callbacks)


class Scheduler:
    """Provides the pending trials of a table one by one, and takes all others from the ledger.

    Args:
        on_record: called for every record that a cell receives, with the cell's id, the record, and the
            number of its search trial.
        on_cell: called for every cell that is finished, with its result.
        curves: require accuracies by round in every record, even if the table does not report them.

    Attributes:
        ledger: receives new records.
        resources: resources of one trial.
        keeps_models: keep the models of final trials, not only their records.
        stacks: group trials that can be stacked, for devices on which this is faster.
        ran: number of simulations that were run.
        outcomes: the record of every key that is settled.
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        table: Table,
        partitions: Mapping[str, Division],
        ledger: Ledger,
        on_record: Callable[[str, Record, int | None], None] = lambda *_: None,
        on_cell: Callable[[CellResult], None] = lambda _: None,
        curves: bool = False,
    ):
        prior = imported_trials(cells) if table.searches else {}
        self.cells = [
            CellScheduler(cell, table, partitions[cell.partition_name], curves, prior.get(cell.id, ()))
            for cell in cells
        ]
        self.outcomes: dict[str, Record] = {}
        self.ran = 0
        self.resources = table.resources
        self.keeps_models = table.keep == "models"
        self.ledger = ledger
        self.stacks = False
        self._on_record = on_record
        self._on_cell = on_cell
        self._served: set[str] = set()
        self._out: set[str] = set()
        self._order: dict[str, int] = {}
        self._catch_up()

    def keep(self, keys: Iterable[str]) -> None:
        """Keep only the simulations ``keys``, started in this order, and the cells that have any. There must
        be no search.
        """
        self._order = {key: place for place, key in enumerate(keys)}
        for cell in self.cells:
            cell.keep(self._order.keys())
        self._served &= self._order.keys()
        self.cells = [cell for cell in self.cells if cell.keys]

    @property
    def served(self) -> int:
        """Number of simulations taken from the ledger."""
        return len(self._served)

    @property
    def done(self) -> int:
        """Number of simulations that have ended, out of `total`."""
        return len({key for cell in self.cells for key in tuple(cell.seen)})  # another thread reads, too

    @property
    def total(self) -> int:
        return len({key for cell in self.cells for key in cell.keys}) + sum(
            cell.to_come for cell in self.cells
        )

    @property
    def finished(self) -> bool:
        return all(cell.finished for cell in self.cells)

    def open(self) -> Iterator[Trial]:
        """The trials that can be started now: pinned configurations, then searches, then selected
        configurations.
        """
        pinned = [(cell, cell.pinned) for cell in self.cells]
        searched = [(cell, candidate) for cell in self.cells for candidate in cell.searched]
        selected = [(cell, cell.selected) for cell in self.cells if cell.selected]
        for cell, candidate in (*pinned, *searched, *selected):
            trial = candidate.open(cell.seen | self._out, self.stacks)
            if trial:
                yield trial

    def next(self) -> Trial | None:
        """A trial to start; pass its outcome to `record` or `fail`. None if no trial can start now."""
        if self._order:
            trial = min(self.open(), key=lambda trial: self._order[trial.keys[0]], default=None)
        else:
            trial = next(self.open(), None)
        if trial is None:
            return None
        keys = set(trial.keys)
        self._out |= keys
        # Other cells may read other moments of the same simulation.
        moments = {cell.moment for cell in self.cells if not keys.isdisjoint(cell.keys)}
        if trial.phase == "search":  # a paused run reports the clients' accuracies at the headline
            moments.add(METHODS[trial.method].headline)
        return dataclasses.replace(trial, moments=tuple(sorted(moments)))

    def batch_with(self, trial: Trial) -> list[Trial]:
        """Further trials to run together with ``trial``, which `next` has just returned: those that share its
        training and, with `stacks`, those for its stack.
        """
        # Trials that run together save no models, and only some trials continue a checkpoint of a search.
        if self.keeps_models or trial.phase == "search":
            return []
        adapts = any(declared.adaptation for declared in METHODS[trial.method].declarations().values())
        if not self.stacks and not adapts:  # most methods; checking every open trial would take long
            return []
        alike = stackable if self.stacks else train_alike
        batch: list[Trial] = []
        config = Config.from_dict(trial.config)
        for other in self.open():
            fits = other.common == trial.common and alike([config, Config.from_dict(other.config)])
            if fits and self._out.isdisjoint(other.keys):  # two rows may need the same simulation
                self._out.update(other.keys)
                batch.append(other)
        return batch

    def record(self, trial: Trial, records: Sequence[Record]) -> None:
        """Store the records of a trial that has ended."""
        if {record.key for record in records} != set(trial.keys):
            self.fail(trial, "the worker's records do not match: it runs different code")
            return
        for record in records:
            # A trial that ran again only for its models has a record already.
            known = self.ledger.get(record.key, lambda other: other.metrics.always.issuperset(trial.moments))
            self.outcomes[record.key] = known or self.ledger.append(record)
        self.ran += len(records)
        self._out.difference_update(trial.keys)
        self._catch_up()

    def fail(self, trial: Trial, cause: str) -> None:
        """Record that a trial has ended without a result."""
        self.record(trial, [Record.of(trial, seed, error=cause) for seed in trial.seeds])

    def _catch_up(self) -> None:
        """Take records from the ledger, and continue the searches as far as possible."""
        for cell in self.cells:
            if cell.finished:
                continue
            self._serve(cell)
            while cell.advance(self.outcomes):
                self._remove_checkpoints(cell.stopped)
                self._serve(cell)
            if cell.finished:
                self._on_cell(cell.result(self.outcomes))

    @property
    def unsaved(self) -> int:
        """Number of final simulations whose models are to be kept and are missing."""
        candidates = filter(None, (final for cell in self.cells for final in (cell.pinned, cell.selected)))
        return len({key for own in candidates for key in own.keys if self.lacks_models(own.trial, key)})

    def lacks_models(self, trial: Trial, key: str) -> bool:
        """Whether the models of one of the trial's simulations are to be kept and are missing."""
        return self.keeps_models and trial.phase == "final" and not models_file(key).exists()

    def _remove_checkpoints(self, stopped: Iterable[Trial]) -> None:
        """Remove the checkpoints of stopped trials, except those that another trial continues or may still
        continue: a search can propose a configuration twice, and two rows can search alike."""
        folders = [folder for folder in map(checkpoint_folder, stopped) if folder.exists()]
        needed = {checkpoint_folder(step.trial) for cell in self.cells if folders for step in cell.rung}
        for folder in folders:
            if folder not in needed:
                shutil.rmtree(folder, ignore_errors=True)

    def _stored(self, cell: CellScheduler, key: str) -> Record | None:
        """The record in the ledger for ``cell`` and for the cells that have received one with this key."""
        readers = [cell, *(other for other in self.cells if key in other.seen)]
        return self.ledger.get(key, lambda record: all(reader.accepts(record) for reader in readers))

    def _serve(self, cell: CellScheduler) -> None:
        for candidate in cell.candidates:
            for key in candidate.keys:
                if key in cell.seen:
                    continue
                if key not in self.outcomes or not cell.accepts(self.outcomes[key]):
                    record = self._stored(cell, key)
                    if record is None or self.lacks_models(candidate.trial, key):
                        continue
                    self.outcomes[key] = record
                    self._served.add(key)
                cell.seen.add(key)
                self._on_record(cell.cell.id, self.outcomes[key], candidate.number)
