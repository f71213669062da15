"""The working directory of a command: the root of the project."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

PATHS = ("DATA_SOURCE", "PFL_CACHE")
"""Environment variables with a path, which is relative to where a command is given."""


def in_project(command: Callable[..., Any]) -> Callable[..., Any]:
    """``command``, run in the root of the project that contains the working directory, if there is one."""

    @functools.wraps(command)
    def run(*arguments: Any, **options: Any) -> Any:
        here, root = Path.cwd(), _root()
        for name in PATHS if root != here else ():
            if (path := os.environ.get(name)) and not path.startswith("~"):
                os.environ[name] = str(here / path)
        os.chdir(root)
        return command(*arguments, **options)

    return run


def in_root(path: str) -> str:
    """A relative path as it is in the root of the project; for options that may also be a name."""
    return path if Path(path).is_absolute() else os.path.relpath(path, _root())


def _root() -> Path:
    here = Path.cwd()
    return next(filter(_is_project, (here, *here.parents)), here)


def _is_project(folder: Path) -> bool:
    return (folder / "params.yaml").is_file() and (folder / "tables").is_dir()
