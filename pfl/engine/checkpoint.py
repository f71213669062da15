"""Checkpoints of a simulation: written atomically, loaded with weights only."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from pfl.core.config import CHECKPOINT, CHECKPOINT_EVERY
from pfl.core.errors import Conflict, InvalidInput
from pfl.core.files import replacing, wait_for_space
from pfl.core.text import first_line
from pfl.engine.metrics import Accuracy, ClientMetric, Evaluated, Unseen, UnseenClient
from pfl.engine.server import Server

log = logging.getLogger(__name__)

EVERY = CHECKPOINT_EVERY
DIGEST_BYTES = 32  # appended to torch's file
BLOCK_BYTES = 2**20
ARRAYS: list[Any] = [np.zeros(0).__reduce__()[0], np.ndarray, np.dtype]
ARRAYS += {type(np.dtype(code)) for code in np.typecodes["AllInteger"] + np.typecodes["AllFloat"] + "?U"}
"""What torch needs to load NumPy's arrays, which `Measure` may return."""
CLASSES: list[Any] = [Accuracy, ClientMetric, Evaluated, Unseen, UnseenClient, *ARRAYS]
"""The only classes whose objects a checkpoint contains; loading one runs no code."""
MEASURED = (type(None), bool, int, float, complex, str, bytes, set, Tensor, np.ndarray)
"""Types of the values in what `Measure` returns that a checkpoint can store."""


def write(path: Path, content: Any, wait: bool = False) -> None:
    """Write tensors, numbers, strings, lists and dictionaries to ``path`` atomically.

    Args:
        wait: if the disk is full, wait for free space instead of raising.

    Raises:
        OSError: the file cannot be written.
    """

    def write_once() -> None:
        with replacing(path) as file:
            _dump(content, file)

    if wait:
        wait_for_space(path, write_once)
    else:
        write_once()


def save(folder: Path, content: dict[str, Any]) -> None:
    """Replace the checkpoint in ``folder``. If it cannot be written, a warning is logged and the simulation
    continues, because it does not need the checkpoint."""
    try:
        with replacing(folder / CHECKPOINT) as file:
            _dump(content, file)
            file.write(_digest(file, file.tell()))
    except OSError as error:
        log.warning("%s: no checkpoint could be written (%s)", folder, error.strerror)


def load(folder: Path) -> dict[str, Any] | None:
    """The checkpoint in ``folder``. None if there is none, or if it is damaged; a damaged one is renamed.

    Raises:
        InvalidInput: it is intact, but not a checkpoint; no code in it is run.
    """
    path = folder / CHECKPOINT
    if not path.exists():
        return None
    with path.open("rb") as file:
        length = path.stat().st_size - DIGEST_BYTES
        if length > 0 and _digest(file, length) == file.read():
            file.seek(0)
            with readable(folder), torch.serialization.safe_globals(CLASSES):
                content = torch.load(file, map_location="cpu", weights_only=True)
                return dict(content)
    aside = path.replace(path.with_suffix(".damaged"))
    log.warning("%s: the checkpoint is damaged, now %s; starting from the beginning", folder, aside.name)
    return None


@contextmanager
def readable(folder: Path) -> Iterator[None]:
    """A context that turns every error in reading the checkpoint in ``folder`` into one line.

    The digest detects only damage: any other file can have a valid one.
    """
    try:
        yield
    except InvalidInput:
        raise
    except KeyError as error:
        other = f"the one in {folder} was written by another version of pfl-repro, as it has no {error}"
        raise Conflict("checkpoint", other, "use an empty folder") from None
    except Exception as error:  # pickle, zip, type and shape errors have no common type
        accepted = (
            f"a folder whose checkpoint this simulation wrote ({type(error).__name__}: {first_line(error)})"
        )
        raise InvalidInput("checkpoint", str(folder), accepted) from None


def _dump(content: Any, file: BinaryIO) -> None:
    """`torch.save`, but raise the OSError that its RuntimeError hides."""
    try:
        torch.save(content, file)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


def _digest(file: BinaryIO, length: int) -> bytes:
    """SHA-256 of the first ``length`` bytes; torch alone would load wrong numbers from a damaged file."""
    file.seek(0)
    digest = hashlib.sha256()
    while length and (block := file.read(min(length, BLOCK_BYTES))):
        digest.update(block)
        length -= len(block)
    return digest.digest()


def server_state(server: Server) -> dict[str, Any]:
    """Everything in ``server`` that training changes."""
    return {
        "round": server.round,
        "rounds_read": server.rounds_read,
        "positions": server.positions,
        "store": server.store.state(),
        "local": server.local.state(),
        "state": server.state,
        "client_state": server.client_state,
    }


def restore_server(server: Server, state: dict[str, Any]) -> None:
    """Restore what `server_state` returned.

    Raises:
        ValueError: it belongs to another number of clients or to another network.
    """
    if any(len(rows) != server.clients for rows in (state["positions"], *tree_leaves(state["client_state"]))):
        raise ValueError(f"a state of {server.clients} clients is needed")
    if missing := server.store.stacks.keys() - state["store"].keys():
        raise ValueError(f"no {', '.join(sorted(missing))} is stored")
    server.round = state["round"]
    server.rounds_read = state["rounds_read"]
    server.positions = state["positions"]
    server.store.restore(state["store"], server.federation.device)
    server.local.restore(state["local"], server.federation.device)
    server.state = state["state"]
    server.client_state = state["client_state"]
    server.to_device()
