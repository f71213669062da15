"""Which code a simulation runs: the files that its method and its network reach by imports, and plugins."""

from __future__ import annotations

import ast
import base64
import hashlib
import importlib.metadata
import importlib.util
import sysconfig
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path

from pfl.methods import METHODS
from pfl.models import MODELS

ROOT = Path(__file__).resolve().parent
DISTRIBUTION = "pfl-repro"
LIBRARIES = ("numpy", "scikit-learn", "scipy", "torch", "torchvision")
"""Libraries of which a new version may move numbers."""
SHOWS = ("cli", "data/plot.py", "progress.py", "runs.py", "terminal.py", "text.py")
"""Those of the simulator's files and folders that print and draw: no number comes from them."""

_BEGAN = time.time()
_STDLIB = Path(sysconfig.get_path("stdlib")).resolve()
_LIBRARY_FOLDERS = {"site-packages", "dist-packages"}  # folders of installed libraries


@dataclass(frozen=True)
class Plugin:
    """A plugin package with a method or a network.

    Attributes:
        name, version: of the distribution.
        digest: SHA-256 of the files of its package, and of those that it imports, without pfl's and without
            installed libraries.
    """

    name: str
    version: str
    digest: str


@dataclass(frozen=True)
class Code:
    """The code of a method with a network.

    Attributes:
        digest: of what its files say, without comments and docstrings, and of the libraries' versions.
        edited: a file has changed since this process began, which may run what was there before.
    """

    digest: str
    edited: bool


@dataclass(frozen=True)
class Release:
    """An installed distribution of the simulator.

    Attributes:
        edited: a file that numbers come from is not as it was installed.
    """

    version: str
    edited: bool


@cache
def digest() -> str:
    """SHA-256 of the simulator's files that numbers come from."""
    return digest_of(_files())


def release() -> Release | None:
    """The distribution that the running code was installed from; None for a checkout (editable or not)."""
    try:
        distribution = importlib.metadata.distribution(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return None
    recorded = {
        Path(str(file.locate())).resolve(): file.hash.value for file in distribution.files or () if file.hash
    }
    if ROOT / "sources.py" not in recorded:
        return None
    edited = any(recorded.get(path) != _as_recorded(path) for path in _files())
    return Release(distribution.version, edited)


def _as_recorded(path: Path) -> str:
    """The checksum of a file in the form of a distribution's RECORD."""
    checksum = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest())
    return checksum.rstrip(b"=").decode()


def _files() -> list[Path]:
    """The simulator's that numbers come from, sorted."""
    shows = [ROOT / name for name in SHOWS]
    code = (path for path in ROOT.rglob("*") if path.suffix in (".py", ".cpp"))
    return sorted(path for path in code if not any(path.is_relative_to(one) for one in shows))


@cache
def code_of(method: str, model: str) -> Code:
    """The code that decides the numbers of a method with a network."""
    files = reached(["pfl.behaviour", METHODS.module(method), MODELS.module(model)])
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.name.encode() + b"\0" + _meaning(path) + b"\0")
    for library in LIBRARIES:
        digest.update(f"{library} {importlib.metadata.version(library)}\0".encode())
    return Code(digest.hexdigest(), edited=any(path.stat().st_mtime > _BEGAN for path in files))


@cache
def plugins_of(method: str, model: str) -> tuple[Plugin, ...]:
    """The plugins that a method and a network come from; none if both are built in."""
    points = [point for point in (METHODS.plugin(method), MODELS.plugin(model)) if point]
    modules: dict[tuple[str, str], list[str]] = {}
    for point in points:
        known = (point.dist.name, point.dist.version) if point.dist else (_top(point.module), "unknown")
        modules.setdefault(known, []).append(point.module)
    return tuple(
        Plugin(*known, digest_of([path for path in reached(of) if not path.is_relative_to(ROOT)]))
        for known, of in modules.items()
    )


def digest_of(files: Sequence[Path]) -> str:
    """SHA-256 of files and of their names."""
    digest = hashlib.sha256()
    for path in files:
        where = path.relative_to(ROOT.parent) if path.is_relative_to(ROOT) else path.name
        digest.update(str(where).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _meaning(path: Path) -> bytes:
    """The content of a file that matters: for a Python file, without comments and docstrings."""
    if path.suffix != ".py":
        return path.read_bytes()
    tree = _parsed(path)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            node.body = [part for part in node.body if not _is_text(part)]
    return ast.dump(tree).encode()


def _is_text(node: ast.stmt) -> bool:
    """Whether it is a docstring, of an attribute or of what is around it."""
    text = node.value if isinstance(node, ast.Expr) else None
    return isinstance(text, ast.Constant) and isinstance(text.value, str)


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes())


def reached(modules: Sequence[str], ignored: Collection[str] = ()) -> list[Path]:
    """The files of ``modules`` and of all that they import, without installed libraries.

    Of a plugin's package these are all its files.

    Args:
        ignored: modules that are left out, with what only they import.
    """
    packages = {_top(name) for name in modules}
    pending, known, files = list(modules), {*modules, *ignored}, set[Path]()
    for package in packages - {"pfl"}:
        pending += _submodules(package)
    while pending:
        name = pending.pop()
        spec = _spec(name) if _top(name) in packages or not _is_installed(_top(name)) else None
        if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
            continue
        path = Path(spec.origin).resolve()
        files |= {path, *path.parent.glob("*.cpp")}
        package = name if spec.submodule_search_locations else name.rpartition(".")[0]
        fresh = {name.rpartition(".")[0], *_imports(path, package)} - known - {""}
        known |= fresh
        pending += fresh
    return sorted(files)


def _top(module: str) -> str:
    return module.partition(".")[0]


@cache
def _is_installed(package: str) -> bool:
    """Whether a package is of the standard library or an installed library, or not there at all."""
    spec = _spec(package)
    if spec is None or spec.origin is None:
        return spec is None or not spec.submodule_search_locations
    path = Path(spec.origin).resolve()
    return path.is_relative_to(_STDLIB) or not _LIBRARY_FOLDERS.isdisjoint(path.parts)


def _spec(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, AttributeError, ValueError):  # a function that was imported by name is no module
        return None


def _submodules(package: str) -> Iterator[str]:
    """All modules of a package, which may import one another in ways that its text does not show."""
    spec = _spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in Path(folder).rglob("*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            yield ".".join((package, *(part for part in parts if part != "__init__")))


def _imports(path: Path, package: str) -> Iterator[str]:
    """The modules that a file imports, also inside functions."""
    for node in ast.walk(_parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield from (module, *(f"{module}.{alias.name}" for alias in node.names))
