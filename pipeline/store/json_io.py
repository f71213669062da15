"""What earlier stages wrote: JSON files, the manifest and the partitions of a table."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pfl.data.partition import Division, Partition, follows_run
from pfl.errors import InvalidInput
from pipeline.spec.files import manifest_file, partition_file


def stored(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None if there is no file, or no JSON object in it, as in a damaged one."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def load_manifest(table: str) -> dict[str, Any]:
    """What the download stage found of a table's data sets.

    Raises:
        InvalidInput: that stage has not run, or its file is damaged.
    """
    path = manifest_file(table)
    manifest = stored(path) or {}
    if "datasets" not in manifest:
        accepted = f"a file of the download stage; run `pfl stage download {table}` first"
        raise InvalidInput("manifest", str(path), accepted)
    return manifest


def save_division(division: Division, table: str, name: str) -> None:
    """Write a partition where a sweep looks for it: one file, or one for each seed."""
    if isinstance(division, Partition):
        division.save(partition_file(table, name))
    else:
        for seed, partition in division.items():
            partition.save(partition_file(table, name, seed))


def load_division(table: str, name: str, spec: str, seeds: Iterable[int]) -> Division:
    """What `save_division` wrote, for all ``seeds`` if the specification gives each its own partition.

    Raises:
        InvalidInput: a file is missing or damaged.
    """
    if follows_run(spec):
        return {seed: Partition.load(partition_file(table, name, seed)) for seed in seeds}
    return Partition.load(partition_file(table, name))
