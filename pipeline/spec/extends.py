"""Tables that extend another table and state only the differences."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pfl.core.errors import InvalidInput, unknown_name
from pipeline.spec.paths import table_file, table_names
from pipeline.spec.yaml import located, parse


@dataclass(frozen=True)
class Source:
    """The file of a table or a figure.

    Attributes:
        file: its path.
        content: the file's content without ``extends``.
    """

    file: Path
    content: Any


def lineage(name: str) -> list[Source]:
    """The files of a table or a figure and of all tables that it extends, the base first.

    Raises:
        InvalidInput: a file is not YAML, or the table that it extends is unknown or extends this one.
    """
    sources: list[Source] = []
    names = [name]
    while True:
        file = table_file(names[-1])
        content = parse(file)
        sources.insert(0, Source(file, content))
        if not isinstance(content, dict) or "extends" not in content:
            return sources
        base = content.pop("extends")
        with located(str(file)):
            if base not in (known := table_names()):
                raise unknown_name("extends", str(base), known)
            if base in names:
                raise InvalidInput("extends", base, "a table that does not extend this one")
        names.append(base)


def extended(base: Mapping[str, Any], own: Source, name: str) -> dict[str, Any]:
    """The content of a table that extends another one.

    Mappings are merged, ``null`` removes a key, and any other value replaces that of the base. If a table
    lists settings or rows, it has only these. Those whose name is also in the base start from the base's.
    Inherited sources for anything that the table does not have are dropped.

    Args:
        base: the content of a valid table.
        own: the file of the table that extends it.
        name: the base's name, for messages.

    Raises:
        InvalidInput: ``null`` removes a key that the base does not have.
    """
    changes = dict(own.content)
    axes: dict[str, Any] = {}
    with located(str(own.file)):
        if isinstance(changes.get("settings"), dict):
            axes["settings"] = {
                key: _begun(base["settings"].get(key, {}), setting, "partition", name, f"settings.{key}.")
                for key, setting in changes.pop("settings").items()
            }
        if isinstance(changes.get("methods"), list):
            axes["methods"] = _rows(base["methods"], changes.pop("methods"), name)
        content = _merged(base, changes, name) | axes
    if isinstance(sources := content.get("sources"), dict):
        stated = own.content.get("sources") or {}
        content["sources"] = {
            key: text for key, text in sources.items() if key in stated or has_entry(content, str(key))
        }
    return content


def _merged(
    base: Mapping[str, Any], changes: Mapping[str, Any], name: str, where: str = ""
) -> dict[str, Any]:
    """``base`` with ``changes``; ``where`` is the path in the table, ending with a dot."""
    content = dict(base)
    for key, value in changes.items():
        place = f"{where}{key}"
        if value is None:
            if key not in base:
                raise InvalidInput(place, "null", f"a key of {name}, which null removes")
            del content[key]
        elif isinstance(value, dict):
            inherited = base.get(key)
            content[key] = _merged(inherited if isinstance(inherited, dict) else {}, value, name, f"{place}.")
        else:
            content[key] = value
    return content


def _rows(base: list[Any], own: list[Any], name: str) -> list[Any]:
    """The rows of ``own``, each merged into the row of the same name in ``base``, if there is one."""
    inherited = {_row_name(row): row for row in base}
    rows = []
    for row in own:
        known = inherited.get(_row_name(row))
        if known is not None and isinstance(row, str):
            rows.append(known)
        else:
            rows.append(_begun(known or {}, row, "method", name, f"methods.{_row_name(row)}."))
    return rows


def _begun(base: Any, own: Any, key: str, name: str, where: str) -> Any:
    """A setting or a row, merged into that of the base."""
    base, own = _long_form(key, base), _long_form(key, own)
    return _merged(base, own, name, where) if isinstance(own, dict) else own


def _long_form(key: str, value: Any) -> Any:
    """The mapping that a bare string is short for; see `pipeline.spec.axes.short_form`."""
    return {key: value} if isinstance(value, str) else value


def _row_name(row: Any) -> str:
    return str(row.get("as", row.get("method")) if isinstance(row, dict) else row)


def has_entry(content: Mapping[str, Any], key: str) -> bool:
    """Whether a table states what a key of its ``sources`` names."""
    first, _, rest = key.partition(".")
    settings, rows = content.get("settings"), content.get("methods")
    if first == "settings" and rest and isinstance(settings, dict):
        stated = [(str(name), {*_keys(_long_form("partition", own))}) for name, own in settings.items()]
        return _names(stated, rest) or any(rest in keys for _, keys in stated)
    if first == "methods" and rest and isinstance(rows, list):
        its_cells = {f"settings.{name}" for name in settings} if isinstance(settings, dict) else set()
        stated = [
            (name, {*_keys(row), *_keys(row.get("params")), *its_cells})
            for row in (_long_form("method", row) for row in rows)
            if isinstance(row, dict)
            for name in (_row_name(row), str(row.get("method")))
        ]
        return _names(stated, rest)
    return first in content


def _names(stated: Sequence[tuple[str, Collection[str]]], key: str) -> bool:
    """Whether ``key`` is a name in ``stated``, or a name and one of its keys. Names may contain dots."""
    return any(key == name or key in {f"{name}.{own}" for own in keys} for name, keys in stated)


def _keys(content: Any) -> Iterator[str]:
    """The keys of nested mappings, joined with dots."""
    if isinstance(content, dict):
        for key, value in content.items():
            yield from (str(key), *(f"{key}.{rest}" for rest in _keys(value)))
