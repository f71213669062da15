"""Results of a table from the ledger alone: nothing is run. Only `pending` reads `params.yaml`.

`dvc exp run` and `dvc checkout` remove the files of a stage from the workspace if `params.yaml` no longer
selects its table. The ledger keeps every record, so results are assembled again when they are read.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pfl.core.text import amount
from pfl.run.runs import Runs
from pipeline.spec.params import load_part
from pipeline.spec.paths import REPORTS, results_folder
from pipeline.spec.table import Subset, Table, load_table
from pipeline.store.ledger import Ledger
from pipeline.store.results import Results, load_results
from pipeline.store.workspace import current_sources, table_lock
from pipeline.sweep import outputs
from pipeline.sweep.cell_scheduler import CellScheduler
from pipeline.sweep.preparation import available_settings, columns_here, described, download, partition
from pipeline.sweep.scheduler import Scheduler, scheduler_of

log = logging.getLogger(__name__)


def results(table: str) -> Runs:
    """A table's simulations, one for each cell and seed, as frames and plots.

    A searched cell has those of its selected configuration. They come from the latest sweep, in ``results/``,
    or else from the ledger.

    >>> frame = pfl.results("digits").to_frame("summary")
    >>> frame[["setting", "row", "seed", "pooled"]].round(1).to_dict("records")[0]
    {'setting': 'dir', 'row': 'fedavg', 'seed': 0, 'pooled': 87.0}

    Raises:
        InvalidInput: the table has no results here.
    """
    return Runs(
        tuple(
            replace(record.success, labels={"setting": cell.setting, "row": cell.row, "seed": record.seed})
            for cell in results_of(str(table)).cells
            for record in (cell.selected or cell.pinned).successes
        )
    )


def results_of(name: str) -> Results:
    """The results of a table's latest sweep, or from the ledger if ``results/<table>/`` does not have them.

    A warning counts the cells that the ledger lacks.

    Raises:
        InvalidInput: there are neither, or the table is not valid.
    """
    written = (results_folder(name) / "results.json").exists()
    return (None if written else assembled(name)) or load_results(name)


def assembled(name: str) -> Results | None:
    """The results of a table from the ledger, as `collect` writes them; None without any cell.

    Raises:
        InvalidInput: the table is not valid.
    """
    if not (held := _held(name)):
        return None
    return held.outcome(name)


def collect(name: str) -> int:
    """Write `results/<table>/` from the ledger, and return its number of cells.

    A cell is included if the ledger has all its records, whichever table they were computed for. The seeds of
    a column are those that all its cells have, or the table's if there is a search. Without any cell, nothing
    is written.

    Raises:
        InvalidInput: the table is not valid, or another command is using it.
    """
    with table_lock(name):
        if not (held := _held(name)):
            return 0
        download(name, held.part)
        partition(name, held.part)
        outputs.write(held.outcome(name), held.scheduler)
    return len(held.scheduler.cells)


def lacking(name: str) -> str:
    """Why `collect` finds no cell."""
    whole = load_table(name)
    if not available_settings(whole):
        return f"its data are not here: {', '.join(dict.fromkeys(whole.datasets.values()))}"
    held, published = "no cell of the current code", REPORTS / name
    if any(record.phase == "search" for record in Ledger(current_sources(name)).heads(name)):
        held = "only searches that are unfinished or of an earlier version"
    why = f"the ledger has {held}; `pfl ledger why {name}` lists the runs"
    return f"{why}; the published report is in {published}" if published.is_dir() else why


def pending(name: str) -> Scheduler:
    """The scheduler of the part of a table that `params.yaml` selects.

    Columns whose data are not available are left out with a warning.

    Raises:
        InvalidInput: no data of the table are available.
    """
    table = load_part(name)
    settings = columns_here(name, table)
    if absent := [setting for setting in table.settings if setting not in settings]:
        log.warning("%s: left out, as their data are not here: %s", name, ", ".join(absent))
    return scheduler_of(name, table.part(Subset(settings=settings)), Ledger(current_sources(name)))


@dataclass(frozen=True)
class _Held:
    """What the ledger holds of a table.

    Attributes:
        part: the settings, rows and seeds of finished cells.
        subset: the seeds of ``part``, or nothing if they are the table's.
        scheduler: the scheduler of the finished cells.
    """

    whole: Table
    part: Table
    subset: Subset
    scheduler: Scheduler

    def outcome(self, name: str) -> Results:
        """The results of the table; cells that the ledger lacks are missing, not deselected."""
        return outputs.outcome(name, self.whole, self.subset, self.scheduler, described(name, self.part))


def _held(name: str) -> _Held | None:
    """What the ledger holds of a table; None if it holds no cell, or no data are available."""
    whole = load_table(name)
    if not (settings := available_settings(whole)):
        return None
    scheduler = scheduler_of(name, whole.part(Subset(settings=settings)), Ledger(current_sources(name)))
    if not whole.searches:
        scheduler.keep(_keys_of_shared_seeds(scheduler.cells))
    finished = [cell for cell in scheduler.cells if cell.finished]
    if not finished:
        return None
    _report_missing(name, scheduler)
    scheduler.cells = finished
    there = {seed for cell in finished for seed in cell.pinned.trial.seeds}
    seeds = [seed for seed in whole.seeds if seed in there]
    subset = whole.subset(
        {cell.cell.setting for cell in finished}, {cell.cell.row for cell in finished}, seeds
    )
    return _Held(whole, whole.part(subset), Subset(seeds=subset.seeds), scheduler)


def _report_missing(name: str, scheduler: Scheduler) -> None:
    """Log a line on what the results lack."""
    missing = [cell for cell in scheduler.cells if not cell.finished]
    if missing:
        unknown = [cell for cell in missing if cell.proposer and set(cell.pinned.keys) <= cell.seen]
        searches = f" ({amount(len(unknown), 'search', 'es')} without a known selection)" if unknown else ""
        log.warning(
            "%s: the ledger lacks %d of %s%s; `pfl ledger why %s` lists them",
            name,
            len(missing),
            amount(len(scheduler.cells), "cell"),
            searches,
            name,
        )


def _keys_of_shared_seeds(cells: Sequence[CellScheduler]) -> Iterator[str]:
    """The keys of each column's seeds: those that all its cells with the first seed have, or all if no cell
    has the first.
    """
    columns: dict[str, list[CellScheduler]] = {}
    for cell in cells:
        columns.setdefault(cell.cell.setting, []).append(cell)
    for column in columns.values():
        held = [{seed for seed, key in cell.pinned.runs if key in cell.seen} for cell in column]
        begun = [seeds for seeds in held if column[0].pinned.trial.seeds[0] in seeds]
        for cell in column:
            yield from (key for seed, key in cell.pinned.runs if all(seed in seeds for seeds in begun))
