"""Options for the device, threads and files of a command."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from pfl.core.config import Execution
from pfl.core.errors import InvalidInput
from pfl.core.files import check_writable
from pfl.run.validation import check_execution, execution_warnings


def execution_of(
    device: str, backend: str, threads: int, workers: int | None, checkpoint: Path | None, save: Path | None
) -> Execution:
    """The execution that a command's options describe; prints a warning for probable mistakes.

    Raises:
        InvalidInput: an option is not accepted.
    """
    execution = Execution(
        device=device,
        backend=backend,  # type: ignore[arg-type]
        threads=threads,
        workers=workers,
        checkpoint_dir=str(checkpoint) if checkpoint else None,
        save=str(save) if save else None,
    )
    check_execution(execution)
    for line in execution_warnings(execution):
        print(f"pfl: warning: {line}", file=sys.stderr)
    return execution


def check_files(written: Mapping[str, Path | None]) -> None:
    """Check that each file can be written, by the option that gave it.

    Raises:
        InvalidInput: one cannot, or two are the same.
    """
    option_of: dict[Path, str] = {}
    for parameter, path in written.items():
        if path:
            check_writable(path, parameter)
            if other := option_of.get(path.resolve()):
                raise InvalidInput(parameter, str(path), f"a file different from that of {other}")
            option_of[path.resolve()] = parameter
