"""Progress display of a sweep: finished runs, rounds, best result per cell so far, and time left."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from pfl.run.trials import Trial
from pipeline.formatting import duration
from pipeline.store.heartbeat import reached
from pipeline.store.scores import score
from pipeline.sweep.estimate import Running, TimeLeft

if TYPE_CHECKING:
    from rich.console import Group

    from pipeline.sweep.cell_scheduler import Candidate, CellScheduler
    from pipeline.sweep.scheduler import Scheduler

SECONDS_BETWEEN_LINES = 60
SECONDS_AT_START = 10  # between lines, until the first run has finished
CELLS_SHOWN = 12


class Progress:
    """A live display on a terminal; otherwise, a line per finished cell and one at regular intervals."""

    def __init__(self, table: str, scheduler: Scheduler):
        self._table = table
        self._scheduler = scheduler
        # The running stacks, the most advanced first, without those that Tune has only queued, and whether
        # one of them trains. Set at once, because other threads read it.
        self._under_way: tuple[Sequence[Running], bool] = (), False
        self._reported = {id(cell) for cell in scheduler.cells if cell.finished}
        self._began = self._last_summary = time.monotonic()
        self._time_left: TimeLeft | None = None
        self._ended = threading.Event()
        self._clock = threading.Thread(target=self._tell_regularly, daemon=True)
        self._live = None
        if sys.stdout.isatty():
            from rich.live import Live

            self._live = Live(get_renderable=self._picture, refresh_per_second=4, transient=True)

    def __enter__(self) -> Progress:
        if self._live:
            self._live.start()
        else:
            self._clock.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()
        else:
            self._ended.set()
            self._clock.join()

    def expect(self, left: TimeLeft, line: str) -> None:
        """Show ``line`` and, from now on, the time left."""
        self._time_left = left
        self._say(line)

    def update(self, slots: int, under_way: Sequence[Sequence[Trial]]) -> None:
        """Show the scheduler's progress; see `pipeline.sweep.cluster.Watch`."""
        rounds = [reached(trials) for trials in under_way]
        training = any(round is not None for round in rounds)
        running = [Running(trials, round or 0) for trials, round in zip(under_way, rounds, strict=True)]
        if self._time_left:
            self._time_left.update(time.monotonic(), slots, running)
        self._under_way = sorted(running, key=lambda stack: stack.part, reverse=True)[:slots], training
        for cell in self._scheduler.cells:
            if cell.finished and id(cell) not in self._reported:
                self._reported.add(id(cell))
                self._say(
                    f"[{self._scheduler.done}/{self._scheduler.total}] {cell.cell.id}: {self._scores(cell)}"
                )

    def tick(self) -> None:
        """Show a line if enough time has passed since the last one."""
        interval = SECONDS_BETWEEN_LINES if self._scheduler.ran else SECONDS_AT_START
        if time.monotonic() - self._last_summary >= interval:
            self._last_summary = time.monotonic()
            self._say(self._summary(*self._under_way))

    def _tell_regularly(self) -> None:
        with suppress(OSError):  # the reader of the output has exited
            while not self._ended.wait(0.5):
                self.tick()

    def _say(self, line: str) -> None:
        if self._live:
            self._live.console.print(line, highlight=False, markup=False)
        else:
            print(line, flush=True)

    def _summary(self, running: Sequence[Running], training: bool) -> str:
        scheduler = self._scheduler
        text = f"{self._table}: {scheduler.done} of {scheduler.total} runs"
        if scheduler.served:
            text += f", {scheduler.served} of them from the ledger"
        if training:
            span = " to ".join(
                dict.fromkeys(f"{100 * stack.part:.0f}" for stack in (running[-1], running[0]))
            )
            text += f", {len(running)} under way ({span} % of their rounds)"
        elif not scheduler.ran:
            text += f", starting ({duration(round(time.monotonic() - self._began))})"
        left = self._time_left.seconds if self._time_left else None
        if left is not None and scheduler.done < scheduler.total:
            text += f", about {duration(left)} left"
        return text

    def _scores(self, cell: CellScheduler) -> str:
        """For example "pinned 91.20 ± 0.43 %, selected 93.05 ± 0.51 %"."""
        candidates = {"pinned": cell.pinned, "selected": cell.selected}
        if cell.selected is cell.pinned:
            del candidates["selected"]
        return ", ".join(
            f"{name} {self._score(cell, candidate)}" for name, candidate in candidates.items() if candidate
        )

    def _so_far(self, cell: CellScheduler) -> str:
        """For example "pinned 91.20 %, best of the search 93.05 % on validation data"."""
        texts = []
        if any(key in cell.seen for key in cell.pinned.keys):
            texts.append(f"pinned {self._score(cell, cell.pinned)}")
        values = [value for value in cell.values if value is not None]
        if values:
            texts.append(f"best of the search {max(values):.2f} % on validation data")
        return ", ".join(texts)

    def _score(self, cell: CellScheduler, candidate: Candidate) -> str:
        trial, evaluation = cell.trial_result(candidate, self._scheduler.outcomes), cell.cell.evaluation
        result = score(trial.successes, evaluation)
        if result is None:
            return "diverged" if trial.diverged == trial.records else "failed"
        spread = "" if result.std is None else f" ± {result.std:.2f}"
        return f"{result.mean:.2f}{spread} {evaluation.unit}"

    def _picture(self) -> Group:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        rounds: dict[str, list[int]] = {}
        running, training = self._under_way
        for stack in running:
            for name in {trial.cell for trial in stack.trials}:
                rounds.setdefault(name, []).append(stack.round)
        begun = [
            cell
            for cell in self._scheduler.cells
            if cell.cell.id in rounds or (cell.seen and not cell.finished)
        ]
        cells = Table.grid(padding=(0, 2))
        for cell in begun[:CELLS_SHOWN]:
            at = ", ".join(map(str, rounds.get(cell.cell.id, ())))
            place = f"round {at} of {cell.cell.config.rounds}" if at else ""
            cells.add_row(cell.cell.id, f"{len(cell.seen)} of {cell.total}", place, self._so_far(cell))
        trained = sum(stack.part * len(trial.seeds) for stack in running for trial in stack.trials)
        bar = ProgressBar(total=self._scheduler.total, completed=self._scheduler.done + trained, width=30)
        total = Table.grid(padding=(0, 2))
        total.add_row(bar, self._summary(running, training))
        return Group(cells, total)
