"""Provenance of a result: commit and plugins."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pfl.run import sources
from pfl.run.sources import DISTRIBUTION


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


def plugins(config: Mapping[str, Any]) -> tuple[sources.Plugin, ...]:
    """The plugins that the method, the network or the metrics of a configuration come from."""
    return sources.plugins_of(config["method"], config["model"], tuple(config.get("metrics", ())))


@cache
def commit() -> Sources:
    """The code that is running."""
    root = sources.ROOT.parent
    if release := sources.release():
        name, edited = f"{DISTRIBUTION} {release.version}", release.edited
    elif knows(root, "pfl/__init__.py") and (head := git(root, "rev-parse", "HEAD")):
        shows = (f":!pfl/{shown}" for shown in sources.SHOWS)
        name, edited = head, bool(edits(root, "pfl", *shows, "requirements.lock"))
    else:
        name, edited = "unknown", True
    return Sources(name, edited, sources.digest())


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
    except (OSError, subprocess.CalledProcessError):
        return None
