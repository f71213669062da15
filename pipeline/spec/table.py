"""What `tables/*.yaml` may say, and the cells that a table consists of.

All paths are relative to the root of the project, where `dvc` and `pfl` are run.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, PlainValidator, model_validator

from pfl.config import Augmentation, BatchOrder, BNStats, Config, InputScale, LRSchedule, Observed, Precision
from pfl.errors import InvalidInput, unknown_name
from pfl.validation import validated
from pipeline.spec.evaluation import Evaluation, EvaluationOverride
from pipeline.spec.published import PublishedCell
from pipeline.spec.search import Search
from pipeline.spec.table_claims import TableClaim
from pipeline.spec.yaml import Strict, load, located

TABLES = Path("tables")
FIGURES = Path("figures")
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
"""Of a table, a setting and a row: they name folders and files."""
AVERAGE = "average"
"""Names the column of `Table.average`."""


def _short_form(key: str, model: type[Strict]) -> BeforeValidator:
    """A bare string stands for the mapping that gives only ``key``."""
    return BeforeValidator(
        lambda value: {key: value} if isinstance(value, str) else value, json_schema_input_type=str | model
    )


def _gpus(value: Any) -> Any:
    if value == "auto" or (isinstance(value, int | float) and not isinstance(value, bool) and value >= 0):
        return value
    raise InvalidInput("a share of a GPU", value, "auto or a number of at least 0")


Name = Annotated[str, Field(pattern=NAME)]
Share = Annotated[float, Field(ge=0)]
T = TypeVar("T")
V = TypeVar("V")


class Schedule(Strict):
    """Training, as in `pfl.config.Config`. A key that is left out is inherited: a row's from its setting, a
    setting's from the table, and the table's is the default of `pfl run`."""

    participation: float | None = None
    """Share of the clients that take part in a round; at least one does."""
    rounds: int | None = None
    """Communication rounds."""
    epochs: int | None = None
    """Local epochs per round."""
    batch_size: int | None = None
    """Images per minibatch."""
    lr: float | None = None
    """Learning rate of SGD."""
    momentum: float | None = None
    """Momentum of SGD."""
    weight_decay: float | None = None
    """Weight decay of SGD."""
    lr_schedule: LRSchedule | None = None
    """Learning rate over the rounds. `constant`. `step`: multiplied by `lr_gamma` after every `lr_step`
    rounds. `cosine`: half a cosine from `lr` to 0. An adaptation before an evaluation has the rate `lr`."""
    lr_step: int | None = None
    """Rounds between two steps of the schedule `step`."""
    lr_gamma: float | None = None
    """Factor of the learning rate at each step of the schedule `step`."""
    lr_warmup: int | None = None
    """Rounds of linear warm-up before the schedule begins."""
    batch_order: BatchOrder | None = None
    """`shuffled`: minibatches are drawn anew in every epoch. `fixed`: they are cut once from the client's
    stored order and stay the same. `class_stream`: one endless pass over the samples, class by class."""
    augmentation: Augmentation | None = None
    """Random transformations of training images: crop after padding by 4 pixels, horizontal flip, rotation
    by up to 15 degrees."""
    input_scale: InputScale | None = None
    """`normalised`: by the data set's mean and standard deviation. `symmetric`: -1 to 1. `unit`: 0 to 1.
    `raw255`: 0 to 255."""
    bn_stats: BNStats | None = None
    """Running statistics of batch norm: `mixed` like the weights beside them, or `local` to each client."""
    precision: Precision | None = None
    """Of the networks' forward and backward passes, on hardware that has it; see `pfl.config.Config`."""
    observe: Observed | None = None
    """`similarities`: after the last round, also measure how similar the clients are."""


class PublishedTable(Strict):
    """Where the published numbers are: a file of `tables/published/` and its column "table"."""

    file: str
    """A CSV file of `tables/published/`."""
    table: str
    """Selects the lines of the file by their column "table"."""
    seeds: int | None = None
    """Repetitions behind each printed number; left out where the paper does not say."""


class Setting(Strict):
    """A column: how the data are divided. The short form is the partition alone."""

    partition: str
    """`RULE:ARG[,KEY=VALUE...]`; see `pfl partitions`."""
    label: str | None = None
    """The column's heading; by default the setting's name."""
    clients: int | None = Field(default=None, ge=1)
    """Number of clients, instead of the table's."""
    dataset: str | None = None
    """Data set, instead of the table's."""
    model: str | None = None
    """Network, instead of the table's."""
    schedule: Schedule = Schedule()
    """Training options, instead of the table's."""
    evaluation: EvaluationOverride = EvaluationOverride()
    """Reported numbers, instead of the table's."""
    published: PublishedCell | None = None
    """Which printed cells belong to this column."""


