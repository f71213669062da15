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
        requirements: exact versions; None runs in this project's environment.
        python: version of the interpreter.
        launcher: module that starts ``workers`` processes of the script, with its options.
        threads: threads of torch are as many as cores; otherwise one per process.
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
        return self.files[-1]


def _peer(distribution: str, script: str, **options: object) -> Peer:
    requirements = FOLDER / f"requirements/{distribution}.txt"
    return Peer(distribution, (FOLDER / "scripts" / script,), requirements, **options)  # type: ignore[arg-type]


PEERS = {
    "textbook": Peer(
        "textbook loop", (ROOT / "benchmarks/naive.py", FOLDER / "scripts/textbook.py"), threads=True
    ),
    "ours": Peer("ours", (FOLDER / "scripts/ours.py",)),
    "flwr": _peer(
        "flwr",
        "with_flwr.py",
        environment=(("FLWR_TELEMETRY_ENABLED", "0"), ("RAY_USAGE_STATS_ENABLED", "0")),
    ),
    "pfl": _peer(
        "pfl", "with_apple_pfl.py", launcher=("torch.distributed.run", "--standalone", "--nproc-per-node")
    ),
    "fluke-fl": _peer("fluke-fl", "with_fluke.py", threads=True),
    "blazefl": _peer("blazefl", "with_blazefl.py", python="3.13"),
}
"""By the name of the distribution."""


def interpreter(peer: Peer, environments: Path) -> Path:
    """The Python of the peer's environment, which is made if it is missing.

    Raises:
        InvalidInput: the environment cannot be made.
    """
    if peer.requirements is None:
        return Path(sys.executable)
    digest = hashlib.sha256(peer.python.encode() + peer.requirements.read_bytes()).hexdigest()
    folder = environments / f"{peer.title}-{digest[:10]}"
    python, complete = folder / "bin/python", folder / "complete"
    if not complete.exists():
        uv = Path(sys.executable).parent / "uv"
        print(f"making the environment of {peer.title} in {folder}", flush=True)
        try:
            _run(uv, "venv", "--quiet", "--clear", "--no-python-downloads", "--python", peer.python, folder)
            _run(uv, "pip", "install", "--quiet", "--python", python, "--requirements", peer.requirements)
        except (OSError, subprocess.CalledProcessError) as error:
            reason = str(getattr(error, "stderr", "") or error).strip().splitlines()[-1].strip()
            raise InvalidInput(
                "only", peer.title, f"a framework that can be installed with uv: {reason}"
            ) from error
        complete.touch()
    return python


def _run(*command: object) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(list(map(str, command)), check=True, env=environment, capture_output=True, text=True)
