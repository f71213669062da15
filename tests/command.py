"""The command ``pfl``, run in this process, and Python in one of its own, which takes longer."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess
from unittest.mock import patch

from pfl import cli
from pfl.cli import app


def pfl(*arguments: str) -> CompletedProcess[str]:
    """Run ``pfl`` with these arguments; what it prints and how it ends."""
    out, err = io.StringIO(), io.StringIO()
    hook = patch.object(sys, "unraisablehook", sys.unraisablehook)
    # A call adds the pipeline's commands to those of the calls before, and all of them would be built.
    commands, groups = [*app.registered_commands], [*app.registered_groups]
    as_before = patch.multiple(app, registered_commands=commands, registered_groups=groups)
    with hook, as_before, patch.object(sys, "argv", ["pfl", *arguments]), patch.object(cli, "gc"):
        try:
            with redirect_stdout(out), redirect_stderr(err):
                cli.main()
        except SystemExit as end:
            status = end.code or 0
    return CompletedProcess(arguments, status, out.getvalue(), err.getvalue())


def refused(*arguments: str) -> str:
    """The line with which ``pfl`` refuses these arguments, all that it prints."""
    done = pfl(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    return line


def python(
    *arguments: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None, check: bool = True
) -> CompletedProcess[str]:
    """Run Python with the variables of this process and of ``env``; ``check`` that it ends well."""
    command = [sys.executable, *arguments]
    variables = {**os.environ, **(env or {})}
    done = subprocess.run(command, env=variables, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0 or not check, done.stderr
    return done
