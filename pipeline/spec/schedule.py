"""The training options of a table's file: those of `pfl.core.config.Config`, each of them optional."""

from __future__ import annotations

from typing import Any, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, create_model

from pfl.core.config import Config
from pipeline.spec.yaml import Strict

ELSEWHERE = ("method", "hyperparameters", "model", "validation", "eval_every", "metrics", "dtype")
"""Options that a table sets by other keys (of rows, settings, searches, evaluations), or not at all."""


def _options() -> dict[str, Any]:
    """Type and field of each training option, with the text of `Config`, by name."""
    schema = TypeAdapter(list[Config], config=ConfigDict(use_attribute_docstrings=True)).json_schema()
    described = schema["$defs"]["Config"]["properties"]
    return {
        name: (kind | None, Field(default=None, description=described[name]["description"]))
        for name, kind in get_type_hints(Config).items()
        if name not in ELSEWHERE
    }


class Schedule(create_model("Schedule", __base__=Strict, **_options())):  # type: ignore[misc]
    """Training, as in `pfl.core.config.Config`. An omitted key is inherited: a row inherits from its setting,
    a setting from the table, and the table has the defaults of `pfl run`.
    """
