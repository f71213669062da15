"""Options of commands, derived from the fields of dataclasses, and checks of the files that they name."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import typer

from pfl.core.errors import InvalidInput
from pfl.core.files import check_writable

Command = TypeVar("Command", bound=Callable[..., None])

EXECUTED = ("device", "backend", "threads", "workers")
"""Fields of `Execution` that are options of every command that simulates."""


def with_options(fields: Mapping[type, Iterable[str]]) -> Callable[[Command], Command]:
    """A decorator that replaces a command's ``**options`` by one option per named field of the dataclasses.

    In the help, they precede the command's keyword-only options and show the fields' docstrings and choices.
    `pfl.run.validation` checks their values.
    """
    derived = [_option(declaration, name) for declaration, names in fields.items() for name in names]

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        own = signature.parameters.values()
        first = [parameter for parameter in own if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
        last = [parameter for parameter in own if parameter.kind is parameter.KEYWORD_ONLY]
        vars(command)["__signature__"] = signature.replace(parameters=[*first, *derived, *last])
        return command

    return decorate


def _option(declaration: type, name: str) -> inspect.Parameter:
    """A field of a dataclass as a parameter that typer reads."""
    kind: Any = get_type_hints(declaration)[name]
    metavar = callback = None
    if get_origin(kind) is Literal:
        kind, metavar = str, f"[{'|'.join(get_args(kind))}]"
    elif get_origin(kind) is tuple:
        kind, metavar, callback = list[str], "NAME,...", _split
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=getattr(declaration, name),
        annotation=Annotated[
            kind, typer.Option(help=texts(declaration)[name], metavar=metavar, callback=callback)
        ],
    )


def _split(values: Iterable[str]) -> list[str]:
    """The comma-separated names in all values of an option."""
    return [name for value in values for name in value.split(",")]


def names_in(module: str, registry: str) -> Callable[[str], list[str]]:
    """Tab completion with the names in a registry, whose module is imported only when needed."""

    def complete(incomplete: str) -> list[str]:
        names = getattr(importlib.import_module(module), registry)
        return [name for name in names if name.startswith(incomplete)]

    return complete


@cache
def texts(declaration: type) -> dict[str, str]:
    """The docstring below each field of a dataclass, on one line."""
    (definition,) = ast.parse(inspect.getsource(declaration)).body
    assert isinstance(definition, ast.ClassDef)
    return {
        field.target.id: " ".join(below.value.value.split())
        for field, below in pairwise(definition.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
        and isinstance(below.value.value, str)
    }


def check_files(written: Mapping[str, Path | None]) -> None:
    """Check that the files, given by option, can be written.

    Raises:
        InvalidInput: a file cannot be written, or two are the same.
    """
    option_of: dict[Path, str] = {}
    for parameter, path in written.items():
        if path:
            check_writable(path, parameter)
            if other := option_of.get(path.resolve()):
                raise InvalidInput(parameter, str(path), f"a file different from that of {other}")
            option_of[path.resolve()] = parameter
