"""The parts of a source file that can affect results, for the digests of `pfl.core.digests`.

Comments, docstrings, formatting, import statements, the order of definitions (unless they may draw random
numbers), and declarations without effect on results (search ranges) do not count. The outcome is the same on
every supported version of Python.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from pfl.core.families import FAMILIES

DECLARED = ("default", "choices")
"""Options of a hyperparameter's declaration that count. A default is not part of any trial's key."""

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_SCOPES = (*_FUNCTIONS, ast.ClassDef)
_NO_DRAWS = {
    *("", "collections", "dataclasses", "functools", "logging", "math", "numpy", "pathlib", "pfl", "re"),
    "typing",
}
"""Packages whose functions draw no random numbers, unless their name contains "rand"."""
_NO_MEANING = {"ctx", "kind", "type_comment"}  # ignored fields of syntax trees


@dataclass(frozen=True)
class Module:
    """The parts of a source file that count.

    Attributes:
        contents: a digest of the names that it defines.
        imports: the modules and names that it imports, also inside functions.
        names: each name that it imports at the top level, and what the name refers to.
        statements: a digest of each top-level statement, followed by what its imported names refer to.
        public: the names in its ``__all__``; None if it has none.
    """

    contents: str
    imports: list[str]
    names: dict[str, str]
    statements: list[list[str]]
    public: list[str] | None = None


_PARSING = Lock()
"""CPython 3.11 may raise a SystemError if several threads parse at once."""


def analysed(source: bytes, package: str) -> Module:
    """The parts of a source file in ``package`` that count; all of a template, which is not Python."""
    try:
        with _PARSING:
            statements = list(_that_run(ast.parse(source).body))
    except (SyntaxError, ValueError):
        return Module("", [], {}, [[hashlib.sha256(source).hexdigest()]])
    names = _imported(statements, package, inside=False)
    bound = [_bound(statement) for statement in statements]
    count = Counter(name for names_of in bound for name in names_of)
    lines, others, public = [], [], None
    for statement, names_of in zip(statements, bound, strict=True):
        if "__all__" in names_of:
            listed = [part.value for part in ast.walk(statement) if isinstance(part, ast.Constant)]
            public = sorted({*(public or ()), *map(str, listed)})
        elif (
            isinstance(statement, _DEFINITIONS)
            and all(count[name] == 1 for name in names_of)
            and not _depends_on_order(statement, names, count)
        ):
            lines.append(_line([statement], names, package))
        elif not isinstance(statement, ast.Import | ast.ImportFrom) or _is_star(statement):
            others.append(statement)
    if others:  # their order counts
        lines.append(_line(others, names, package))
    lines += [[f"__all__ {name}", names[name]] for name in public or () if name in names]
    lines += [["star", origin] for name, origin, _ in _imports(statements, package) if name == "*"]
    lines += [[_order(name, statements, package)] for name in names if name in count]
    imports = {module for name in _imports(statements, package) for module in name[1:]}
    contents = hashed(" ".join(sorted(count.keys() - {"__all__"})))
    return Module(contents, sorted(imports), names, lines, public)


def _depends_on_order(statement: ast.stmt, names: Mapping[str, str], own: Iterable[str]) -> bool:
    """Whether a definition calls a function that may draw random numbers or change an object of the module:
    one of the module itself, or one imported from outside `_NO_DRAWS`."""
    return any(
        _root(node.func) in own or any(map(_may_draw, (_dotted(node.func, names) or "").split("|")))
        for node in _defining(statement)
        if isinstance(node, ast.Call)
    )


def _may_draw(function: str) -> bool:
    """Whether the function with this full name may draw random numbers; "" stands for any not imported."""
    return "rand" in function or top_level(function) not in _NO_DRAWS


def _defining(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes of a statement except the bodies of functions, which run later."""
    yield node
    for name, value in ast.iter_fields(node):
        if name != "body" or not isinstance(node, _FUNCTIONS):
            for part in value if isinstance(value, list) else [value]:
                if isinstance(part, ast.AST):
                    yield from _defining(part)


def _order(name: str, statements: Iterable[ast.stmt], package: str) -> str:
    """A digest of the order in which statements import and define a name: the last of them counts."""
    order = [
        kind
        for statement in statements
        for kind, names in (
            ("imported", _imported([statement], package, inside=False)),
            ("defined", _bound(statement)),
        )
        if name in names
    ]
    return hashed(" ".join([name, *order]))


def _line(statements: Sequence[ast.stmt], names: Mapping[str, str], package: str) -> list[str]:
    """The digest of statements, and what their imported names refer to."""
    references: list[str] = []
    own = {**names, **_imported(statements, package, inside=True)}
    local = {name for part in statements for name in _bound(part, inside=True)}
    normal = [_normal(statement, own, local, references) for statement in statements]
    return [hashed(json.dumps(normal)), *references]


