"""The papers' printed results: one CSV a paper in ``tables/published/``, one row a printed cell."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl.errors import InvalidInput, unknown_name

if TYPE_CHECKING:
    from pipeline.config import PublishedSetting

FOLDER = Path("tables/published")


@dataclass(frozen=True)
class Published:
    """A printed cell.

    Attributes:
        paper, table: where it is printed, "pfedsim" and "3" for example.
        dataset, partition, partition_arg, clients, variant: the paper's setting; clients None: not stated.
        method: our name of the method; empty where the cell describes data.
        metric: "accuracy" in percent, or another quantity in the unit that ``note`` names.
        mean, std: as printed; std None where there is none.
        note: what a reader should know of a doubtful or unusual cell.
    """

    paper: str
    table: str
    dataset: str
    partition: str
    partition_arg: str
    clients: int | None
    variant: str
    method: str
    metric: str
    mean: float
    std: float | None
    note: str


def published_cells(file: str, folder: Path = FOLDER) -> list[Published]:
    """All printed cells of one paper.

    Raises:
        InvalidInput: there is no such file.
    """
    known = [path.name for path in folder.glob("*.csv")]
    if file not in known:
        raise unknown_name("published file", file, known)
    with (folder / file).open(newline="", encoding="utf-8") as lines:
        return [_cell(row) for row in csv.DictReader(lines)]


def find(
    cells: Sequence[Published], table: str, setting: PublishedSetting, method: str, metric: str = "accuracy"
) -> Published | None:
    """The cell of ``table`` that a setting and a row are held against; None where the paper prints none.

    Raises:
        InvalidInput: the setting fits several cells.
    """
    found = [
        cell
        for cell in cells
        if (cell.table, cell.method, cell.metric) == (table, method, metric)
        and (cell.dataset, cell.partition) == (setting.dataset, setting.partition)
        and (cell.partition_arg, cell.variant) == (setting.partition_arg, setting.variant)
        and setting.clients in (None, cell.clients)
    ]
    if len(found) > 1:
        clients = ", ".join(str(cell.clients) for cell in found)
        raise InvalidInput(
            f"published setting of table {table}, {method}",
            f"{setting.dataset} {setting.partition}:{setting.partition_arg}",
            f"a setting that names one printed cell; give 'clients', one of {clients}",
        )
    return found[0] if found else None


def _cell(row: dict[str, str]) -> Published:
    numbers: dict[str, Any] = {
        "clients": int(row["clients"]) if row["clients"] else None,
        "mean": float(row["mean"]),
        "std": float(row["std"]) if row["std"] else None,
    }
    return Published(**{**row, **numbers})
