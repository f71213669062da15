"""Digests of code: modules, everything that they import, and the data files next to them.

A digest covers the names of the modules and their statements, import statements included, without what
`pfl.core.syntax` leaves out, such as comments. It does not depend on where the packages are, nor on what is
installed, because modules are located on disk, not imported.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import marshal
import os
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from pfl.core.began import BEGAN
from pfl.core.errors import Conflict, InvalidInput
from pfl.core.files import cache_root, folder_lock, write_text
from pfl.core.syntax import analysed, hashed, top_level, without_comments

RESULT_NEUTRAL = (
    *(f"pfl.core.{name}" for name in ("began", "digests", "errors", "families", "files", "syntax")),
    *(f"pfl.core.{name}" for name in ("terminal", "text", "version")),
    *(f"pfl.run.{name}" for name in ("fingerprint", "progress", "sources")),
)
"""Modules that do not affect results."""

IGNORED_FILES = ("behaviours.json", "py.typed")
C_SUFFIXES = (".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp")

_STDLIB = Path(sysconfig.get_path("stdlib")).resolve()
_LIBRARY_FOLDERS = {"site-packages", "dist-packages"}


class Edited(Conflict):
    """The source code has changed since this process started."""

    def __init__(self, path: str):
        super().__init__("source changed during the run", path, "run it again")

    def __reduce__(self) -> tuple[type[Edited], tuple[str]]:
        return Edited, (self.shown,)


class Code:
    """The source code on disk; each file is read once.

    Args:
        own: packages that count although they may be installed as libraries.
        outside: modules and packages that do not count; only the statements that import them do.
        roots: folders to search for packages first; this process need not run the code there.

    Raises:
        Edited: by all methods that read files, if this process may be running different code.
    """

    def __init__(
        self, own: Iterable[str] = (), outside: Sequence[str] = RESULT_NEUTRAL, roots: Sequence[Path] = ()
    ):
        self._own = {"pfl", *own}
        self._outside = outside
        self._roots = roots
        self._modules: dict[Path, tuple[str, list[str]]] = {}
        self._files: dict[str, Path | None] = {}
        self._listed: dict[tuple[Path, str], dict[Path, str]] = {}
        self._cached = _stored()
        self._fresh: dict[str, list[Any]] = {}

    def reached(
        self, modules: Iterable[str], excluded: Callable[[str], bool] = lambda _: False
    ) -> dict[str, Path]:
        """The files of ``modules`` and everything they import, by module, without installed libraries.

        Args:
            excluded: predicate of further modules to leave out, with what only they import.
        """
        files: dict[str, Path] = {}
        pending = list(modules)
        while pending:
            name = pending.pop()
            if name.endswith(".*"):  # a package's ``__all__`` may name modules
                pending += self.package(name[:-2]) if self.is_own(name) else []
                continue
            if name in files or self._is_outside(name) or excluded(name):
                continue
            if self.is_own(name) and (path := self.file(name)):
                files[name] = path
                parent = name.rpartition(".")[0]
                pending += [*([parent] if parent else []), *self.module(path, name)[1]]
        return files

    def package(self, name: str) -> dict[str, Path]:
        """The files of a package's modules, or of a single module, by module."""
        start = self.file(name)
        files = {name: start} if start else {}
        for folder in self._folders(name):
            for path in (path for path in _below(folder) if path.suffix == ".py"):
                parts = path.relative_to(folder).with_suffix("").parts
                files[".".join((name, *(part for part in parts if part != "__init__")))] = path
        return files

    def digest(
        self, files: Mapping[str, Path], whole: Iterable[str] = (), entry_points: Iterable[str] = ()
    ) -> str:
        """The digest of modules, given by name, and of the data files next to them.

        Args:
            whole: packages whose data files all count.
            entry_points: dotted names of the objects that are used.
        """
        lines = [f"{name} {self._content(path)}" for path, name in self.data(files, whole).items()]
        lines += [f"entry point {name}" for name in entry_points]
        lines += [f"{name} {self.module(path, name)[0]}" for name, path in files.items()]
        self._store()
        return hashed("\n".join(sorted(lines)))

    def data(self, files: Mapping[str, Path], whole: Iterable[str] = ()) -> dict[Path, str]:
        """The data files of modules, with their names; see `digest`."""
        folders = {path.parent for name, path in files.items() if "." in name or path.name == "__init__.py"}
        data: dict[Path, str] = {}
        for folder in folders:
            data |= self._beside(folder, "*")
        for folder in (folder for name in whole for folder in self._folders(name)):
            data |= self._beside(folder, "**/*")
        for path in files.values():  # elsewhere, only the data files that a module names count
            near = self._beside(path.parent, "*/*")
            if path.parent not in folders:
                near = near | self._beside(path.parent, "*")
            if near:
                text = path.read_bytes()
                data |= {
                    file: name
                    for file, name in near.items()
                    if all(os.fsencode(part) in text for part in name.split("/"))
                }
        return data

    def _is_outside(self, name: str) -> bool:
        return is_in(name, self._outside) or name == "pfl"  # "pfl" re-exports the public API

    def is_own(self, name: str) -> bool:
        """Whether a module counts: it exists, outside of installed libraries and the standard library."""
        top = top_level(name)
        if top in self._own:
            return True
        places = [path.resolve()] if (path := self.file(top)) else self._folders(top)
        return bool(places) and not is_library(places[0])

    def file(self, name: str) -> Path | None:
        """The file of a module, or a link to it beside its package's other files; None if it is not found."""
        if name not in self._files:
            parent, _, last = name.rpartition(".")
            places = self._folders(parent) if parent else self._roots
            paths = [
                path for folder in places for path in (folder / last / "__init__.py", folder / f"{last}.py")
            ]
            file = next((path.absolute() for path in paths if path.is_file()), None)
            if file is None and not parent and (spec := _spec(name)) and (spec.origin or "").endswith(".py"):
                file = Path(str(spec.origin)).absolute()
            self._files[name] = file
        return self._files[name]

    def _folders(self, package: str) -> list[Path]:
        """The folders of a package's modules."""
        path = self.file(package)
        if path is not None:
            return [path.parent] if path.name == "__init__.py" else []
        parent, _, last = package.rpartition(".")  # perhaps a namespace package
        if parent:
            return [folder / last for folder in self._folders(parent) if (folder / last).is_dir()]
        spec = _spec(package)
        return [Path(folder) for folder in (spec and spec.submodule_search_locations) or ()]

    def module(self, path: Path, name: str) -> tuple[str, list[str]]:
        """The digest of a source file, and the modules and names that it imports."""
        if path not in self._modules:
            package = name if path.name == "__init__.py" else name.rpartition(".")[0]
            compiled = Path(importlib.util.cache_from_source(str(path)))

            def examined(source: bytes) -> tuple[str, list[str]]:
                _check_compiled(path, source, compiled)
                return analysed(source, package)

            digest, imports = self._read(path, examined, package, compiled)
            self._modules[path] = digest, imports
        return self._modules[path]

    def _content(self, path: Path) -> str:
        """The digest of a data file; for a C source, without comments and formatting."""

        def digest(content: bytes) -> str:
            if path.suffix in C_SUFFIXES:
                content = without_comments(content.decode("latin-1")).encode()
            return hashlib.sha256(content).hexdigest()

        return str(self._read(path, digest))

    def _read(
        self, path: Path, examined: Callable[[bytes], Any], package: str = "", compiled: Path | None = None
    ) -> Any:
        """The result of ``examined`` for a file, from the cache if the file has not changed."""
        stamps = [_stamp(file) for file in (path, compiled) if file]
        entry = self._cached.get(str(path), ())
        if entry[:2] != [stamps, package]:
            content = path.read_bytes()
            result = examined(content)  # may remove the compiled file
            stamps = [_stamp(file) for file in (path, compiled) if file]
            entry = [stamps, package, hashlib.sha256(content).hexdigest(), result]
            if time.time() - path.stat().st_ctime > 1:  # otherwise another edit may have the same stamp
                self._fresh[str(path)] = entry
        edited = not self._roots and path.stat().st_ctime > BEGAN and entry[2] != _first.get(path)
        if edited and (compiled is None or _is_loaded(path)):
            ahead = path.stat().st_ctime > time.time()  # then the time does not show an edit
            hint = ", whose time is ahead of the clock (unless it was edited, set the clock or touch it)"
            raise Edited(f"{path}{hint if ahead else ''}")
        _first.setdefault(path, entry[2])
        return entry[3]

    def _beside(self, folder: Path, pattern: str) -> dict[Path, str]:
        """The files of a folder that a module may read, with their names relative to it."""
        if (folder, pattern) not in self._listed:
            paths = _below(folder) if pattern == "**/*" else folder.glob(pattern)
            named = {path: path.relative_to(folder) for path in paths if _is_data(path)}
            hidden = (".", "__pycache__")
            self._listed[folder, pattern] = {
                path: str(name)
                for path, name in named.items()
                if not any(part.startswith(hidden) for part in name.parts)
            }
        return self._listed[folder, pattern]

    def _store(self) -> None:
        """Save what was read for other processes; if it cannot be saved, they read the files again."""
        if self._fresh:
            file = _cache_file()
            with suppress(OSError, InvalidInput), folder_lock(file.parent):
                kept = {path: entry for path, entry in _stored().items() if Path(path).exists()}
                write_text(file, json.dumps(kept | self._fresh))
            self._cached |= self._fresh
            self._fresh = {}