class Average(Strict):
    """A last column: each row's mean over the settings."""

    label: str = "Average"
    """The column's heading."""
    published: PublishedCell | None = None
    """Which printed cells belong to this column."""


class RowOverride(Strict):
    """What a row does differently in one setting."""

    partition: str | None = None
    """Partition, instead of the setting's."""
    params: dict[str, Any] = {}
    """Hyperparameters, added to the row's."""
    schedule: Schedule = Schedule()
    """Training options, instead of the row's."""


class Row(Strict):
    """A row: a method with its hyperparameters. The short form is the method's name alone."""

    method: str
    """See `pfl methods`."""
    name: Name | None = Field(default=None, alias="as")
    """The row's name, where one method has several rows; by default the method's name."""
    label: str | None = None
    """The row's heading; by default its name."""
    clients: int | None = Field(default=None, ge=1)
    """Number of clients, instead of the setting's."""
    params: dict[str, Any] = {}
    """Hyperparameters of the method; those left out take their defaults."""
    schedule: Schedule = Schedule()
    """Training options, instead of the setting's."""
    settings: dict[str, RowOverride] = {}
    """By setting: what the row does differently there."""
    evaluation: EvaluationOverride = EvaluationOverride()
    """Reported numbers, instead of the setting's."""
    search: Search | None = None
    """The hyperparameter search of this row, instead of the table's."""
    published: PublishedCell | None = None
    """Which printed cells belong to this row; by default those of its name."""

    @property
    def id(self) -> str:
        return self.name or self.method

    def partition_in(self, setting: str) -> str:
        """The name of its partition: the setting's, or one of its own where it divides the data otherwise."""
        departs = self.clients or self.settings.get(setting, RowOverride()).partition
        return f"{setting}.{self.id}" if departs else setting


class Resources(Strict):
    """Of one trial."""

    cpus: int = Field(default=1, ge=1)
    """CPU cores, and threads of torch."""
    gpus: Annotated[
        float | Literal["auto"], PlainValidator(_gpus, json_schema_input_type=Share | Literal["auto"])
    ] = "auto"
    """GPUs; a fraction lets several trials share one. `auto`: a quarter of a GPU where there is one."""


class Choice(Strict):
    """One of two choices, as the report names it, and why it should matter."""

    label: str
    """Its name in the report."""
    why: str = ""
    """Why it should matter."""


class Choices(Strict):
    """Two choices of which the report says how much of the distance to the published numbers they explain.

    Each of their combinations is a setting.
    """

    neither: str
    """The setting that makes neither choice."""
    alone: dict[str, Choice] = Field(min_length=2, max_length=2)
    """By the setting that makes this choice and not the other."""
    both: str
    """The setting that makes both choices."""


class Subset(Strict):
    """A part of a table: some of its settings, rows and seeds; an empty list stands for all."""

    settings: list[str] = []
    """Names of settings."""
    methods: list[str] = []
    """Names of rows."""
    seeds: list[int] = []
    """Seeds."""


