"""YAML files that are validated by a model; each error is a single line."""

from __future__ import annotations

import io
import reprlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from pfl.core.errors import InvalidInput, Missing, unknown_name


class Strict(BaseModel):
    """A mapping that accepts only its own keys and types."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        use_attribute_docstrings=True,  # they appear in the reference and in the schema for editors
    )

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, values: Any) -> Any:
        known = [field.alias or name for name, field in cls.model_fields.items()]
        for key in values if isinstance(values, dict) else ():
            if key not in known:
                raise unknown_name("key", str(key), known)
        return values


M = TypeVar("M", bound=Strict)


def load(file: str | Path, model: type[M]) -> M:
    """The content of a YAML file that a model describes.

    Raises:
        InvalidInput: there is no such file, or it is not valid; the message is one line.
    """
    return validate(parse(file), model, Path(file))


def validate(values: Any, model: type[M], file: Path) -> M:
    """The content ``values`` of a file that a model describes.

    Raises:
        InvalidInput: it is not valid; the message is one line.
    """
    try:
        return model.model_validate({} if values is None else values)
    except ValidationError as error:
        raise _first(file, error) from None


def parse(file: str | Path) -> Any:
    """The content of a YAML file.

    Raises:
        InvalidInput: there is no such file, or it is not YAML.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    path = Path(file)
    if not path.is_file():
        raise Missing(str(path), "no such file", "a project (`pfl init` creates one)")
    try:
        text = path.read_text(encoding="utf-8")
        # The C parser is four times as fast, but rejects the valid [dirichlet:0.1] and has less helpful
        # errors.
        with suppress(YAMLError):
            return YAML(typ="safe").load(text)
        return YAML(typ="safe", pure=True).load(text)
    except Exception as error:  # [2024-13-45] is a ValueError, !!bool "x" a KeyError, deep nesting another
        line = getattr(getattr(error, "problem_mark", None), "line", -1) + 1
        cause = getattr(error, "problem", None) or error
        raise InvalidInput(f"{path}:{line}" if line else str(path), str(cause), "YAML") from None


def dumped(values: Mapping[str, Any]) -> str:
    """A mapping as YAML, in its own order."""
    from ruamel.yaml import YAML

    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.width = 120
    yaml.allow_unicode = True
    yaml.dump(values, text := io.StringIO())
    return text.getvalue()


_ACCEPTED = {
    "missing": "a value",
    "model_type": "a mapping",
    "string_pattern_mismatch": "a name of at most 100 letters, digits, '.', '_' and '-'",
}
"""Replacements of pydantic's own messages."""


def _first(path: Path, error: ValidationError) -> InvalidInput:
    """The first of pydantic's errors as one line: file, key, value, what is accepted."""
    mistake = error.errors(include_url=False)[0]
    keys = ".".join(str(part) for part in mistake["loc"] if part != "[key]")
    where = f"{path}: {keys}" if keys else str(path)
    cause = mistake.get("ctx", {}).get("error")
    if isinstance(cause, InvalidInput):
        cause.locate(str(path) if cause.parameter == keys else where)
        return cause
    kind, value = mistake["type"], mistake["input"]
    accepted = _ACCEPTED.get(kind, mistake["msg"].removeprefix("Input should be "))
    if kind in ("too_short", "too_long"):
        bound, length = ("at least", "min_length") if kind == "too_short" else ("at most", "max_length")
        accepted = f"{bound} {('none', 'one', 'two')[mistake['ctx'][length]]}"
    elif kind == "missing":
        value = "nothing"
    elif isinstance(value, list | dict):
        value = reprlib.repr(value)
    elif kind.endswith("_type"):
        value = repr(value)  # distinguishes "0" from 0
    return InvalidInput(where, value, accepted)


@contextmanager
def located(where: str) -> Iterator[None]:
    """Put ``where`` in front of the message of an `InvalidInput` that is raised inside."""
    try:
        yield
    except InvalidInput as error:
        error.locate(where)
        raise
