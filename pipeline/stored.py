"""JSON files that an earlier command wrote: whole, or as if they were not there."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from pfl.errors import InvalidInput
from pipeline.config import Table, manifest_file


def stored(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None where there is no file, or another thing in it."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def load_manifest(table: str) -> dict[str, Any]:
    """What the download stage found of a table's data sets.

    Raises:
        InvalidInput: that stage has not run, or its file is damaged.
    """
    path = manifest_file(table)
    found = stored(path) or {}
    if "datasets" not in found:
        raise InvalidInput("manifest", str(path), "a file that the download stage wrote; run it first")
    return found


def load_results(table: str, root: Path) -> dict[str, Any]:
    """The content of a table's ``results.json``.

    Args:
        root: the project's root folder.

    Raises:
        InvalidInput: the table has no results, or the file is damaged or of another version.
    """
    path = root / "results" / table / "results.json"
    if not path.exists():
        raise InvalidInput("table", table, "a table with results; run its sweep first")
    found = stored(path) or {}
    with suppress(ValueError):
        Table.model_validate(found.get("config"))
        if {"table", "subset", "cells", "sources"} <= found.keys():
            return found
    raise InvalidInput("results", str(path), "a file that a sweep of this version wrote; run it again")
