"""Provenance of the running code: a checkout or an installed release, and plugins."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pfl.client_metrics import CLIENT_METRICS
from pfl.core.syntax import top_level
from pfl.methods import METHODS
from pfl.models import MODELS
from pfl.run.fingerprint import digest_of_plugin

ROOT = Path(__file__).resolve().parents[1]
DISTRIBUTION = "pfl-repro"
SHOWS = ("cli", "data/plot.py", "run/progress.py", "run/runs.py", "core/terminal.py", "core/text.py")
"""Files and folders of the simulator that only print and draw, and do not affect results."""


@dataclass(frozen=True)
class Plugin:
    """A plugin package with a method, a network or a metric.

    Attributes:
        name, version: those of the distribution.
        digest: that of its package and its imports (`pfl.run.fingerprint.digest_of_plugin`).
    """

    name: str
    version: str
    digest: str


@dataclass(frozen=True)
class Release:
    """An installed distribution of the simulator.

    Attributes:
        edited: whether a file that affects results has changed since the installation.
    """

    version: str
    edited: bool


@cache
def digest() -> str:
    """SHA-256 of the simulator's files that affect results."""
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
    if ROOT / "run/sources.py" not in recorded:
        return None
    edited = any(recorded.get(path) != _as_recorded(path) for path in _files())
    return Release(distribution.version, edited)


def _as_recorded(path: Path) -> str:
    """The checksum of a file in the form of a distribution's RECORD."""
    checksum = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest())
    return checksum.rstrip(b"=").decode()


def _files() -> list[Path]:
    """The simulator's files that affect results, sorted."""
    shows = [ROOT / name for name in SHOWS]
    code = (path for path in ROOT.rglob("*") if path.suffix in (".py", ".cpp", ".h"))
    return sorted(path for path in code if not any(path.is_relative_to(shown) for shown in shows))


@cache
def plugins_of(method: str, model: str, metrics: tuple[str, ...] = ()) -> tuple[Plugin, ...]:
    """The plugins that a method, a network and metrics come from; none if all are built in."""
    known = [METHODS.plugin(method), MODELS.plugin(model), *map(CLIENT_METRICS.plugin, metrics)]
    points = [point for point in known if point]
    plugins = {}
    for point in points:
        package = top_level(point.module)
        name, version = (point.dist.name, point.dist.version) if point.dist else (package, "unknown")
        plugins[name] = Plugin(name, version, digest_of_plugin(package))
    return tuple(plugins.values())


def digest_of(files: Iterable[Path]) -> str:
    """SHA-256 of files and their names."""
    digest = hashlib.sha256()
    for path in files:
        where = path.relative_to(ROOT.parent) if path.is_relative_to(ROOT) else path.name
        digest.update(str(where).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
