"""The working directory of a command: the root of the project."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def in_project(command: Callable[..., Any]) -> Callable[..., Any]:
    """``command``, run in the root of the project that contains the working directory, if there is one."""

    @functools.wraps(command)
    def run(*arguments: Any, **options: Any) -> Any:
        here = Path.cwd()
        os.chdir(next(filter(_is_project, (here, *here.parents)), here))
        return command(*arguments, **options)

    return run


def _is_project(folder: Path) -> bool:
    return (folder / "params.yaml").is_file() and (folder / "tables").is_dir()
