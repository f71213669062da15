"""The parts of a source file that can affect results, for the digests of `pfl.core.digests`.

Comments, docstrings, formatting, imports for type checkers, and declarations without effect on results
(search ranges) do not count. All other statements do, import statements and their order included. The outcome
is the same on every supported version of Python.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from threading import Lock
from typing import Any

from pfl.core.families import FAMILIES

DECLARED = ("default", "choices", "adaptation")
"""Options of a hyperparameter's declaration that count: no trial's key contains its default, and trials that
differ only in hyperparameters of the adaptation share their training."""

_NO_MEANING = {"ctx", "kind", "type_comment"}  # ignored fields of syntax trees
_PARSING = Lock()
"""CPython 3.11 may raise a SystemError if several threads parse at once."""


def analysed(source: bytes, package: str) -> tuple[str, list[str]]:
    """A digest of what counts of a source file in ``package``, and the modules and names that it imports.

    A template, which is not Python, counts as a whole.
    """
    try:
        with _PARSING:
            statements = list(_that_run(ast.parse(source).body))
    except (SyntaxError, ValueError):
        return hashlib.sha256(source).hexdigest(), []
    imports = set(_imports(statements, package))
    if "pfl.core.hyper.hyper" in imports:
        for statement in statements:
            _simplify_declarations(statement)
    return hashed(json.dumps([*map(_normal, statements)])), sorted(imports)


def _imports(statements: Iterable[ast.AST], package: str) -> Iterator[str]:
    """The modules and names that statements import, also inside functions."""
    for node in _that_run(statements):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)
        else:
            yield from _imports(ast.iter_child_nodes(node), package)


def _simplify_declarations(statement: ast.stmt) -> None:
    """Remove the options of hyperparameters that do not count."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "hyper":
            del node.args[1:]
            node.keywords = [option for option in node.keywords if option.arg in (None, *DECLARED)]


def _normal(node: Any) -> Any:
    """A syntax tree as nested lists of strings, equal for source texts with the same meaning."""
    if not isinstance(node, ast.AST):
        return str(node)
    if isinstance(node, ast.Constant):
        value = node.value
        return ["Constant", type(value).__name__, hex(value) if type(value) is int else ascii(value)]
    if isinstance(node, ast.JoinedStr):
        return ["JoinedStr", *map(_normal, _joined(node.values))]
    parts: list[Any] = [type(node).__name__]
    for name, value in ast.iter_fields(node):
        if isinstance(value, list):
            running = _that_run(value) if name in ("body", "orelse", "finalbody") else value
            if isinstance(node, ast.ClassDef):
                running = (part for part in running if not _is_family(part))
            if inside := [_normal(part) for part in running]:
                parts.append([name, *inside])
        elif value is not None and name not in _NO_MEANING and not _is_empty(name, value):
            parts.append([name, _normal(value)])
    return parts


def _is_empty(name: str, value: Any) -> bool:
    """Whether a field is the format of ``f"{x:}"``, which some versions of Python omit."""
    return name == "format_spec" and isinstance(value, ast.JoinedStr) and not value.values


def _joined(values: Sequence[ast.expr]) -> Iterator[ast.expr]:
    """The parts of an f-string with adjacent constants merged, as only some versions of Python do."""
    text = ""
    for value in values:
        if isinstance(value, ast.Constant):
            text += str(value.value)
            continue
        if text:
            yield ast.Constant(text)
        text = ""
        yield value
    if text:
        yield ast.Constant(text)


def _is_family(node: Any) -> bool:
    """Whether a statement sets the family under which the documentation lists a method."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Constant) or len(node.targets) > 1:
        return False
    return getattr(node.targets[0], "id", "") == "family" and node.value.value in FAMILIES


def _that_run(statements: Iterable[Any]) -> Iterator[Any]:
    """``statements`` without docstrings and those for type checkers only."""
    for statement in statements:
        if isinstance(statement, ast.If) and _for_types(statement.test):
            yield from _that_run(statement.orelse)
        elif not isinstance(statement, ast.Pass) and not (
            isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        ):
            yield statement


def _for_types(test: ast.expr) -> bool:
    name = test.id if isinstance(test, ast.Name) else test.attr if isinstance(test, ast.Attribute) else ""
    return name == "TYPE_CHECKING"


def without_comments(text: str) -> str:
    """A C source without comments, indentation and empty lines; strings are kept."""
    pattern = r'("(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\')|//[^\n]*|/\*.*?\*/'
    code = re.sub(pattern, lambda match: match[1] or " ", text, flags=re.DOTALL)
    lines = (" ".join(line.split()) for line in code.splitlines())
    return "\n".join(line for line in lines if line)


def hashed(text: str) -> str:
    """A short digest of a text."""
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]


def top_level(module: str) -> str:
    """The top-level package of a dotted name."""
    return module.partition(".")[0]
