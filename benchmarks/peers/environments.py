"""The frameworks, and the environments that they run in."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from pfl.core.errors import InvalidInput

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]


@dataclass(frozen=True)
class Peer:
    """A framework, or the textbook loop.

    Attributes:
        title: as in the table.
        files: what a user writes.
        requirements: exact versions; None means this project's environment.
        python: version of the interpreter.
        launcher: module that starts ``workers`` processes of the script, with its options.
        threads: whether torch has as many threads as cores; otherwise, one per process.
        environment: variables of the process.
    """

    title: str
    files: tuple[Path, ...]
    requirements: Path | None = None
    python: str = "3.11"
    launcher: tuple[str, ...] = ()
    threads: bool = False
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def script(self) -> Path:
        """The script to run."""
        return self.files[-1]


SCRIPTS, REQUIREMENTS = FOLDER / "scripts", FOLDER / "requirements"
PEERS = {
    "textbook": Peer(
        "textbook loop", (ROOT / "benchmarks/textbook.py", SCRIPTS / "textbook.py"), threads=True
    ),
    "ours": Peer("ours", (SCRIPTS / "ours.py",)),
    "flwr": Peer(
        "Flower",
        (SCRIPTS / "with_flwr.py",),
        REQUIREMENTS / "flwr.txt",
        environment=(("FLWR_TELEMETRY_ENABLED", "0"), ("RAY_USAGE_STATS_ENABLED", "0")),
    ),
    "pfl": Peer(
        "Apple's pfl",
        (SCRIPTS / "with_apple_pfl.py",),
        REQUIREMENTS / "pfl.txt",
        launcher=("torch.distributed.run", "--standalone", "--nproc-per-node"),
    ),
    "fluke-fl": Peer("fluke", (SCRIPTS / "with_fluke.py",), REQUIREMENTS / "fluke-fl.txt", threads=True),
    "blazefl": Peer("BlazeFL", (SCRIPTS / "with_blazefl.py",), REQUIREMENTS / "blazefl.txt", python="3.13"),
}
"""Frameworks by the name of their distribution."""


def interpreter(peer: Peer, environments: Path) -> Path:
    """The Python of the peer's environment, which is created if it is missing.

    Raises:
        InvalidInput: the environment cannot be created.
    """
    if peer.requirements is None:
        return Path(sys.executable)
    digest = hashlib.sha256(peer.python.encode() + peer.requirements.read_bytes()).hexdigest()
    folder = environments / f"{peer.requirements.stem}-{digest[:10]}"
    python, complete = folder / "bin/python", folder / "complete"
    if not complete.exists():
        uv = Path(sys.executable).parent / "uv"
        print(f"making the environment of {peer.title} in {folder}", flush=True)
        try:
            _run(uv, "venv", "--quiet", "--clear", "--no-python-downloads", "--python", peer.python, folder)
            _run(uv, "pip", "install", "--quiet", "--python", python, "--requirements", peer.requirements)
        except (OSError, subprocess.CalledProcessError) as error:
            accepted = f"a framework that can be installed with uv: {_reason(error)}"
            raise InvalidInput("only", peer.title, accepted) from error
        complete.touch()
    return python


def _reason(error: Exception) -> str:
    """Why uv failed: its error lines, which warnings may follow, or else its last line."""
    lines = [line.strip() for line in str(getattr(error, "stderr", "") or error).strip().splitlines()]
    return " ".join(line for line in lines if line.startswith("error:")) or lines[-1]


def _run(*command: object) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(list(map(str, command)), check=True, env=environment, capture_output=True, text=True)
