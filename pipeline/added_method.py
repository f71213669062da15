"""`pfl leaderboard add`: a method's rank on a leaderboard, tuned with the same budget."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill

from pfl.core.errors import Conflict, InvalidInput
from pipeline.compare import extension, run_row
from pipeline.formatting import points
from pipeline.report.formats import aligned
from pipeline.report.leaderboard import LEVEL, RULE, Board, board
from pipeline.report.summary import summarise
from pipeline.report.table_report import write_report
from pipeline.spec.paths import table_names
from pipeline.spec.table import load_table
from pipeline.sweep.collection import assembled, results_of
from pipeline.sweep.preparation import columns_here


def add(base: str, method: str) -> tuple[Board, Path]:
    """The leaderboard ``base`` with an additional method, and the folder of its report.

    Only the pending runs of the method are computed; all others come from the ledger. The report of ``base``
    does not change.

    Raises:
        InvalidInput: ``base`` is not a leaderboard or has no runs here, there is no such method, or ``base``
            already has it.
    """
    table = load_table(base) if base in table_names() else None
    if table is None or table.report != "leaderboard":
        boards = [name for name in table_names() if load_table(name).report == "leaderboard"]
        new = "a leaderboard, as in a project of `pfl init FOLDER --table leaderboard-digits --results`"
        raise InvalidInput("--table", base, ", ".join(boards) or new)
    settings = columns_here(base, table)
    if not ((known := assembled(base)) and board(summarise(known))):
        accepted = (
            f"a table whose runs are in results/ledger/; `pfl init --table {base} --results` copies them"
        )
        raise InvalidInput("--table", base, accepted)
    name = extension(f"{base}-with-{method}", base, method, {"methods": [*table.row_labels, method]})
    run_row(name, method, settings)
    with_method = board(summarise(results_of(name)))
    if not with_method or method not in {standing.row for standing in with_method.standings}:
        raise Conflict("method", f"runs of {method} failed", f"`pfl ledger why {name}` lists them")
    return with_method, write_report(name)


def text(board: Board, method: str) -> str:
    """Text for a terminal: a line per method, and the rank of ``method``."""
    label = board.summary.labels[method]
    grid = [("", "", "mean rank", "accuracy", f"minus {label}", "gain from tuning")]
    for standing in board.standings:
        marks = f"{'→' if standing.row == method else ''} {standing.place}"
        rank = points(standing.rank) + (f" {LEVEL}" if standing.level else "")
        gap = standing.difference.shown if standing.difference and standing.row != method else ""
        gain = ""
        if standing.gain:
            gain = standing.gain.shown if standing.tuned else "pinned kept"
        grid.append((marks, standing.label, rank, points(standing.accuracy), gap, gain))
    own = next(standing for standing in board.standings if standing.row == method)
    place = f"{label} is ranked {own.place} of {len(board.standings)}."
    return "\n".join([*aligned(grid), "", place, "", fill(RULE, 100), ""])
