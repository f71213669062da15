"""One cell of a table during a sweep: the configurations that it tries, and their outcomes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, Literal

from pfl.behaviour import behaviour_of
from pfl.config import Config
from pfl.data.partition import of_seed, parse_spec
from pfl.methods import METHODS
from pfl.trials import Record, Trial
from pipeline.spec.table import Cell, Table
from pipeline.store.results import CellResult, ConfigurationResult, SearchResult
from pipeline.store.scores import reported
from pipeline.sweep.search import WORST, Study, configured

if TYPE_CHECKING:
    from pfl.data.partition import Division


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A configuration in a cell, to be run with one or more seeds.

    Attributes:
        number: of the search trial that the configuration comes from, 0 being the pinned one; None without
            a search.
    """

    trial: Trial
    number: int | None
    keys: tuple[str, ...] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", tuple(self.trial.keys()))

    def open(self, settled: Set[str], together: bool) -> Trial | None:
        """The trial of the seeds that are not settled, or of the first of them; None where all are."""
        seeds = [seed for seed, key in zip(self.trial.seeds, self.keys, strict=True) if key not in settled]
        return (
            dataclasses.replace(self.trial, seeds=tuple(seeds if together else seeds[:1])) if seeds else None
        )


class CellScheduler:
    """One cell: its pinned configuration with all seeds, the search, then the selected configuration.

    Args:
        images: their shape and number of classes, as in the manifest.

    Attributes:
        partition: of all seeds, or of the first.
        searched: the search trials so far, the pinned configuration first.
        selected: what the search chose, which may be `pinned` itself; None before its end and without one.
        seen: the keys of the records that the cell has received.
        moment: the one that the cell reads.
        curves: the moments that the cell reads of every evaluation, and not only of the last.
    """

    def __init__(
        self, cell: Cell, table: Table, division: Division, images: Mapping[str, Any], curves: bool = False
    ):
        self.cell = cell
        self._images = images
        self.moment = cell.evaluation.moment_of(METHODS[cell.config.method].headline)
        curves = curves or cell.evaluation.which == "best"
        self.curves = (self.moment,) if curves else ()
        self.partition = partition = of_seed(division, table.seeds[0])
        shared = partition is division
        self._table = table
        self._base = Trial(
            table=cell.table,
            cell=cell.id,
            setting=cell.setting,
            row=cell.row,
            partition_name=cell.partition_name,
            phase="final",
            config=cell.config.to_dict(),
            seeds=tuple(table.seeds),
            dataset=cell.dataset,
            partition=partition.spec if shared else parse_spec(cell.partition)[0],
            clients=partition.clients,
            data_checksum=partition.data_checksum,
            partition_checksum=partition.checksum
            if shared
            else {seed: of_seed(division, seed).checksum for seed in table.seeds},
            behaviour=self._behaviour(cell.config),
            moment=self.moment,
            moments=(self.moment,),
        )
        search = table.search
        self._study = None
        if search.trials:
            self._study = Study(cell.config, search.trials, search.batch, search.seed, search.ranges)
        self.pinned = Candidate(self._base, 0 if self._study else None)
        self.searched: list[Candidate] = []
        self.selected: Candidate | None = None
        self.seen: set[str] = set()

    @property
    def candidates(self) -> list[Candidate]:
        chosen = [self.selected] if self.selected and self.selected is not self.pinned else []
        return [self.pinned, *self.searched, *chosen]

    @property
    def keys(self) -> set[str]:
        """Of the simulations of this cell so far; other cells may share them."""
        return {key for candidate in self.candidates for key in candidate.keys}

    @property
    def to_come(self) -> int:
        """Simulations that the search will still ask for; fewer in the end if it chooses the pinned ones."""
        if self._study is None or self._study.complete:
            return 0
        return self._study.trials - len(self.searched) + len(self._table.seeds)

    @property
    def total(self) -> int:
        return len(self.keys) + self.to_come

    @property
    def values(self) -> list[float | None]:
        """Validation accuracies in percent of the search trials so far; None where one failed."""
        return self._study.values if self._study else []

    @property
    def finished(self) -> bool:
        searched_out = self._study is None or self._study.complete
        return searched_out and all(
            key in self.seen for candidate in self.candidates for key in candidate.keys
        )

    def accepts(self, record: Record) -> bool:
        """Whether ``record``, which may be another cell's, has all that this cell reads."""
        return record.failed or not record.metrics.lacks(self.curves)

    def advance(self, outcomes: Mapping[str, Record]) -> bool:
        """Tell the search of a batch that is settled, and ask for the next; whether anything is new."""
        if self._study is None or self._study.complete:
            return False
        told = len(self._study.values)
        batch = [candidate.keys[0] for candidate in self.searched[told:]]
        if not self.seen.issuperset(batch):
            return False
        if batch:
            self._study.tell([self._objective(outcomes[key]) for key in batch])
        if self._study.complete:
            best = self._study.best()
            if best == 0:
                self.selected = self.pinned
            elif best is not None:
                config = configured(self.cell.config, self._study.asked[best])
                self.selected = self._candidate("final", config, self._table.seeds, best)
            return True
        for params in self._study.ask():
            config = configured(self.cell.config, params)
            validated = dataclasses.replace(config, validation=self._table.search.validation)
            number = len(self.searched)
            self.searched.append(self._candidate("search", validated, self._table.seeds[:1], number))
        return True

    def result(self, outcomes: Mapping[str, Record]) -> CellResult:
        """The cell as `results.json` has it."""
        pinned = self._configuration(self.pinned, outcomes)
        selected = self._configuration(self.selected, outcomes) if self.selected else None
        done = [
            len(part.rows) == len(self._table.seeds) if part else not self._study
            for part in (pinned, selected)
        ]
        keys = [key for candidate in self.candidates for key in candidate.keys]
        records = [outcomes[key] for key in keys if key in outcomes]
        return CellResult(
            cell=self.cell.id,
            setting=self.cell.setting,
            row=self.cell.row,
            method=self.cell.config.method,
            status="done" if all(done) else "partial" if pinned.rows else "failed",
            pinned=pinned,
            selected=selected,
            search=tuple(
                self._search_result(number, candidate, outcomes[candidate.keys[0]])
                for number, candidate in enumerate(self.searched)
                if candidate.keys[0] in outcomes
            ),
            errors=tuple(
                f"{record.phase}, seed {record.seed}: {record.failure}"
                for record in records
                if record.failure
            ),
        )

    def _candidate(
        self, phase: Literal["search", "final"], config: Config, seeds: Sequence[int], number: int | None
    ) -> Candidate:
        trial = dataclasses.replace(
            self._base,
            phase=phase,
            config=config.to_dict(),
            seeds=tuple(seeds),
            behaviour=self._behaviour(config),
        )
        return Candidate(trial, number)

    def _behaviour(self, config: Config) -> str:
        return behaviour_of(config, tuple(self._images["shape"]), self._images["classes"]).name

    def _objective(self, record: Record) -> float | None:
        if record.failed:
            return None
        return WORST if record.failure else reported(record, self.cell.evaluation)

    def _search_result(self, number: int, candidate: Candidate, record: Record) -> SearchResult:
        config = candidate.trial.config
        return SearchResult(
            trial=number,
            params={**config["hyperparameters"], "lr": config["lr"]},
            value=None if record.failure else self._objective(record),
            key=record.key,
            error=record.failure,
        )

    def _configuration(self, candidate: Candidate, outcomes: Mapping[str, Record]) -> ConfigurationResult:
        config = candidate.trial.config
        records = [outcomes[key] for key in candidate.keys if key in outcomes]
        return ConfigurationResult(
            trial=candidate.number,
            params=dict(config["hyperparameters"]),
            lr=config["lr"],
            rows=tuple(record for record in records if not record.failure),
            failed=tuple(record.key for record in records if record.failure),
        )