_first: dict[Path, str] = {}
"""The digest of each file's content when this process first read it."""


def digest_of_modules(modules: Sequence[str]) -> str:
    """The digest of ``modules`` and all their imports, without installed libraries and `RESULT_NEUTRAL`."""
    code = Code(map(top_level, modules))
    return code.digest(code.reached(modules))


def is_in(module: str, packages: Iterable[str]) -> bool:
    """Whether a module is one of ``packages`` or inside one of them."""
    return f"{module}.".startswith(tuple(f"{package}." for package in packages))


# ---- files ---------------------------------------------------------------------------------------------


def _below(folder: Path) -> Iterator[Path]:
    """All files below a folder; links are followed, but not in cycles."""
    entered = set()
    for place, folders, names in os.walk(folder, followlinks=True):
        yield from (Path(place, name) for name in names)
        entered.add(os.path.realpath(place))
        folders[:] = [name for name in folders if os.path.realpath(Path(place, name)) not in entered]


def _is_data(path: Path) -> bool:
    """Whether a module may read this file, which is next to it, as data."""
    ignored = path.suffix in (".py", ".pyc") or path.name in IGNORED_FILES or path.name.endswith("~")
    return not ignored and path.is_file()


def _check_compiled(path: Path, source: bytes, compiled: Path) -> None:
    """Remove a compiled file that Python would accept, by time and size, although its code differs.

    Raises:
        Edited: it was already imported, or cannot be removed.
    """
    try:
        content = compiled.read_bytes()
        flags, modified, size = (int.from_bytes(content[i : i + 4], "little") for i in (4, 8, 12))
        stat = path.stat()
        if flags == 0 and (modified, size) != (int(stat.st_mtime) & 0xFFFFFFFF, stat.st_size & 0xFFFFFFFF):
            return  # Python detects that it is stale
        if marshal.loads(content[16:]) == compile(source, str(path), "exec", dont_inherit=True):
            return
    except (OSError, ValueError, EOFError, TypeError, SyntaxError):
        return
    with suppress(OSError):
        compiled.unlink()
    if compiled.exists() or _is_loaded(path):
        raise Edited(str(path))


