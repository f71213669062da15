"""The runs behind a figure: from the ledger, from a sweep, or with a probe."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pfl.core.config import Execution
from pfl.core.digests import digest_of_modules
from pfl.core.errors import InvalidInput
from pfl.core.files import write_text
from pfl.data.dataset import Dataset, load
from pfl.data.partition import Division, make_division
from pfl.run.fingerprint import code_digest
from pfl.run.progress import progress
from pfl.run.trials import Record, Trial
from pipeline.figures.figure import Figure
from pipeline.spec.cells import Cell, by_partition, cells
from pipeline.store.ledger import Ledger
from pipeline.store.records import read_record
from pipeline.store.scores import lack
from pipeline.store.workspace import SCRATCH, current_sources

if TYPE_CHECKING:
    from pfl.engine.simulation import Measure

MEASURED = SCRATCH / "figures"


class FigureRuns:
    """The data and runs behind a figure, each computed when first needed and then reused.

    Attributes:
        used: the requested records, for the figure's provenance.
        failed: one line for each run without a result, with the cause.
        retried: the number of these that the next call retries, because they did not diverge.
    """

    def __init__(self, name: str, figure: Figure):
        self.name = name
        self.figure = figure
        self.cells = cells(name, figure)
        self.used: list[Record] = []
        self.failed: list[str] = []
        self.retried = 0
        self._sources = current_sources(name)

    @cached_property
    def datasets(self) -> dict[str, Dataset]:
        """The data sets, by name."""
        return {name: load(name) for name in dict.fromkeys(cell.dataset for cell in self.cells)}

    @cached_property
    def partitions(self) -> dict[str, Division]:
        """The partitions, by name."""
        return {
            name: make_division(cell.partition, self.datasets[cell.dataset], cell.clients, self.figure.seeds)
            for name, cell in by_partition(self.cells).items()
        }

    def records(self) -> list[tuple[Cell, list[Record]]]:
        """Each cell with its successful records; missing trials are run as in a sweep."""
        from pipeline.sweep.scheduler import Scheduler
        from pipeline.sweep.train_sweep import run

        ledger = Ledger(self._sources)
        scheduler = Scheduler(self.cells, self.figure, self.partitions, ledger, curves=True)
        less = f"pfl figure {self.name} with --rounds, --settings or --methods, and a folder as --out"
        run(self.name, scheduler, less=less)
        return [
            (cell.cell, self._valid(cell.cell, [scheduler.outcomes[key] for key in cell.pinned.keys]))
            for cell in scheduler.cells
        ]

    def _valid(self, cell: Cell, records: Sequence[Record]) -> list[Record]:
        """Those of a cell's records that hold a result."""
        causes = [record.failure or lack(record, cell.evaluation) for record in records]
        self.failed += [
            f"{cell.id}, seed {record.seed}: {cause}"
            for record, cause in zip(records, causes, strict=True)
            if cause
        ]
        self.retried += sum(record.failed for record in records)
        successful = [record for record, cause in zip(records, causes, strict=True) if not cause]
        self.used += successful
        return successful

    def measurements(self, measure: Measure) -> list[tuple[Cell, list[list[Any]]]]:
        """Each cell with what ``measure`` returned after each round, for each seed that gave a result.

        A finished run is looked up by its trial's key, the code of ``measure`` and that of the simulation. An
        interrupted run continues from its checkpoint.

        Raises:
            InvalidInput: no seed of a cell gave a result.
        """
        measured = []
        for cell in self.cells:
            records = self._valid(cell, [self._measured(trial, measure) for trial in self._trials(cell)])
            if not records:
                accepted = f"runs with a result ({'; '.join(self.failed)})"
                raise InvalidInput("figure", self.name, accepted)
            measured.append((cell, [record.success.measurements for record in records]))
        return measured

    def _trials(self, cell: Cell) -> Iterator[Trial]:
        from pipeline.sweep.cell_scheduler import CellScheduler

        whole = CellScheduler(cell, self.figure, self.partitions[cell.partition_name]).pinned.trial
        for seed in whole.seeds:
            yield replace(whole, seeds=(seed,))

    def _measured(self, trial: Trial, measure: Measure) -> Record:
        from pfl.run.trials import run_trials

        (trial_key,) = trial.keys
        # The battery does not cover what a measure reads from the server, so fingerprints are not sufficient.
        code = digest_of_modules([measure.__module__]), code_digest(trial.method, str(trial.config["model"]))
        key = hashlib.sha256(" ".join((trial_key, *code)).encode()).hexdigest()
        file = MEASURED / f"{key}.json"
        with suppress(OSError, ValueError, RecursionError):
            stored = read_record(file.read_bytes().rstrip())
            if stored.key == trial_key:
                return stored
        checkpoints = MEASURED / key
        execution = Execution(checkpoint_dir=str(checkpoints))
        dataset, partition = self.datasets[trial.dataset], self.partitions[trial.partition_name]
        title = f"{self.name}, {trial.cell}"
        with progress(trial.config["rounds"], title, trial.moment) as on_round:
            ((ran,),) = run_trials([trial], dataset, partition, execution, on_round, measure)
        record = replace(ran, sources=self._sources)
        write_text(file, record.to_line().decode() + "\n")
        shutil.rmtree(checkpoints, ignore_errors=True)
        return record
