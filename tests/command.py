"""The command ``pfl``, run in this process: a process of its own takes seconds to import torch."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from subprocess import CompletedProcess
from unittest.mock import patch

from pfl import cli


def pfl(*arguments: str) -> CompletedProcess[str]:
    """Run ``pfl`` with these arguments; what it prints and how it ends."""
    out, err = io.StringIO(), io.StringIO()
    hook = patch.object(sys, "unraisablehook", sys.unraisablehook)
    with hook, patch.object(sys, "argv", ["pfl", *arguments]), patch.object(cli, "gc"):
        try:
            with redirect_stdout(out), redirect_stderr(err):
                cli.main()
        except SystemExit as end:
            status = end.code or 0
    return CompletedProcess(arguments, status, out.getvalue(), err.getvalue())
