"""`pfl reproduce`: check as many of a table's published numbers as time allows."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pfl.core.errors import InvalidInput, check_names
from pfl.core.files import check_writable
from pfl.core.text import amount
from pipeline.formatting import duration
from pipeline.report.provenance import out_option
from pipeline.report.reproduction_page import write_page
from pipeline.report.summary import summarise
from pipeline.spec.paths import results_folder
from pipeline.spec.table import Subset, Table, load_table
from pipeline.store.ledger import Ledger
from pipeline.store.results import failures
from pipeline.store.workspace import current_sources, table_lock
from pipeline.sweep import outputs
from pipeline.sweep.check import check_runs, device_of, slots_here
from pipeline.sweep.environment import check_environment
from pipeline.sweep.estimate import dry_runs
from pipeline.sweep.preparation import available_settings, described, download, partition
from pipeline.sweep.priorities import RULE, PendingRun, RunPlan, comparable_cells, plan, time_of
from pipeline.sweep.scheduler import Scheduler, scheduler_of
from pipeline.sweep.stopping import stoppable
from pipeline.sweep.train_sweep import OutOfTime, run

SHOWN = 8
"""Number of runs listed before the start."""


def reproduce(name: str, hours: float, settings: Sequence[str] = (), out: Path | None = None) -> str:
    """Compute the most informative pending cells of a paper's table, and write a page on what was checked.

    The records go to the ledger, so a later call continues where this one stopped.

    Args:
        hours: time limit of the computation. With 0, the page shows what the ledger has.
        settings: the columns; by default all.
        out: the page's folder; by default ``results/<table>/reproduction``.

    Returns:
        A line with the number of failed runs; empty if none failed. The next call retries them.

    Raises:
        InvalidInput: the time is not a number of hours, the table has no published numbers, the page cannot
            be written, or as in the stages.
    """
    if not hours >= 0:  # also rejects NaN
        raise InvalidInput("--hours", hours, "a non-negative number of hours")
    whole = _pinned(load_table(name))
    check_names("--settings", settings, whole.settings)
    subset = Subset(settings=list(settings))
    part = whole.part(subset)
    if not comparable_cells(part):
        raise InvalidInput("table", name, "a table with published numbers that can be compared")
    default = results_folder(name) / "reproduction"
    folder = out or default
    check_writable(folder / "README.md", "--out")
    for warning in check_runs(name, part, whole=whole):
        print(f"pfl: warning: {name}: {warning}", file=sys.stderr)
    if hours:
        check_environment()
    with table_lock(name), stoppable(name):
        _prepare(name, part)
        began = time.monotonic()
        scheduler = scheduler_of(name, part, Ledger(current_sources(name)))
        planned, computed = _compute(name, part, scheduler, hours)
    seconds = time.monotonic() - began
    scheduler.cells = [cell for cell in scheduler.cells if cell.seen]
    results = outputs.outcome(name, whole, subset, scheduler, described(name, part), seconds)
    left = [pending for pending in planned.runs if pending.key not in computed]
    more = f"{amount(len(left), 'run')} more would take about {duration(time_of(left, planned.slots))}"
    facts = {
        "hours": f"{hours:g}",
        "took": duration(seconds),
        "runs": len(computed),
        "left": more if left else "",
        "rule": RULE,
        "command": f"pfl reproduce {name} --hours {hours:g}"
        + (f" --settings {','.join(settings)}" if settings else "")
        + out_option(folder, default),
    }
    left_out = [setting for setting in whole.settings if setting not in part.settings]
    write_page(folder, summarise(results), computed, _by_cell(left), left_out, facts)
    print(f"{folder}/README.md")
    return failures(results)


def _prepare(name: str, part: Table) -> None:
    """Run the download and partition stages."""
    try:
        download(name, part)
    except InvalidInput:
        if here := available_settings(part):
            print(f"{name}: columns whose data are here: --settings {','.join(here)}", file=sys.stderr)
        raise
    partition(name, part)


def _compute(name: str, part: Table, scheduler: Scheduler, hours: float) -> tuple[RunPlan, set[str]]:
    """Choose and compute pending runs; return the plan, and the keys of those that gave a result."""
    numbers = {f"{setting}/{row}" for setting, row in comparable_cells(part)}
    scheduler.keep({key for cell in scheduler.cells if cell.cell.id in numbers for key in cell.keys})
    slots, device = slots_here(part.resources), device_of(part.resources).type
    expected = dry_runs(scheduler, device)
    planned = plan(scheduler, part, expected, slots, 3600 * hours)
    served = set(scheduler.outcomes)
    print("\n".join(_announced(name, len(served), planned, hours)), flush=True)
    scheduler.keep([*served, *(pending.key for pending in planned.chosen)])
    try:
        run(name, scheduler, expected, 3600 * hours)
    except OutOfTime:
        print(f"{name}: stopped after {hours:g} h; the same command continues")
    ended = {key for key, record in scheduler.outcomes.items() if not record.failed}
    return planned, ended - served


def _by_cell(runs: Sequence[PendingRun]) -> dict[str, list[float]]:
    """The expected seconds of each cell's missing runs."""
    lacking: dict[str, list[float]] = {}
    for pending in runs:
        for cell in pending.cells:
            lacking.setdefault(cell, []).append(pending.seconds)
    return lacking


def _pinned(table: Table) -> Table:
    """The table without searches: published numbers are compared with the pinned configurations."""
    rows = [row.model_copy(update={"search": None}) for row in table.methods]
    return table.model_copy(update={"search": None, "methods": rows})


def _announced(name: str, served: int, planned: RunPlan, hours: float) -> list[str]:
    """Lines on the runs to compute, and on the others, with their costs.

    Args:
        served: number of runs that the ledger has.
    """
    total = amount(served + len(planned.runs), "run")
    lines = [f"{name}: the published numbers need {total}, {served} of them from the ledger"]
    for heading, runs in (
        ("computed now", planned.chosen),
        (f"not within {hours:g} h", planned.left_out),
    ):
        if runs:
            first = f"; the first of {len(runs)}" if len(runs) > SHOWN else ""
            took = duration(time_of(runs, planned.slots))
            lines.append(f"{heading}: {amount(len(runs), 'run')}, about {took}{first}:")
            lines += [f"  {run.cells[0]}, seed {run.seed}: {duration(run.seconds)}" for run in runs[:SHOWN]]
    return lines
