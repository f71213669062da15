"""The papers of the repository, in the project of a test."""

from __future__ import annotations

import shutil
from pathlib import Path

from pipeline.spec.paths import PAPERS

ROOT = Path(__file__).parents[1]


def copy_numbers(root: Path) -> None:
    """Copy every paper's description and numbers, without its tables and figures."""
    shutil.copytree(ROOT / PAPERS, root / PAPERS, ignore=shutil.ignore_patterns("tables", "figures"))
