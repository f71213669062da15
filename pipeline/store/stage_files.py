"""Files of earlier stages: JSON files, the manifest and the partitions of a table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pfl.core.errors import InvalidInput
from pfl.data.dataset import Dataset, load
from pfl.data.partition import Division, Partition, follows_run, parse_spec
from pipeline.spec.paths import manifest_file, partition_file


def stored(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None if the file is missing, damaged or not a JSON object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def load_manifest(table: str, datasets: Iterable[str] = ()) -> dict[str, Any]:
    """The manifest of a table's data sets, which the download stage wrote.

    Args:
        datasets: the data sets that the table has now.

    Raises:
        InvalidInput: that stage has not run for ``datasets``, or its file is damaged.
    """
    path = manifest_file(table)
    manifest = stored(path) or {}
    if "datasets" not in manifest or not set(datasets) <= manifest["datasets"].keys():
        accepted = f"a file of the download stage; run `pfl stage download {table}` first"
        raise InvalidInput("manifest", str(path), accepted)
    return manifest


def load_data(dataset: str, manifest: Mapping[str, Any]) -> Dataset:
    """Load a data set of a ``manifest``.

    Raises:
        InvalidInput: its files are gone, or it has changed since the download stage.
    """
    data = load(dataset)
    if data.checksum != manifest["datasets"].get(dataset, {}).get("checksum"):
        accepted = "the data that the download stage found (run `dvc repro` again)"
        raise InvalidInput("dataset", dataset, accepted)
    return data


def save_division(division: Division, table: str, name: str) -> None:
    """Write a partition where a sweep looks for it: one file, or one for each seed."""
    if isinstance(division, Partition):
        division.save(partition_file(table, name))
    else:
        for seed, partition in division.items():
            partition.save(partition_file(table, name, seed))


def load_division(table: str, name: str, spec: str, clients: int | None, seeds: Iterable[int]) -> Division:
    """Load what `save_division` wrote, for all ``seeds`` if each has a separate partition.

    Args:
        spec, clients: those of the current table; None accepts any number of clients.

    Raises:
        InvalidInput: a file is missing or damaged, or has a different specification or number of clients.
    """

    def loaded(seed: int | None = None) -> Partition:
        file, wanted = partition_file(table, name, seed), parse_spec(spec, seed)[0]
        partition = Partition.load(file) if file.exists() else None
        if partition is None or partition.spec != wanted or clients not in (None, partition.clients):
            shown = wanted if clients is None else f"{wanted} of {clients} clients"
            accepted = f"a file with {shown}; run `pfl stage partition {table}` first"
            raise InvalidInput("partition", str(file), accepted)
        return partition

    return {seed: loaded(seed) for seed in seeds} if follows_run(spec) else loaded()