def _is_loaded(path: Path) -> bool:
    """Whether this process has imported the file."""
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    return path.resolve() in {Path(file).resolve() for file in files if isinstance(file, str)}


def _stamp(path: Path) -> list[int]:
    """Differs between two contents of a file even if its times are reset; empty if there is no file."""
    try:
        stat = path.stat()
    except OSError:
        return []
    return [stat.st_ino, stat.st_ctime_ns, stat.st_size]


def _cache_file() -> Path:
    files = map(Path(__file__).with_name, ("digests.py", "families.py", "syntax.py"))
    own = hashed("".join(file.read_text(encoding="utf-8") for file in files))
    return cache_root() / "digests" / f"{sys.implementation.cache_tag}-{own}.json"


def _stored() -> dict[str, Any]:
    """What processes have saved of the files that they read, by path."""
    file = _cache_file()
    return dict(_content_of(file, *_stamp(file)))


@lru_cache(1)
def _content_of(file: Path, *_: int) -> dict[str, Any]:
    """The content of the cache file, given its stamp."""
    with suppress(OSError, ValueError):
        content = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(content, dict):
            return content
    return {}


@cache
def is_library(path: Path) -> bool:
    """Whether a top-level module or package is of the standard library or an installed library."""
    if path.is_relative_to(_STDLIB) or not _LIBRARY_FOLDERS.isdisjoint(path.parts):
        return True
    top = path.parent if path.name == "__init__.py" else path
    return top.name in _installed(top.parent)


@cache
def _installed(folder: Path) -> set[str]:
    """The top-level files and folders of the libraries in a folder of any name, as `pip install --target`
    makes them."""
    records = (path.read_text(encoding="utf-8") for path in folder.glob("*.dist-info/RECORD"))
    return {line.partition(",")[0].partition("/")[0] for record in records for line in record.splitlines()}


@cache
def _spec(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, AttributeError, ValueError):
        return None
