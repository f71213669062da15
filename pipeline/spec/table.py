"""The content of a table's file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, PlainValidator, model_validator

from pfl.core.errors import InvalidInput, check_names, unknown_name
from pfl.methods import METHODS
from pipeline.spec.axes import AVERAGE, NAME, AverageColumn, Name, Row, Setting, short_form, target
from pipeline.spec.extends import extended, has_entry, lineage
from pipeline.spec.paths import table_names
from pipeline.spec.published import Published, PublishedTable, find, published_cells
from pipeline.spec.reported import Evaluation
from pipeline.spec.schedule import Schedule
from pipeline.spec.search_space import Search, search_seeds
from pipeline.spec.table_claims import Place, TableClaim
from pipeline.spec.yaml import Strict, located, validate


def _gpus(value: Any) -> Any:
    if value == "auto" or (isinstance(value, int | float) and not isinstance(value, bool) and value >= 0):
        return value
    raise InvalidInput("a share of a GPU", value, "auto or a non-negative number")


Share = Annotated[float, Field(ge=0)]
T = TypeVar("T")
V = TypeVar("V")
M = TypeVar("M", bound="Table")


class Resources(Strict):
    """Resources of one trial."""

    cpus: int = Field(default=1, ge=1)
    """Number of CPU cores. On a CPU, the clients of a round are distributed across as many processes."""
    gpus: Annotated[
        float | Literal["auto"], PlainValidator(_gpus, json_schema_input_type=Share | Literal["auto"])
    ] = "auto"
    """Number of GPUs; with a fraction, several trials share one. `auto`: a quarter of a GPU if there is one.
    """


class Subset(Strict):
    """A part of a table: some of its settings, rows and seeds; an empty list means all."""

    settings: list[str] = []
    """Names of settings."""
    methods: list[str] = []
    """Names of rows."""
    seeds: list[int] = []
    """Seeds."""

    def has(self, setting: str, row: str) -> bool:
        """Whether a cell is in this part."""
        return setting in (self.settings or (setting,)) and row in (self.methods or (row,))


class Table(Strict):
    """A table of results: settings are its columns, methods its rows."""

    extends: str | None = None
    """The table that this one extends; see [Studies](tables.md#studies)."""
    title: str
    """Heading of the report."""
    paper: str | None = None
    """The paper and its table, for the report."""
    note: str | None = None
    """A remark below the report's heading."""
    dataset: str
    """A name of `pfl datasets`, or a path to your own data."""
    model: str
    """A network; see `pfl models`."""
    clients: int | None = Field(default=None, ge=1)
    """Number of clients; required unless the partition rule takes it from the data."""
    schedule: Schedule = Schedule()
    """Training options of all cells."""
    settings: dict[Name, Annotated[Setting, short_form("partition", Setting)]] = Field(min_length=1)
    """The columns, by name: how the data are partitioned. A bare string is a partition."""
    methods: list[Annotated[Row, short_form("method", Row)]] = Field(min_length=1)
    """The rows: methods with their hyperparameters. A bare name is a method with its defaults."""
    average: AverageColumn | None = None
    """A last column with each row's mean over the settings."""
    seeds: list[Annotated[int, Field(ge=0)]] = Field(min_length=1)
    """Each cell runs once per seed. A search uses other seeds, so that none of the reported runs has
    influenced what was selected."""
    evaluation: Evaluation = Evaluation()
    """Which numbers are reported."""
    search: Search | None = None
    """The hyperparameter search in each cell; by default there is none."""
    resources: Resources = Resources()
    """What one trial may use."""
    keep: Literal["models"] | None = None
    """`models`: keep the final model of every client in `.sweeps/models/`, for each final trial."""
    report: Literal["leaderboard"] | None = None
    """`leaderboard`: the report ranks the rows over settings and seeds, and says which to try first."""
    published: PublishedTable | None = None
    """Where the published numbers are."""
    reference: str | None = None
    """The row with which the report compares all others at the same moment, usually the paper's own method.
    By default, the best row of each column.
    """
    claims: list[TableClaim] = []
    """The paper's statements about the table, tested on its numbers and on ours."""
    sources: dict[str, str] = {}
    """By key of this file: the origin of the value (the paper, its released code, or our choice)."""

    @property
    def columns(self) -> dict[str, Setting | AverageColumn]:
        """The settings, and the average if there is one."""
        return {**self.settings, AVERAGE: self.average} if self.average else dict(self.settings)

    @property
    def datasets(self) -> dict[str, str]:
        """The data set of each setting."""
        return {name: setting.dataset or self.dataset for name, setting in self.settings.items()}

    @property
    def column_labels(self) -> dict[str, str]:
        """The heading of each column."""
        return {name: column.label or name for name, column in self.columns.items()}

    @property
    def row_labels(self) -> dict[str, str]:
        """The heading of each row, with the row's name if others have the same heading."""
        labels = {row.id: row.label or row.name or METHODS.title(row.method) for row in self.methods}
        count = Counter(labels.values())
        return {row: f"{label} ({row})" if count[label] > 1 else label for row, label in labels.items()}

    @property
    def searches(self) -> dict[str, Search]:
        """The search of each row that has one."""
        return {row.id: search for row in self.methods if (search := row.search or self.search)}

    @property
    def drawn_seeds(self) -> list[int]:
        """The seeds that need a partition if each has its own: the table's, and those of its searches."""
        return [*self.seeds, *(search_seeds(self.seeds) if self.searches else ())]

    def part(self, subset: Subset) -> Table:
        """The part of this table that ``subset`` selects.

        Raises:
            InvalidInput: ``subset`` names a setting, a row or a seed that the table does not have, or one
                twice, or omits a seed of a table with a search.
        """
        rows = {row.id: row for row in self.methods}
        seeds = list(_chosen("seeds", subset.seeds, dict.fromkeys(self.seeds)))
        part = self.model_copy(
            update={
                "settings": _chosen("settings", subset.settings, self.settings),
                "methods": list(_chosen("methods", subset.methods, rows).values()),
                "seeds": seeds,
            }
        )
        if part.searches and seeds != self.seeds:
            raise InvalidInput("subset.seeds", subset.seeds, "all seeds, because the table has a search")
        return part

    def subset(self, settings: Collection[str], rows: Collection[str], seeds: Collection[int]) -> Subset:
        """The subset of exactly these settings, rows and seeds, with an empty list for all."""

        def fewer(names: list[T], kept: Collection[T]) -> list[T]:
            chosen = [name for name in names if name in kept]
            return chosen if len(chosen) < len(names) else []

        return Subset(
            settings=fewer(list(self.settings), settings),
            methods=fewer([row.id for row in self.methods], rows),
            seeds=fewer(self.seeds, seeds),
        )

    @model_validator(mode="after")
    def _each_once(self) -> Table:
        rows = [row.id for row in self.methods]
        for row in rows:
            if rows.count(row) > 1:
                raise InvalidInput("methods", row, "each row once (give one of them a name with 'as')")
        for seed in self.seeds:
            if self.seeds.count(seed) > 1:
                raise InvalidInput("seeds", seed, "each seed once")
        if self.average and AVERAGE in self.settings:
            raise InvalidInput("settings", AVERAGE, "another name; this one belongs to the average column")
        for claim in self.claims:
            claim.check(list(self.settings), rows)
        if self.reference:
            check_names("reference", [self.reference], rows)
        if self.published:
            check_names("published.incomparable.rows", sorted(self.published.incomparable_rows), rows)
        for method in self.methods:
            check_names(f"setting of {method.id}", method.settings, self.settings)
        return self


def _chosen(key: str, names: list[T], known: dict[T, V]) -> dict[T, V]:
    """The entries of ``known`` that ``names`` selects, in its order; all if ``names`` is empty."""
    for name in names:
        if name not in known:
            raise unknown_name(f"subset.{key}", str(name), map(str, known))
        if names.count(name) > 1:
            raise InvalidInput(f"subset.{key}", names, "each once")
    return {name: known[name] for name in known if name in names or not names}


def printed_cells(table: Table) -> dict[Place, Published]:
    """The printed cell of each column and row that has one.

    Raises:
        InvalidInput: the table names a paper or a file that does not exist, or several cells fit.
    """
    source = table.published
    if source is None:
        return {}
    cells = published_cells(source.paper, source.file)
    return {
        (name, row.id): cell
        for name, column in table.columns.items()
        for row in table.methods
        if (wanted := target(column, row)) and (cell := find(cells, source.table, wanted))
    }


def load_table(name: str) -> Table:
    """A table with everything that it inherits.

    Raises:
        InvalidInput: there is no such table, or its file is not valid; the message is one line.
    """
    check_names("table", [name], table_names())
    if not re.fullmatch(NAME, name):
        accepted = "a file name of at most 100 letters, digits, '.', '_' and '-'"
        raise InvalidInput("table", repr(name), accepted)
    return load_as(Table, name)


def load_as(model: type[M], name: str) -> M:
    """The content of a table's or a figure's file, with everything that it inherits.

    Raises:
        InvalidInput: the file, or that of a table that it extends, is not valid; the message is one line.
    """
    sources = lineage(name)
    content = sources[0].content
    for base, own in pairwise(sources):
        _checked(content, Table, base.file)
        content = extended(content, own, base.file.stem)
    return _checked(content, model, sources[-1].file)


def _checked(content: Any, model: type[M], file: Path) -> M:
    """The validated content of a file; its ``sources`` must name what it has, possibly by default."""
    table = validate(content, model, file)
    values = {name: value for name, value in table if value is not None} | content
    with located(str(file)):
        for key in table.sources:
            if not has_entry(values, key):
                accepted = "a key, a row or a column of the table, as in schedule.lr or methods.fedavg"
                raise InvalidInput("sources", key, accepted)
            first, _, rest = key.partition(".")
            if rest and isinstance(section := getattr(table, first, None), Strict):
                check_names(f"sources: {first}", [rest], type(section).model_fields)
    return table