class Table(Strict):
    """A table of results: settings are its columns, methods its rows."""

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
    """Number of clients; by default what the partition rule decides, else 20."""
    schedule: Schedule = Schedule()
    """Training options of all cells."""
    settings: dict[Name, Annotated[Setting, _short_form("partition", Setting)]] = Field(min_length=1)
    """The columns, by name: how the data are divided. A bare string is a partition."""
    methods: list[Annotated[Row, _short_form("method", Row)]] = Field(min_length=1)
    """The rows: methods with their hyperparameters. A bare name is a method with its defaults."""
    average: Average | None = None
    """A last column with each row's mean over the settings."""
    seeds: list[Annotated[int, Field(ge=0)]] = Field(min_length=1)
    """Each cell runs once per seed. A search tries configurations with the first, and compares the best with
    all."""
    evaluation: Evaluation = Evaluation()
    """Which numbers are reported."""
    search: Search | None = None
    """The hyperparameter search in each cell; by default there is none."""
    resources: Resources = Resources()
    """What one trial may use."""
    keep: Literal["models"] | None = None
    """`models`: keep every client's final model of each final trial in `.sweeps/models/`."""
    published: PublishedTable | None = None
    """Where the published numbers are."""
    claims: list[TableClaim] = []
    """The paper's statements about the table, tested on its numbers and on ours."""
    choices: Choices | None = None
    """A study of two choices whose combinations are settings."""
    sources: dict[str, str] = {}
    """By key of this file: where the value comes from (the paper, its released code, or our choice)."""

    @property
    def columns(self) -> dict[str, Setting | Average]:
        """The settings, and the average where there is one."""
        return {**self.settings, AVERAGE: self.average} if self.average else dict(self.settings)

    @property
    def searched_rows(self) -> list[Row]:
        return [row for row in self.methods if row.search or self.search]

    def full_runs(self, search: Search | None) -> float:
        """At most so many simulations' worth of training in a cell: a search may choose what has run."""
        seeds = len(self.seeds)
        return seeds + (search.full_runs(seeds) + seeds if search else 0)

    @property
    def size(self) -> str:
        """For example "14 cells, at most 210 full runs"."""
        cells = len(self.settings) * len(self.methods)
        runs = len(self.settings) * sum(self.full_runs(row.search or self.search) for row in self.methods)
        return f"{cells} cells, at most {runs:.0f} full runs"

    def part(self, subset: Subset) -> Table:
        """This table without what ``subset`` leaves out.

        Raises:
            InvalidInput: ``subset`` names a setting, a row or a seed that the table does not have, or
                leaves out a seed of a table with a search.
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
        if part.searched_rows and seeds != self.seeds:
            raise InvalidInput("subset.seeds", subset.seeds, "all seeds, as there is a search")
        return part

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
            raise InvalidInput("settings", AVERAGE, "another name, as that column is the average's")
        for claim in self.claims:
            claim.check(list(self.settings), rows)
        for departing in self.methods:
            for setting in departing.settings:
                if setting not in self.settings:
                    raise unknown_name(f"setting of {departing.id}", setting, self.settings)
        if self.choices:
            for setting in (self.choices.neither, *self.choices.alone, self.choices.both):
                if setting not in self.settings:
                    raise unknown_name("setting of choices", setting, self.settings)
        return self

    @model_validator(mode="after")
    def _seeds_of_a_search(self) -> Table:
        if self.searched_rows and len(self.seeds) < 2:
            accepted = "two or more: a search estimates the error of a gain from them"
            raise InvalidInput("seeds", self.seeds, accepted)
        return self


def _chosen(key: str, names: list[T], known: dict[T, V]) -> dict[T, V]:
    """What ``names`` names of ``known``, in its order; all of it for no names."""
    for name in names:
        if name not in known:
            raise unknown_name(f"subset.{key}", str(name), map(str, known))
    return {name: known[name] for name in known if name in names or not names}


def target(column: Setting | Average, row: Row) -> PublishedCell | None:
    """The printed cell that a cell is compared with; None if there is none."""
    if column.published is None:
        return None
    wanted = column.published.override(row.published)
    usual = {"method": wanted.method or row.id, "metric": wanted.metric or "accuracy"}
    return wanted.model_copy(update=usual)


@dataclass(frozen=True)
class Cell:
    """A setting and a row: one place of the table, with its pinned configuration."""

    table: str
    setting: str
    row: str
    label: str
    dataset: str
    partition: str
    clients: int | None
    config: Config
    """Validated, the method's defaults filled in."""
    evaluation: Evaluation
    search: Search | None
    partition_name: str
    """See `Row.partition_in`."""

    @property
    def id(self) -> str:
        return f"{self.setting}/{self.row}"


def cells(name: str, table: Table) -> tuple[Cell, ...]:
    """The cells of a table, column by column.

    Raises:
        InvalidInput: a name is unknown or a value outside its range; the message names file and cell.
    """
    return tuple(
        _cell(name, table, setting_name, setting, row)
        for setting_name, setting in table.settings.items()
        for row in table.methods
    )


def _cell(name: str, table: Table, setting_name: str, setting: Setting, row: Row) -> Cell:
    departure = row.settings.get(setting_name, RowOverride())
    schedule: dict[str, Any] = {}
    for part in (table.schedule, setting.schedule, row.schedule, departure.schedule):
        schedule |= part.model_dump(exclude_none=True)
    with located(f"{table_file(name)}: cell {setting_name}/{row.id}"):
        config = validated(
            Config(
                method=row.method,
                hyperparameters=row.params | departure.params,
                model=setting.model or table.model,
                eval_every=table.evaluation.every,
                **schedule,
            )
        )
        evaluation = table.evaluation.override(setting.evaluation, row.evaluation)
    return Cell(
        table=name,
        setting=setting_name,
        row=row.id,
        label=row.label or row.id,
        dataset=setting.dataset or table.dataset,
        partition=departure.partition or setting.partition,
        clients=row.clients or setting.clients or table.clients,
        config=config,
        evaluation=evaluation,
        search=row.search or table.search,
        partition_name=row.partition_in(setting_name),
    )


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


def load_table(name: str) -> Table:
    """The table of `tables/<name>.yaml`.

    Raises:
        InvalidInput: there is no such table, or its file says what it may not; the message is one line.
    """
    if name not in table_names():
        raise unknown_name("table", name, table_names())
    return load(table_file(name), Table)
