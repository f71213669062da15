"""Paths of a table's files, all relative to the root of the project."""

from __future__ import annotations

from pathlib import Path

from pfl.core.errors import Missing

TABLES = Path("tables")
FIGURES = Path("figures")
REPORTS = Path("reports/tables")
"""A folder for each published table; only `pfl report --publish` writes there."""


def table_file(name: str) -> Path:
    """The YAML file of a table, or of a figure, which extends a table by its drawing."""
    figure = FIGURES / f"{name}.yaml"
    if figure.exists():
        return figure
    return TABLES / f"{name}.yaml"


def manifest_file(table: str) -> Path:
    """What the download stage writes."""
    return Path("data/manifests") / f"{table}.json"


def partitions_folder(table: str) -> Path:
    """Where the partition stage writes."""
    return Path("data/partitions") / table


def partition_file(table: str, partition_name: str, seed: int | None = None) -> Path:
    """What the partition stage writes, beside its statistics (.json) and its plot (.svg).

    Args:
        seed: the run's seed, if each seed has its own partition.
    """
    own = "" if seed is None else f"@seed{seed}"
    return partitions_folder(table) / f"{partition_name}{own}.npz"


def results_folder(table: str) -> Path:
    """Where a sweep writes."""
    return Path("results") / table


def report_folder(table: str) -> Path:
    """Where a report is written; git ignores it."""
    return results_folder(table) / "report"


def table_names() -> list[str]:
    """The names of all tables that have a file.

    Raises:
        InvalidInput: there are none here.
    """
    return names_in(TABLES)


def run_names() -> list[str]:
    """The names of all tables and figures that have a file, which rows of the ledger can be of.

    Raises:
        InvalidInput: there are no tables here.
    """
    return [*table_names(), *sorted(path.stem for path in FIGURES.glob("*.yaml"))]


def published_tables() -> list[str]:
    """The names of the tables whose report is in ``reports/tables/``."""
    return [name for name in table_names() if (REPORTS / name).is_dir()]


def names_in(folder: Path) -> list[str]:
    """The names of the YAML files in a folder of the project.

    Raises:
        InvalidInput: there are none here.
    """
    names = sorted(path.stem for path in folder.glob("*.yaml"))
    if not names:
        figures = "a checkout of pfl-repro, which alone has the papers' figures"
        accepted = "a project (`pfl init` makes one)" if folder.name == TABLES.name else figures
        raise Missing(f"{folder}/*.yaml", "no such file", accepted)
    return names
