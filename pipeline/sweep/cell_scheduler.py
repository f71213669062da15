"""The state of one cell during a sweep: the configurations that it still tries, and their outcomes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from pfl.core.config import Config
from pfl.data.partition import Division, of_seed, parse_spec
from pfl.methods import METHODS
from pfl.run.fingerprint import name_of
from pfl.run.trials import Record, Trial
from pipeline.spec.cells import Cell
from pipeline.spec.fingerprints import images
from pipeline.spec.imported_trials import PriorTrial
from pipeline.spec.objectives import others
from pipeline.spec.search_space import PINNED_TRIAL
from pipeline.spec.table import Table
from pipeline.store.results import CellResult, Selection, TrialResult
from pipeline.store.scores import lack, reported
from pipeline.sweep.budget import Outcome, SearchStep, Steps
from pipeline.sweep.search import WORST, Proposer, on_validation, plan_of, planned, search


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A configuration in a cell, to be run with one or more seeds.

    Attributes:
        number: number of the search trial that the configuration comes from, 0 for the pinned one; None
            without a search.
        after: the round from which it continues.
    """

    trial: Trial
    number: int | None
    after: int = 0

    @property
    def keys(self) -> list[str]:
        return self.trial.keys

    @property
    def runs(self) -> Iterator[tuple[int, str]]:
        """The seed and the key of each simulation."""
        return zip(self.trial.seeds, self.keys, strict=True)

    def open(self, settled: Set[str], together: bool) -> Trial | None:
        """The trial of the pending seeds, or of the first of them; None if none is pending."""
        pending = tuple(seed for seed, key in self.runs if key not in settled)
        seeds = pending if together else pending[:1]
        if not seeds:
            return None
        if seeds == self.trial.seeds:  # its keys are cached
            return self.trial
        return dataclasses.replace(self.trial, seeds=seeds)


