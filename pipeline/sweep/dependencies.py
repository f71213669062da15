"""Dependencies of a table's sweep other than the files that dvc.yaml names."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from pfl.core.digests import Code
from pfl.core.syntax import top_level
from pfl.methods import METHODS
from pipeline.algorithms import ALGORITHMS
from pipeline.columns import COLUMNS
from pipeline.spec.cells import Cell, cells
from pipeline.spec.fingerprints import named_behaviours
from pipeline.spec.imported_trials import imported_trials, prior_text
from pipeline.spec.search_space import searched
from pipeline.spec.table import Table
from pipeline.store.ledger import Ledger

ROOTS = ("pipeline.sweep.scheduler", "pipeline.sweep.outputs")
"""Modules that determine, with everything that they import, the trials of a sweep and its reported numbers.
"""


def dependencies(name: str, table: Table, ledger: Ledger) -> dict[str, Any]:
    """The content of the file on which a table's sweep stage depends: the fingerprints of the trials' code,
    the code of the sweep, the search ranges, the version of the sampler, the imported trials, and the records
    that must not be used.
    """
    wanted = cells(name, table)
    ranges = {cell.id: _ranges(cell) for cell in wanted if cell.search}
    parts = {METHODS.module(cell.config.method) for cell in wanted}
    searches = [cell.search for cell in wanted if cell.search]
    parts |= {ALGORITHMS.module(search.algorithm) for search in searches}
    parts |= {COLUMNS.module(name) for search in searches for name in search.objectives[1:]}
    modules = sorted(parts)
    return {
        "behaviours": named_behaviours(wanted),
        "code": code_digest(Code(["pipeline", *map(top_level, modules)]), modules),
        "ranges": ranges,
        "optuna": version("optuna") if ranges else None,
        "imported": {cell: prior_text(trials) for cell, trials in imported_trials(wanted).items()} or None,
        "damaged": sorted(map(str, ledger.damaged)),
        "refused": sorted(ledger.refused),
    }


def code_digest(code: Code, modules: Sequence[str] = ()) -> str:
    """The digest of the code of a sweep.

    Args:
        modules: those of its methods and search algorithms. They are included because fingerprints do not
            cover which accuracy a method reports and when a search may stop it.
    """
    return code.digest(code.reached([*ROOTS, *modules]))


def _ranges(cell: Cell) -> dict[str, list[Any]]:
    """The range, or the choices, of each searched parameter, whether its scale is logarithmic, and the
    condition under which it is searched."""
    assert cell.search
    return {
        parameter: [declared.search, declared.log, declared.when]
        for parameter, declared in searched(cell.config, cell.search).items()
    }
