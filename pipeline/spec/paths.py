"""Paths of a table's files, all relative to the root of the project."""

from __future__ import annotations

from pathlib import Path

from pfl.core.errors import InvalidInput, Missing

TABLES = Path("tables")
"""Tables that are not from a paper."""
PAPERS = Path("papers")
"""A folder for each paper: `paper.yaml`, its printed numbers, and the folders `tables` and `figures`."""
REPORTS = Path("reports/tables")
"""A folder for each published table; only `pfl report --publish` writes there."""


def table_file(name: str) -> Path:
    """The YAML file of a table or of a figure.

    Raises:
        InvalidInput: two files have the same name.
    """
    return _files().get(name, TABLES / f"{name}.yaml")


def manifest_file(table: str) -> Path:
    """The file that the download stage writes."""
    return Path("data/manifests") / f"{table}.json"


def partitions_folder(table: str) -> Path:
    """The folder that the partition stage writes."""
    return Path("data/partitions") / table


def partition_file(table: str, partition_name: str, seed: int | None = None) -> Path:
    """The partition that the partition stage writes, next to its statistics (.json) and its plot (.svg).

    Args:
        seed: the run's seed, if each seed has its own partition.
    """
    own = "" if seed is None else f"@seed{seed}"
    return partitions_folder(table) / f"{partition_name}{own}.npz"


def results_folder(table: str) -> Path:
    """The folder that a sweep writes."""
    return Path("results") / table


def report_folder(table: str) -> Path:
    """The folder of a report; git ignores it."""
    return results_folder(table) / "report"


def table_names() -> list[str]:
    """The names of all tables that have a file, from papers or not.

    Raises:
        InvalidInput: there are none here, or two files have the same name.
    """
    if names := _names("tables"):
        return names
    raise Missing(f"{TABLES}/*.yaml", "no such file", "a project (`pfl init` creates one)")


def figure_names() -> list[str]:
    """The names of all figures that have a file; none in a project without the papers' figures.

    Raises:
        InvalidInput: two files have the same name.
    """
    return _names("figures")


def run_names() -> list[str]:
    """The names of all tables and figures that have a file; records of the ledger belong to these.

    Raises:
        InvalidInput: two files have the same name.
    """
    return sorted(_files())


def published_tables() -> list[str]:
    """The names of the tables whose report is in ``reports/tables/``."""
    return [name for name in table_names() if (REPORTS / name).is_dir()]


def _names(kind: str) -> list[str]:
    return sorted(name for name, file in _files().items() if file.parent.name == kind)


def _files() -> dict[str, Path]:
    """The files of all tables and figures, by name."""
    files: dict[str, Path] = {}
    patterns = (TABLES / "*.yaml", PAPERS / "*/tables/*.yaml", PAPERS / "*/figures/*.yaml")
    for file in sorted(match for pattern in patterns for match in Path().glob(str(pattern))):
        if (other := files.setdefault(file.stem, file)) != file:
            raise InvalidInput(str(file), f"'{file.stem}'", f"another name than that of {other}")
    return files
