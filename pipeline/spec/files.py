"""Where the files of a table are. All paths are relative to the root of the project."""

from __future__ import annotations

from pathlib import Path

from pfl.errors import InvalidInput

TABLES = Path("tables")
FIGURES = Path("figures")


def table_file(name: str) -> Path:
    """Of a table, or of a figure, which is a table of runs and what is drawn of them."""
    figure = FIGURES / f"{name}.yaml"
    if figure.exists():
        return figure
    return TABLES / f"{name}.yaml"


def manifest_file(table: str) -> Path:
    """What the download stage writes."""
    return Path("data/manifests") / f"{table}.json"


def partition_file(table: str, partition_name: str, seed: int | None = None) -> Path:
    """What the partition stage writes, beside its statistics (.json) and its plot (.svg).

    Args:
        seed: of the run, where each has a partition of its own.
    """
    own = "" if seed is None else f"@seed{seed}"
    return Path("data/partitions") / table / f"{partition_name}{own}.npz"


def table_names() -> list[str]:
    """The tables that there are files of.

    Raises:
        InvalidInput: there are none here.
    """
    return names_in(TABLES)


def names_in(folder: Path) -> list[str]:
    """The names of the YAML files in a folder of the project.

    Raises:
        InvalidInput: there are none here.
    """
    names = sorted(path.stem for path in folder.glob("*.yaml"))
    if not names:
        raise InvalidInput(f"{folder}/*.yaml", "no such file", "a project (`pfl init` makes one)")
    return names
