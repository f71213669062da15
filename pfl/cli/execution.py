"""Options for the device, threads and files of a command."""

from __future__ import annotations

from pathlib import Path

from pfl.config import Execution
from pfl.validation import check_execution

CHECKPOINT = "checkpoint.pt"  # pfl.engine.checkpoint.FILE, without torch


def execution_of(
    device: str, backend: str, threads: int, checkpoint: Path | None, save: Path | None
) -> Execution:
    """The execution that a command's options describe.

    Raises:
        InvalidInput: an option is not accepted.
    """
    execution = Execution(
        device=device,
        backend=backend,  # type: ignore[arg-type]
        threads=threads,
        checkpoint_dir=str(checkpoint) if checkpoint else None,
        save=str(save) if save else None,
    )
    check_execution(execution)
    return execution
