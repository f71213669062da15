"""Files of earlier stages: JSON files and the manifest of a table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pfl.core.errors import InvalidInput
from pipeline.spec.paths import manifest_file


def stored(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None if the file is missing, damaged or not a JSON object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def load_manifest(table: str) -> dict[str, Any]:
    """The manifest of a table's data sets, which the download stage wrote.

    Raises:
        InvalidInput: that stage has not run, or its file is damaged.
    """
    path = manifest_file(table)
    manifest = stored(path) or {}
    if "datasets" not in manifest:
        accepted = f"a file of the download stage; run `pfl stage download {table}` first"
        raise InvalidInput("manifest", str(path), accepted)
    return manifest
