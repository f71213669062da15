"""Preconditions of a sweep outside its table: folders, environment variables, a cluster and its nodes.

`pfl check` tests them, and a sweep tests them again before it starts Ray.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pfl.core.cores import cores
from pfl.core.errors import InvalidInput
from pfl.core.files import cache_root
from pfl.run.sources import running_code
from pipeline.store.workspace import SCRATCH, check_folder
from pipeline.trackers import TRACKERS, tracker_name

GUIDE = "(see docs/cluster.md)"
SECONDS_TO_ANSWER = 60

SCRATCH_PREFIX = "pfl-sweep-"
"""Prefix of the folders for Ray's files in the system's temporary folder."""

LONGEST_TEMPORARY = 43 - len(f"/{SCRATCH_PREFIX}xxxxxxxx/ray")
"""Maximum length in bytes of the path of Ray's temporary folder: the path of a socket (`AF_UNIX`) has at most
107, and Ray appends "/session_<time>_<process>/sockets/plasma_store".
"""


def check_environment() -> list[str]:
    """Check everything that a sweep of any table needs on this machine; return the warnings.

    Raises:
        InvalidInput: for the first violated precondition.
    """
    check_folder("PFL_CACHE", cache_root())
    check_folder("folder", SCRATCH)
    TRACKERS[tracker_name()].check()
    if address := os.environ.get("RAY_ADDRESS"):
        check_cluster(address)
    else:
        cores()  # raises if its limit is not a number
        temporary_folder(LONGEST_TEMPORARY)
    odd = sorted({letter for letter in str(Path.cwd()) if letter == "#" or not letter.isascii()})
    if not odd:
        return []
    return [
        f"`dvc exp run --temp` and `--queue` fail in this folder, as its path has {' and '.join(odd)}; "
        "`dvc repro` and plain `dvc exp run` work"
    ]


def temporary_folder(longest: int | None = None) -> Path:
    """The system's temporary folder, or another if its path has more than ``longest`` bytes.

    Raises:
        InvalidInput: there is no writable one.
    """
    asked = os.environ.get("TMPDIR", "")
    try:
        usual = Path(tempfile.gettempdir())
    except FileNotFoundError:
        raise InvalidInput("TMPDIR", asked, "a folder that can be written") from None
    if longest is None or len(os.fsencode(usual)) <= longest:
        return usual
    for place in filter(Path.is_dir, map(Path, ("/tmp", "/var/tmp", "/dev/shm"))):
        if os.access(place, os.W_OK | os.X_OK):
            return place
    accepted = f"a folder whose path has at most {longest} bytes, for Ray's sockets"
    raise InvalidInput("TMPDIR", str(usual), accepted)


def check_cluster(address: str) -> None:
    """Check that a cluster answers, accepts our token, and rejects clients without a token. Ray itself would
    wait minutes for a cluster that does not answer, and would silently join one without authentication.

    Raises:
        InvalidInput: one of these conditions does not hold.
    """
    host, colon, port = address.rpartition(":")
    if "/" in address or not (colon or address == "auto"):
        raise InvalidInput("RAY_ADDRESS", address, f"HOST:PORT of the head node, or auto {GUIDE}")
    try:
        if colon:
            socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, ValueError) as error:
        raise InvalidInput("RAY_ADDRESS", address, f"the address of a running cluster ({error})") from None
    asked = {mode: _ask(address, mode) for mode in ("token", "disabled")}
    try:
        let_in = {mode: process.wait(SECONDS_TO_ANSWER) == 0 for mode, process in asked.items()}
    except subprocess.TimeoutExpired:
        accepted = f"a running cluster (no answer in {SECONDS_TO_ANSWER} s)"
        raise InvalidInput("RAY_ADDRESS", address, accepted) from None
    finally:
        for process in asked.values():
            process.kill()
    if let_in["disabled"]:
        raise InvalidInput("RAY_ADDRESS", address, f"a cluster started with RAY_AUTH_MODE=token {GUIDE}")
    if not let_in["token"]:
        raise InvalidInput("RAY_ADDRESS", address, f"a cluster that accepts this user's token {GUIDE}")


def _ask(address: str, mode: str) -> subprocess.Popen[bytes]:
    """Start a process that exits with 0 if the cluster answers it in this authentication mode."""
    ray = (sys.executable, "-m", "ray.scripts.scripts")  # its command may be elsewhere, as with pip's --user
    return subprocess.Popen(
        [*ray, "health-check", "--address", address],
        env={**os.environ, "RAY_AUTH_MODE": mode},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def check_nodes(nodes: Iterable[Mapping[str, Any]]) -> None:
    """Check that every node sees this folder under the same path, runs the same sources and has a cache.

    Args:
        nodes: as returned by `ray.nodes`.

    Raises:
        InvalidInput: a node does not; the message names it.
    """
    import ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    mark = (SCRATCH / f"nodes-{secrets.token_hex(8)}").absolute()
    mark.parent.mkdir(exist_ok=True)
    mark.touch()
    ask = ray.remote(num_cpus=0, max_retries=0)(lacking)
    try:
        asked = [
            (
                node["NodeManagerAddress"],
                ask.options(
                    scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                ).remote(mark, running_code().sources),
            )
            for node in nodes
        ]
        for name, answer in asked:
            try:
                lacks = ray.get(answer)
            except RayError as error:
                lacks = f"the environment ({str(error).strip().splitlines()[-1]})"
            if lacks:
                raise InvalidInput("RAY_ADDRESS: node", name, f"one with {lacks} {GUIDE}")
    finally:
        mark.unlink()


def lacking(mark: Path, sources: str) -> str | None:
    """What the current node lacks; None if it lacks nothing.

    Args:
        mark: a file in the project's scratch folder.
        sources: that of `pfl.run.sources.running_code` in the sweep.
    """
    if not mark.exists():
        return f"the folder {mark.parent.parent} of the sweep, on storage that all nodes share"
    if running_code().sources != sources:
        return "the sources of the sweep"
    try:
        check_folder("PFL_CACHE", cache_root())
    except InvalidInput as error:
        return f"a cache ({error})"
    return None
