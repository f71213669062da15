"""The content of `params.yaml`: the selected tables, and the part of them that is run."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator, model_validator

from pfl.core.errors import InvalidInput, check_names
from pipeline.spec.paths import table_names
from pipeline.spec.table import Subset, Table, load_table
from pipeline.spec.yaml import Strict, load

PARAMS = "params.yaml"


class Params(Strict):
    """All of `params.yaml`."""

    tables: list[str] = Field(min_length=1)
    subset: Subset = Subset()

    @field_validator("tables", mode="before")
    @classmethod
    def _is_a_list(cls, value: Any) -> Any:
        if isinstance(value, str):
            raise InvalidInput("tables", value, f"a list, as in tables=[{value}]")
        return value

    @model_validator(mode="after")
    def _each_once(self) -> Params:
        for name in self.tables:
            if self.tables.count(name) > 1:
                raise InvalidInput("tables", name, "each table once")
        return self


def selected_tables() -> list[str]:
    """The tables that `params.yaml` selects.

    Raises:
        InvalidInput: it selects no table, a table twice, or a table that does not exist.
    """
    names = load(PARAMS, Params).tables
    check_names(f"{PARAMS}: table", names, table_names())
    return names


def subset_of(name: str) -> Subset:
    """The part of a table that is run; the whole table if `params.yaml` does not select it."""
    params = load(PARAMS, Params)
    return params.subset if name in params.tables else Subset()


def load_part(name: str) -> Table:
    """A table without what `subset_of` leaves out.

    Raises:
        InvalidInput: as in `load_table`, or the subset names something that the table does not have.
    """
    return load_table(name).part(subset_of(name))
