"""Checkpoints of a simulation: written atomically, loaded with weights only."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from pfl.engine.mixing import Bank
from pfl.engine.server import Server

FILE = "checkpoint.pt"


def write(path: Path, content: Any) -> None:
    """Write tensors, numbers, strings, lists and dictionaries to ``path``, all or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def save(folder: Path, content: dict[str, Any]) -> None:
    """Replace the checkpoint in ``folder``."""
    write(folder / FILE, content)


def load(folder: Path, device: torch.device) -> dict[str, Any] | None:
    """The checkpoint in ``folder``, or None where there is none."""
    path = folder / FILE
    return torch.load(path, map_location=device, weights_only=True) if path.exists() else None


def server_state(server: Server) -> dict[str, Any]:
    """Everything of ``server`` that training changes."""
    return {
        "round": server.round,
        "positions": server.positions,
        "bank": server.bank.tensors,
        "local": server.local.tensors,
        "state": server.state,
        "client_state": server.client_state,
    }


def restore_server(server: Server, state: dict[str, Any]) -> None:
    """Put back what `server_state` returned."""
    server.round = state["round"]
    server.positions = state["positions"].cpu()
    server.bank = Bank(state["bank"], server.clients)
    server.local = Bank(state["local"], server.clients)
    server.state = state["state"]
    server.client_state = state["client_state"]
