"""Checks of the cluster at RAY_ADDRESS and of its nodes, before a trial is sent there."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pfl.errors import InvalidInput
from pfl.trials import commit
from pipeline.store.workspace import SCRATCH

GUIDE = "(see docs/cluster.md)"
SECONDS_TO_ANSWER = 60


def check_cluster(address: str) -> None:
    """Check that a cluster answers, accepts our token, and refuses clients without a token. Ray itself would
    wait minutes for a cluster that is gone, and silently join one that is open to everybody.

    Raises:
        InvalidInput: one of these does not hold.
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
        raise InvalidInput("RAY_ADDRESS", address, f"a cluster that takes this user's token {GUIDE}")


def _ask(address: str, mode: str) -> subprocess.Popen[bytes]:
    """A process that ends with 0 if the cluster answers it, given a mode of authentication."""
    return subprocess.Popen(
        [Path(sys.executable).with_name("ray"), "health-check", "--address", address],
        env={**os.environ, "RAY_AUTH_MODE": mode},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def check_nodes(nodes: Iterable[Mapping[str, Any]]) -> None:
    """Check that every node sees this folder under the same path and runs the same sources.

    Args:
        nodes: as `ray.nodes` has them.

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
                ).remote(mark, commit().sources),
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
    """What the current node lacks; None if nothing.

    Args:
        mark: a file in the scratch of the project.
        sources: `pfl.trials.commit` of the sweep.
    """
    if not mark.exists():
        return f"the folder {mark.parent.parent} of the sweep, on storage that all nodes share"
    if commit().sources != sources:
        return "the sources of the sweep"
    return None
