"""The command ``pfl``. Other packages add subcommands through entry points of the group ``pfl.commands``."""

from __future__ import annotations

import _thread
import errno
import gc
import io
import os
import sys
import sysconfig
import threading
import traceback
import warnings
from importlib.metadata import entry_points
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any

import typer

from pfl import __version__
from pfl.cli import behaviours, doctor, lists, partition, run, trials
from pfl.core.errors import DataWarning, InvalidInput, OptionWarning
from pfl.core.files import expanded

app = typer.Typer(
    help="Personalised federated learning: simulate, compare, reproduce.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
app.command()(run.run)
app.command()(trials.run_trials)
for lister in (lists.methods, lists.datasets, lists.models, lists.partitions, lists.metrics):
    app.command()(lister)
app.command()(partition.partition)
app.command()(behaviours.behaviours)
app.command()(doctor.doctor)

OTHER_NAMES = {
    "--algorithm": "--method",
    "--alpha": "--partition dirichlet:ALPHA",
    "--bs": "--batch-size",
    "--comm-rounds": "--rounds",
    "--drop-last": "--last-batch dropped",
    "--frac": "--participation",
    "--global-rounds": "--rounds",
    "--gpu": "--device cuda",
    "--join-ratio": "--participation",
    "--learning-rate": "--lr",
    "--local-epochs": "--epochs",
    "--network": "--model",
    "--num-clients": "--clients",
    "--num-rounds": "--rounds",
    "--output": "--json FILE",
}
"""Options of other programs, and our names for them."""

UNUSABLE = (
    errno.EACCES,
    errno.EPERM,
    errno.EEXIST,
    errno.EISDIR,
    errno.ENOTDIR,
    errno.ENAMETOOLONG,
    errno.EIO,
)
"""Errors of a file or folder that a command cannot use, such as a file in place of a folder."""


def _version(wanted: bool) -> None:
    if wanted:
        print(f"pfl {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


UsageError: type[BaseException] = typer.BadParameter.__mro__[1]  # of the click bundled with typer


def main() -> None:
    """Run ``pfl``. A user's mistake gives one line on standard error and exit status 2."""
    # Objects loaded by torch, Ray and MLflow are not garbage; scanning them costs a second at start and end.
    gc.set_threshold(100_000)
    _show_every_name()
    warnings.formatwarning = _format
    sys.unraisablehook = _interrupt_again
    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:  # closed by the caller
            setattr(sys, stream, Path(os.devnull).open("w"))  # noqa: SIM115
    for point in entry_points(group="pfl.commands"):
        point.load()(app)
    try:
        status = _status()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output has exited, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still buffered
        status = 1
    if status == 130:
        print("pfl: interrupted", file=sys.stderr)
    if "triton" not in sys.modules:  # its bindings report objects that live until exit as leaks
        gc.freeze()
    sys.exit(status)


def _status() -> int | None:
    """Run the command and report any error; returns the exit status."""
    status: int | None
    try:
        status = app(list(map(_with_home, sys.argv[1:])), standalone_mode=False)
    except UsageError as error:
        status = _usage(error)
    except (KeyboardInterrupt, typer.Abort):
        status = 130
    except BaseException as error:
        if isinstance(error, SystemExit) and _origin(error).startswith("typer."):
            # Raised at the end of Tab completion, or in place of a BrokenPipeError.
            raise error.__context__ or error from None
        message = _explained(error)
        if message is None:
            traceback.print_exception(error.with_traceback(_from_own_file(error)))
            return 1
        status = _fail(message)
    return status


def _with_home(argument: str) -> str:
    """``argument`` with ~ expanded where shells do not, as in --save=~/models.pt."""
    option, _, value = argument.partition("=")
    is_home = option.startswith("--") and value.startswith("~")
    return f"{option}={expanded(value, option)}" if is_home else argument


def _explained(error: BaseException) -> str | None:
    """The line that tells the user how to fix an error; None if it is a bug in the code."""
    text = None
    if isinstance(error, InvalidInput):
        text = str(error)
    elif isinstance(error, ModuleNotFoundError):
        if (error.name or "").partition(".")[0] not in ("pfl", "pipeline"):
            needed = "the extra 'pipeline' of pfl-repro's wheel (in a checkout: make .venv)"
            text = f"{error.name} is not installed; this command needs {needed}"
    elif isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        text = f"{error.filename or 'a file'} cannot be written ({error.strerror})"
    elif isinstance(error, OSError) and error.filename and error.errno in UNUSABLE:
        text = f"{error.filename} cannot be used ({error.strerror})"
    elif isinstance(error, FileNotFoundError) and not error.filename:  # from os.getcwd()
        text = "the working directory has been deleted"
    elif isinstance(error, SystemExit):
        text = f"a plugin or a library has called sys.exit({'' if error.code is None else repr(error.code)})"
    elif isinstance(error, MemoryError | RuntimeError):
        from pfl.run.errors import cause_of, trace_of

        text = None if trace_of(error) else cause_of(error)
    return text


def _origin(error: BaseException) -> str:
    """The name of the module that raised an error."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals["__name__"])


def _from_own_file(error: BaseException) -> TracebackType | None:
    """The traceback from the first file that may be the user's; all of it if there is none.

    Such a file is a method, a network, or neither ours nor installed; its callers are not at fault. A syntax
    error names its file and needs no traceback.
    """
    if isinstance(error, SyntaxError):
        return None
    package = Path(__file__).parents[1]
    installed = map(Path, map(sysconfig.get_path, ("stdlib", "purelib", "platlib")))
    ours = [package, package.with_name("pipeline"), *installed]
    components = [package / "methods", package / "models"]
    trace = error.__traceback__
    while trace:
        file = Path(trace.tb_frame.f_code.co_filename)
        is_users = not str(file).startswith("<") and not any(map(file.is_relative_to, ours))
        if is_users or any(map(file.is_relative_to, components)):
            break
        trace = trace.tb_next
    return trace or error.__traceback__


def _interrupt_again(dropped: sys.UnraisableHookArgs) -> None:
    """Repeat a Ctrl-C that arrived in a finaliser or another callback, whose exceptions Python drops."""
    if dropped.exc_type is KeyboardInterrupt:
        threading.Timer(0.05, _thread.interrupt_main).start()  # after the callback has ended
    else:
        sys.__unraisablehook__(dropped)


def _show_every_name() -> None:
    """Escape characters that the terminal's encoding lacks, for example in class names, instead of raising an
    error.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _format(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Show warnings about data or options as one line, and others as usual."""
    if issubclass(category, DataWarning | OptionWarning):
        return f"pfl: warning: {message}\n"
    return _usual_format(message, category, filename, lineno, line)


_usual_format = warnings.formatwarning


def _usage(error: Any) -> int:
    """Print a usage error, with our name for an option of another program. Without a command, print the
    help.
    """
    message: str = error.format_message()
    if type(error).__name__ == "NoArgsIsHelpError":
        print(message)
        return 0
    if errors := getattr(error.__cause__, "errors", None):  # pydantic's message omits the value
        mistake = errors()[0]
        accepted = mistake["msg"].partition(",")[0].removeprefix("Input should be ")
        return _fail(str(InvalidInput(error.param.name, mistake["input"], accepted)))
    ours = OTHER_NAMES.get(getattr(error, "option_name", ""))
    return _fail(f"{message.partition(' (')[0]} (here it is {ours})" if ours else message)


def _fail(message: str) -> int:
    print(f"pfl: error: {message}", file=sys.stderr)
    return 2
