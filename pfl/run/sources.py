"""Provenance of the running code: a checkout or an installed release, and plugins."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import logging
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pfl.client_metrics import CLIENT_METRICS
from pfl.core.digests import RESULT_NEUTRAL
from pfl.core.syntax import top_level
from pfl.methods import METHODS
from pfl.models import MODELS
from pfl.run.fingerprint import digest_of_plugin

log = logging.getLogger(__name__)

ROOT = Path(__file__).resolve().parents[1]
DISTRIBUTION = "pfl-repro"
NEUTRAL = (
    *(f"{module.removeprefix('pfl.').replace('.', '/')}.py" for module in RESULT_NEUTRAL),
    *("behaviours.json", "cli", "data/plot.py", "run/runs.py", "testing"),
)
"""Files and folders of the simulator that do not affect results."""


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
class Sources:
    """The code that computed a result.

    Attributes:
        commit: the commit of a checkout, name and version of an installed package, or else "unknown".
        dirty: whether a file that affects results is not committed, or was edited after installation.
        sources: the SHA-256 of the simulator's files.
    """

    commit: str
    dirty: bool
    sources: str

    @property
    def version(self) -> str | None:
        """The version of the installed package; None for other code."""
        name, _, version = self.commit.partition(" ")
        return version if name == DISTRIBUTION else None

    @property
    def name(self) -> str:
        """The name of the code in reports: "commit 0123…", "pfl-repro 0.2.0" or "commit unknown"."""
        return (self.commit if self.version else f"commit {self.commit}") + (", edited" if self.dirty else "")


@cache
def running_code() -> Sources:
    """The code that is running."""
    root = ROOT.parent
    if installed := release():
        name, edited = installed
    elif knows(root, "pfl/__init__.py") and (head := git(root, "rev-parse", "HEAD")):
        neutral = (f":!pfl/{name}" for name in NEUTRAL)
        name, edited = head, bool(edits(root, "pfl", *neutral, "requirements.lock"))
    else:
        name, edited = "unknown", True
    return Sources(name, edited, digest_of(_files()))


def release() -> tuple[str, bool] | None:
    """Name and version of the distribution that the running code was installed from, and whether a file that
    affects results has changed since; None for a checkout (editable or not)."""
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
    return f"{DISTRIBUTION} {distribution.version}", edited


def _as_recorded(path: Path) -> str:
    """The checksum of a file in the form of a distribution's RECORD."""
    checksum = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest())
    return checksum.rstrip(b"=").decode()


def _files() -> list[Path]:
    """The simulator's files that affect results, sorted."""
    neutral = [ROOT / name for name in NEUTRAL]
    code = (path for path in ROOT.rglob("*") if path.suffix in (".py", ".cpp", ".h"))
    return sorted(path for path in code if not any(map(path.is_relative_to, neutral)))


def plugins(config: Mapping[str, Any]) -> tuple[Plugin, ...]:
    """The plugins that the method, the network and the metrics of a configuration come from."""
    points = [
        METHODS.plugin(config["method"]),
        MODELS.plugin(config["model"]),
        *map(CLIENT_METRICS.plugin, config.get("metrics", ())),
    ]
    plugins = {}
    for point in filter(None, points):
        package = top_level(point.module)
        name, version = (point.dist.name, point.dist.version) if point.dist else (package, "unknown")
        plugins[name] = Plugin(name, version, digest_of_plugin(package))
    return tuple(plugins.values())


def knows(root: Path, file: str) -> bool:
    """Whether a file is in the newest commit of the checkout ``root``; staged files do not count."""
    return git(root, "cat-file", "-e", f"HEAD:./{file}") is not None


def edits(root: Path, *paths: str) -> list[str]:
    """The changes below ``paths`` since the newest commit, untracked files included."""
    said = git(root, "status", "--porcelain", "--untracked-files=all", "--", *paths)
    return (said or "").splitlines()


def git(root: Path, *arguments: str) -> str | None:
    """The output of git in the checkout ``root``; None if it is not a checkout or git is not installed."""
    command = ["git", "-C", str(root), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.rstrip()
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", None) or ""
        if "safe.directory" in said:
            _warn(said.partition("\n")[0])
        return None


@cache
def _warn(said: str) -> None:
    log.warning("git: %s; records count as those of uncommitted files", said)


def digest_of(files: Iterable[Path]) -> str:
    """SHA-256 of files and their names."""
    digest = hashlib.sha256()
    for path in files:
        where = path.relative_to(ROOT.parent) if path.is_relative_to(ROOT) else path.name
        digest.update(str(where).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