class CellScheduler:
    """One cell: its pinned configuration with all seeds, the search, then the selected configuration.

    Args:
        prior: trials of other searches, from which the cell's search begins.

    Attributes:
        partition: the partition of all seeds, or of the first.
        proposer: that of the search; None without a search.
        searched: the steps of the search so far.
        selection: what the search decided; None before its end or without a search.
        selected: the configuration that it chose, which may be `pinned` itself; None in the same cases.
        stopped: the trials that the search stopped at the last rung, except failed ones.
        seen: keys of the records that the cell has received.
        moment: the reported moment.
        curves: the moments that the cell needs at every evaluation, not only at the last one.
        values: validation accuracies, in percent, of the first steps of the search; None for a failed step.
    """

    def __init__(
        self,
        cell: Cell,
        table: Table,
        division: Division,
        curves: bool = False,
        prior: Sequence[PriorTrial] = (),
    ):
        self.cell = cell
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
            partition_checksum={seed: drawn.checksum for seed, drawn in division.items()}
            if isinstance(division, Mapping)
            else partition.checksum,
            behaviour=self._behaviour(cell.config),
            moment=self.moment,
            moments=(self.moment,),
        )
        self._imported = len(prior)
        self.proposer = Proposer(cell.config, cell.search, prior) if cell.search else None
        if self.proposer and cell.search:
            plan = plan_of(cell.config, cell.search, table.seeds)
            self._search = search(self.proposer, plan)
            self._planned = planned(plan)
        self.pinned = Candidate(self._base, PINNED_TRIAL if self.proposer else None)
        self.searched: list[Candidate] = []
        self.values: list[float | None] = []
        self.selection: Selection | None = None
        self.selected: Candidate | None = None
        self.stopped: list[Trial] = []
        self.seen: set[str] = set()

    def keep(self, keys: Set[str]) -> None:
        """Leave out the seeds of the pinned configuration whose keys are not among ``keys``."""
        seeds = tuple(seed for seed, key in self.pinned.runs if key in keys)
        trial = dataclasses.replace(self.pinned.trial, seeds=seeds)
        self.pinned = dataclasses.replace(self.pinned, trial=trial)

    @property
    def candidates(self) -> list[Candidate]:
        chosen = [self.selected] if self.selected and self.selected is not self.pinned else []
        return [self.pinned, *self.searched, *chosen]

    @property
    def rung(self) -> list[Candidate]:
        """The steps of the search whose outcomes it has not yet received."""
        return self.searched[len(self.values) :]

    @property
    def keys(self) -> set[str]:
        """The keys of this cell's simulations so far; other cells may share them."""
        return {key for candidate in self.candidates for key in candidate.keys}

    @property
    def to_come(self) -> int:
        """Number of simulations that the search may still request; fewer if it selects the pinned
        configuration.
        """
        if self.proposer is None or self.selection:
            return 0
        return len(self.steps_to_come) + len(self._table.seeds)

    @property
    def steps_to_come(self) -> Steps:
        """The steps that the search may still ask for, in their order."""
        return [] if self.proposer is None or self.selection else self._planned[len(self.searched) :]

    @property
    def total(self) -> int:
        return len(self.keys) + self.to_come

    @property
    def finished(self) -> bool:
        searched_out = self.proposer is None or self.selection is not None
        return searched_out and self.keys <= self.seen

    def accepts(self, record: Record) -> bool:
        """Whether ``record``, which may belong to another cell, has everything that this cell reads."""
        if record.failed:
            return True
        metrics = record.metrics
        # A paused run has only the moments that its table asked for, even at the last evaluation.
        moment = self.cell.evaluation.moment_of(metrics.headline)
        return moment in metrics.moments and not metrics.lacks(self.curves)

    def advance(self, outcomes: Mapping[str, Record]) -> bool:
        """Pass a finished rung to the search and take its next steps; return whether anything is new."""
        if self.proposer is None or self.selection:
            return False
        rung = self.rung
        if not all(candidate.keys[0] in self.seen for candidate in rung):
            return False
        ended = [self._outcome(outcomes[candidate.keys[0]]) for candidate in rung]
        self.values += [outcome.value for outcome in ended]
        steps: Steps = []
        try:
            steps = self._search.send(ended) if rung else next(self._search)
        except StopIteration as end:
            self.selection = end.value
            self.selected = self._selected(end.value.trial)
        self.searched += map(self._candidate, steps)
        going_on = {step.trial for step in steps if step.after}
        self.stopped = [
            candidate.trial
            for candidate, outcome in zip(rung, ended, strict=True)
            if candidate.trial.until and candidate.number not in going_on and outcome.value is not None
        ]
        return True

    def _candidate(self, step: SearchStep) -> Candidate:
        assert self.proposer and self.cell.search
        config = on_validation(self.proposer.config(step.trial), self.cell.search.validation)
        until = None if step.until == config.rounds else step.until
        trial = self._trial(config, phase="search", seeds=(step.seed,), until=until)
        return Candidate(trial, step.trial, step.after)

    def _selected(self, trial: int) -> Candidate:
        assert self.proposer
        if trial == PINNED_TRIAL:
            return self.pinned
        return Candidate(self._trial(self.proposer.config(trial)), trial)

    def trial_result(self, candidate: Candidate, outcomes: Mapping[str, Record]) -> TrialResult:
        """The records of a configuration so far."""
        number = candidate.number
        params = self.proposer.asked[number] if self.proposer and number is not None else {}
        records = tuple(outcomes[key] for key in candidate.keys if key in outcomes)
        lacking = {record.key: why for record in records if (why := self._lack(record))}
        return TrialResult(number, params, records, lacking)

    def result(self, outcomes: Mapping[str, Record]) -> CellResult:
        """The records of the cell so far, and the selection of its search."""

        def part(candidate: Candidate) -> TrialResult:
            return self.trial_result(candidate, outcomes)

        return CellResult(
            cell=self.cell.id,
            evaluation=self.cell.evaluation,
            pinned=part(self.pinned),
            selected=part(self.selected) if self.selected else None,
            searched=tuple(part(candidate) for candidate in self.searched if candidate.keys[0] in outcomes),
            selection=self.selection,
            imported=self._imported,
        )

    def _trial(self, config: Config, **changes: Any) -> Trial:
        """The final trial of another configuration, with ``changes`` to other fields."""
        behaviour = self._behaviour(config)
        return dataclasses.replace(self._base, config=config.to_dict(), behaviour=behaviour, **changes)

    def _behaviour(self, config: Config) -> str:
        return name_of(config, *images(self.cell.dataset))

    def _lack(self, record: Record) -> str | None:
        return None if record.failure else lack(record, self.cell.evaluation)

    def _outcome(self, record: Record) -> Outcome:
        assert self.cell.search
        if record.failed or self._lack(record):
            return Outcome(None, None)
        value = WORST if record.failure else reported(record, self.cell.evaluation)
        further = others(self.cell.search.objectives, record)
        return Outcome(value, record.measured.samples, further, record.metrics.diverged_at)
