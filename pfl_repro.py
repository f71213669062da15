"""The command `pfl`, which first checks that the package `pfl` is not another distribution's."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path


def foreign() -> str | None:
    """The line that says which other package `import pfl` finds; None if it finds this project's."""
    spec = find_spec("pfl")
    file = Path(spec.origin) if spec and spec.origin else None
    if file and "from pfl.core" in file.read_text(encoding="utf-8"):
        return None
    problem = f"{file} is of another distribution" if file else "no such package"
    return f"pfl: {problem}; `pip uninstall pfl`, then install pfl-repro again"


def main() -> None:
    """Run ``pfl``."""
    if line := foreign():
        print(f"pfl: error: {line}", file=sys.stderr)
        sys.exit(2)
    try:
        from pfl.cli import main

        main()
    except KeyboardInterrupt:  # during the imports; later, the command line handles it
        print("pfl: interrupted", file=sys.stderr)
        sys.exit(130)
