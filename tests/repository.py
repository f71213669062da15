"""This repository's files in another folder, a commit there, and edits of files."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def copy_files(folder: Path, *left_out: str) -> None:
    """Copy this repository's files as they are, except those whose path begins with one of ``left_out``."""
    listed = ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in names:
        if (ROOT / name).is_file() and not name.startswith(left_out):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)


def copy_numbers(root: Path) -> None:
    """Copy every paper's description and numbers, without its tables and figures."""
    shutil.copytree(ROOT / "papers", root / "papers", ignore=shutil.ignore_patterns("tables", "figures"))


def commit(folder: Path) -> None:
    """Commit all files of a folder, which becomes a repository unless it is one."""
    for command in (
        ("init", "--quiet"),
        ("config", "user.name", "Tests"),
        ("config", "user.email", "tests@example.org"),
        ("add", "--all"),
        ("commit", "--quiet", "--allow-empty", "--message", "state"),
    ):
        subprocess.run(["git", *command], cwd=folder, check=True)


def replace_text(file: Path, old: str, new: str) -> str:
    """Replace a text that occurs in a file, and return the former content."""
    content = file.read_text()
    assert old in content
    file.write_text(content.replace(old, new))
    return content
