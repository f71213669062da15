"""The configurations that a table's search selected, as a new table that pins them."""

from __future__ import annotations

from typing import Any

from pfl.core.errors import InvalidInput
from pipeline.formatting import gain
from pipeline.spec.extends import has_entry
from pipeline.spec.search_space import PINNED_TRIAL, TRAINING
from pipeline.spec.yaml import dumped
from pipeline.store.results import CellResult, Results


def export(results: Results) -> str:
    """A table in YAML without a search: every cell pins the configuration that its search selected and names
    the search as the source.

    Cells that were not part of the sweep keep their pinned configuration.

    Raises:
        InvalidInput: the sweep had no search.
    """
    searched = [cell for cell in results.cells if cell.selection]
    if not searched:
        raise InvalidInput("table", results.table, "a table with a search")
    table = results.config.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    table.pop("search", None)
    rows = {row.id: values for row, values in zip(results.config.methods, table["methods"], strict=True)}
    for values in rows.values():
        values.pop("search", None)
    stated = table.get("sources", {})
    sources = table["sources"] = {key: text for key, text in stated.items() if has_entry(table, key)}
    for cell in searched:
        if pins := _pins(cell):
            override = rows[cell.row].setdefault("settings", {}).setdefault(cell.setting, {})
            for key, values in pins.items():
                override[key] = {**override.get(key, {}), **values}
        sources[f"methods.{cell.row}.settings.{cell.setting}"] = _source(cell, results)
    return dumped(table)


def _pins(cell: CellResult) -> dict[str, dict[str, Any]]:
    """Keys that pin the selected trial; empty if the pinned configuration was selected."""
    assert cell.selection
    if cell.selection.trial == PINNED_TRIAL:
        return {}
    params = next(step.params for step in cell.search if step.trial == cell.selection.trial)
    schedule = {name: value for name, value in params.items() if name in TRAINING}
    own = {name: value for name, value in params.items() if name not in TRAINING}
    return {key: values for key, values in (("params", own), ("schedule", schedule)) if values}


def _source(cell: CellResult, results: Results) -> str:
    """One line that states the search, its number of trials, and the reason for the selection."""
    assert cell.selection
    trials = len({step.trial for step in cell.search})
    sources = results.sources
    code = sources.name if sources.version else f"commit {sources.commit[:12]}"
    search = f"the search of {results.table} ({code}, {trials} trials)"
    if cell.selection.trial == PINNED_TRIAL:
        return f"our choice: the pinned configuration, because {search} found no better one"
    (chosen,) = cell.selection.comparisons
    better = f"better by {gain(chosen.gain, chosen.error)} points on validation data"
    return f"our choice: trial {chosen.trial}, because {search} found it {better}"
