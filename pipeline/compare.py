"""`pfl compare`: tables side by side, or a method among the rows of a table."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

from pfl.core.errors import InvalidInput, Missing, check_names
from pfl.core.files import write_text
from pfl.methods import METHODS
from pipeline.report.comparison import ComparedColumn, compare_rows, compare_tables
from pipeline.report.summary import summarise
from pipeline.spec.paths import TABLES, table_file, table_names
from pipeline.spec.table import Subset, load_table
from pipeline.spec.yaml import dumped
from pipeline.sweep.check import check_runs
from pipeline.sweep.collection import collect, results_of
from pipeline.sweep.environment import check_environment
from pipeline.sweep.preparation import columns_here, download, partition
from pipeline.sweep.train_sweep import sweep

if TYPE_CHECKING:
    from pandas import DataFrame

log = logging.getLogger(__name__)


def compare(*tables: str, method: str | None = None, settings: Collection[str] = ()) -> DataFrame:
    """A data frame with a row per cell, with paired differences and their 95 % intervals.

    >>> frame = pfl.compare("digits", "digits-tuned")
    >>> frame[["setting", "row", "table", "mean", "difference"]].round(1).iloc[-1].to_dict()
    {'setting': 'dir', 'row': 'FedProx', 'table': 'digits-tuned', 'mean': 90.0, 'difference': 3.0}

    Args:
        tables: two or more, the first of which is subtracted from the others; exactly one with ``method``.
        method: run in a table that extends the given one (`with_method`), and subtracted from its rows.
        settings: the columns; by default all or, with ``method``, those whose data are available.

    Raises:
        InvalidInput: a table has no results here, no cell is in two tables, or a name is unknown.
    """
    from pandas import DataFrame

    columns = compared(tables, method, settings)
    return DataFrame([cell.columns for column in columns for cell in column.cells])


def compared(
    tables: Collection[str], method: str | None = None, settings: Collection[str] = ()
) -> list[ComparedColumn]:
    """What `compare` returns, as columns for printing."""
    if any(not isinstance(name, str) for name in tables) or isinstance(settings, str):
        raise InvalidInput("tables and settings", (*tables, settings), "names, as in compare('a', 'b')")
    if method is None:
        if len(set(tables)) < max(2, len(tables)):
            raise InvalidInput("tables", ", ".join(tables), "several different tables, or one and --method")
        summaries = [summarise(results_of(name)) for name in tables]
        check_names("settings", settings, {name for summary in summaries for name in summary.table.settings})
        return compare_tables(summaries, settings)
    if len(tables) != 1:
        raise InvalidInput("tables", ", ".join(tables), "one table, in which the method is run")
    (base,) = tables
    known = load_table(base)
    check_names("settings", settings, known.settings)
    chosen = list(settings) or columns_here(base, known)
    name = with_method(base, method)
    run_row(name, method, chosen)
    return compare_rows(summarise(results_of(name)), method, chosen)


def with_method(base: str, method: str) -> str:
    """Write a table that extends ``base`` by a row, unless its file exists, and return its name.

    It has the base's rows, pinned, without searches and claims.

    Raises:
        InvalidInput: there is no such method or table, or the base already has that row.
    """
    table = load_table(base)
    removed = {key: None for key in ("search", "claims", "report") if getattr(table, key)}
    rows: list[Any] = []
    for row in table.methods:
        name = {"as": row.id} if row.name else {"method": row.id}
        rows.append({**name, "search": None} if row.search else row.id)
    return extension(f"{base}-{method}", base, method, {"methods": [*rows, method], **removed})


def extension(name: str, base: str, method: str, changes: Mapping[str, Any]) -> str:
    """Like `with_method`, with a ``name`` and ``changes`` to the keys of its file, including ``methods``."""
    table = load_table(base)
    check_names("method", [method], METHODS)
    if method in table.row_labels:
        raise InvalidInput("method", method, f"a method that is not in {base}")
    if name not in table_names():
        file = TABLES / f"{name}.yaml"
        title = f"{table.title}, with {method}"
        write_text(file, dumped({"extends": base, "title": title, "reference": method, **changes}))
        print(f"{file} is new; commit it first: only runs of committed tables are copied to results/ledger/")
        return name
    file, rows = table_file(name), load_table(name).row_labels
    if method not in rows:
        raise Missing(str(file), f"no row {method}", f"{method} under 'methods'")
    if lacking := [row for row in table.row_labels if row not in rows]:
        log.warning("%s lacks rows that %s has: %s", file, base, ", ".join(lacking))
    return name


def run_row(name: str, row: str, settings: Collection[str]) -> None:
    """Run the pending simulations of a row, and write `results/<table>/` with everything in the ledger.

    Raises:
        InvalidInput: as in the stages.
    """
    whole = load_table(name)
    subset = Subset(settings=list(settings), methods=[row])
    part = whole.part(subset)
    for warning in check_runs(name, part, whole=whole):
        log.warning("%s: %s", name, warning)
    check_environment()
    download(name, part)
    partition(name, part)
    if failed := sweep(name, subset):
        log.warning("%s: %s", name, failed)
    with redirect_stdout(None):  # the stages have already described the data
        collect(name)
