"""The papers' printed results: ``papers/<paper>/published.csv``, one line per printed cell."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from pfl.core.errors import InvalidInput, check_names
from pipeline.spec.csv_file import number, read_csv
from pipeline.spec.papers import NUMBERS, paper_names
from pipeline.spec.paths import PAPERS
from pipeline.spec.yaml import Strict

DOUBTFUL = re.compile(r"doubtful \(([^)]+)\): ")
"""Prefix of the note of a number that may not be what the paper means, with the reason in brackets."""


@dataclass(frozen=True)
class Published:
    """A printed cell.

    Attributes:
        paper, table: where it is printed, "pfedsim" and "3" for example.
        dataset, partition, partition_arg, clients, variant: the paper's setting; ``clients`` is None if it is
            not stated.
        method: our name for the method; empty if the cell describes data.
        metric: "accuracy" in percent, or another quantity in the unit that ``note`` names.
        mean, std: as printed; std is None if there is none.
        note: a remark on an unusual cell; see `DOUBTFUL`.
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

    @property
    def is_accuracy(self) -> bool:
        return self.metric.startswith("accuracy")

    @property
    def doubt(self) -> str:
        """Why the number may not be what the paper means; empty for most."""
        beginning = DOUBTFUL.match(self.note)
        return beginning[1] if beginning else ""


class Incomparable(Strict):
    """Rows whose printed numbers measure something other than ours, so a verdict would be meaningless."""

    rows: list[str] = Field(min_length=1)
    """Names of rows."""
    why: str
    """The reason, which the report prints."""


class PublishedTable(Strict):
    """Where the published numbers are: a paper, and the column "table" of its CSV file."""

    paper: str
    """A folder of `papers/`."""
    file: str = NUMBERS
    """A CSV file in that folder."""
    table: str
    """Value of the column "table" in the file's lines for this table."""
    seeds: int | None = None
    """Number of repetitions behind each printed number; omitted if the paper does not state it."""
    assumed: bool = False
    """Whether `seeds` is our assumption because the paper does not state it for this table."""
    incomparable: list[Incomparable] = []
    """Rows that get no verdict and are counted separately."""

    @property
    def incomparable_rows(self) -> set[str]:
        return {row for group in self.incomparable for row in group.rows}


class PublishedCell(Strict):
    """Identifies a printed cell in `papers/*/published.csv`, as far as a setting or a row determines it."""

    dataset: str | None = None
    """As in the column of this name."""
    partition: str | None = None
    """As in the column of this name."""
    partition_arg: str | None = None
    """As in the column of this name."""
    clients: int | None = None
    """As in the column of this name."""
    variant: str | None = None
    """The parts of the column "variant" that matter, separated by semicolons."""
    method: str | None = None
    """By default the row's name."""
    metric: str | None = None
    """By default accuracy."""

    def override(self, by: PublishedCell | None) -> PublishedCell:
        """Both descriptions together: variants are joined, otherwise ``by`` takes precedence."""
        if by is None:
            return self
        variants = ";".join(part.variant for part in (self, by) if part.variant)
        overrides = by.model_dump(exclude_none=True) | {"variant": variants or None}
        return self.model_copy(update=overrides)


def published_cells(paper: str, file: str = NUMBERS) -> list[Published]:
    """All printed cells in a CSV file of a paper's folder.

    Raises:
        InvalidInput: there is no such paper or file, or a line of it is not valid.
    """
    check_names("published.paper", [paper], paper_names())
    folder = PAPERS / paper
    check_names("published.file", [file], [path.name for path in folder.glob("*.csv")])
    return read_csv(folder / file, _cell, list(Published.__dataclass_fields__))


def find(cells: Sequence[Published], table: str, wanted: PublishedCell) -> Published | None:
    """The cell of ``table`` that ``wanted`` describes; None if the paper prints none.

    Raises:
        InvalidInput: several cells fit.
    """
    plain = wanted.model_dump(exclude={"variant"}, exclude_none=True)
    variant = _variant_parts(wanted.variant or "")
    matches = [
        cell
        for cell in cells
        if cell.table == table
        and all(getattr(cell, name) == value for name, value in plain.items())
        and variant <= _variant_parts(cell.variant)
    ]
    if len(matches) > 1:
        distinguishing = (
            f"give '{name}', one of {', '.join(values)}"
            for name in type(wanted).model_fields
            if len(values := list(dict.fromkeys(str(getattr(cell, name)) for cell in matches))) > 1
        )
        how = next(distinguishing, "the paper's CSV file has the cell twice")
        shown = ", ".join(f"{key} {value}" for key, value in wanted.model_dump(exclude_none=True).items())
        accepted = f"one that names a single printed cell; {how}"
        raise InvalidInput(f"published cell of table {table}", shown, accepted)
    return matches[0] if matches else None


def _variant_parts(variant: str) -> set[str]:
    """The parts of a variant, which semicolons separate."""
    return set(variant.split(";")) - {""}


def _cell(row: dict[str, str]) -> Published:
    numbers: dict[str, Any] = {
        "clients": int(row["clients"]) if row["clients"] else None,
        "mean": number(row["mean"]),
        "std": number(row["std"]) if row["std"] else None,
    }
    return Published(**{**row, **numbers})