def _normal(node: Any, names: Mapping[str, str], local: set[str], references: list[str]) -> Any:
    """A syntax tree as nested lists of strings, equal for source texts with the same meaning.

    Args:
        names: imported names, and what they refer to.
        local: names that the statement itself binds.
        references: receives what the imported names in the tree refer to, in order.
    """

    def normal(part: Any) -> Any:
        return _normal(part, names, local, references)

    if not isinstance(node, ast.AST):
        return str(node)
    if isinstance(node, ast.Constant):
        value = node.value
        return ["Constant", type(value).__name__, hex(value) if type(value) is int else ascii(value)]
    if isinstance(node, ast.Name | ast.Attribute) and (origin := _dotted(node, names)):
        references.append(origin)
        if _root(node) not in local:
            return ["imported"]
    if isinstance(node, ast.Call) and _dotted(node.func, names) == "pfl.core.hyper.hyper":
        kept = [keyword for keyword in node.keywords if keyword.arg in (None, *DECLARED)]
        return ["hyper", *map(normal, node.args[:1]), *map(normal, kept)]
    if isinstance(node, ast.JoinedStr):
        return ["JoinedStr", *map(normal, _joined(node.values))]
    parts: list[Any] = [type(node).__name__]
    if isinstance(node, ast.ClassDef):  # an import there defines an attribute
        references += [names[name] for name, *_ in _imports(node.body, "", inside=False) if name in names]
    for name, value in ast.iter_fields(node):
        if isinstance(value, list):
            running = _that_run(value) if name in ("body", "orelse", "finalbody") else value
            if isinstance(node, ast.ClassDef):
                running = (part for part in running if not _is_family(part))
            parts += (
                [[name, *inside]]
                if (inside := [normal(part) for part in running if not _is_empty(part)])
                else []
            )
        elif value is not None and name not in _NO_MEANING and not _is_no_format(value):
            parts.append([name, normal(value)])
    return parts


def _is_no_format(value: Any) -> bool:
    """Whether it is the empty format of ``f"{x:}"``, which some versions of Python omit."""
    return isinstance(value, ast.JoinedStr) and not value.values


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


def _is_empty(node: Any) -> bool:
    """Whether a statement has no effect, like a docstring, or is an import."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    return isinstance(node, ast.Pass) or (
        isinstance(node, ast.Import | ast.ImportFrom) and not _is_star(node)
    )


def _is_family(node: Any) -> bool:
    """Whether a statement sets the family under which the documentation lists a method."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Constant) or len(node.targets) > 1:
        return False
    return _root(node.targets[0]) == "family" and node.value.value in FAMILIES


def _is_star(node: ast.AST) -> bool:
    return isinstance(node, ast.ImportFrom) and node.names[0].name == "*"


def _that_run(statements: Iterable[Any]) -> Iterator[Any]:
    """``statements`` without docstrings and those for type checkers only."""
    for statement in statements:
        if isinstance(statement, ast.If) and _for_types(statement.test):
            yield from _that_run(statement.orelse)
        elif not isinstance(statement, ast.Expr | ast.Pass) or not _is_empty(statement):
            yield statement


def _for_types(test: ast.expr) -> bool:
    name = test.id if isinstance(test, ast.Name) else test.attr if isinstance(test, ast.Attribute) else ""
    return name == "TYPE_CHECKING"


def _root(node: ast.AST) -> str:
    """The first part of a dotted name."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _dotted(node: ast.AST, names: Mapping[str, str]) -> str | None:
    """What a name or its attribute refers to; None if the name was not imported."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute) and (base := _dotted(node.value, names)):
        return "|".join(f"{origin}.{node.attr}" for origin in base.split("|"))
    return None


def _walked(statements: Iterable[ast.AST], inside: bool) -> Iterator[ast.AST]:
    """All nodes of ``statements`` that run, without those of functions and classes unless ``inside``."""
    for statement in _that_run(statements):
        yield statement
        if inside or not isinstance(statement, _SCOPES):
            yield from _walked(ast.iter_child_nodes(statement), inside)


def _bound(statement: ast.stmt, inside: bool = False) -> set[str]:
    """The names that a statement binds other than by imports; with ``inside``, also in nested scopes."""
    names = set()
    for node in _walked([statement], inside):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            names.add(node.name)
    return names


def _imports(statements: Iterable[ast.stmt], package: str, inside: bool = True) -> Iterator[tuple[str, ...]]:
    """Yield each imported name, what it refers to, and the module that it comes from."""
    for node in _walked(statements, inside):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.asname or top_level(alias.name)
                yield top, (alias.name if alias.asname else top), alias.name
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                yield alias.asname or alias.name, f"{module}.{alias.name}", module


def _imported(statements: Iterable[ast.stmt], package: str, inside: bool) -> dict[str, str]:
    """What each imported name refers to; all origins, separated by "|", if it is imported more than once."""
    names: dict[str, str] = {}
    for name, origin, _ in _imports(statements, package, inside):
        if name != "*" and origin not in names.get(name, "").split("|"):
            names[name] = f"{names[name]}|{origin}" if name in names else origin
    return names


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
