"""Loading times and memory of a data set, each load in its own process.

Run with the name of a data set, this file loads it once and prints its `Load` as JSON.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

from pfl.core import memory


@dataclass(frozen=True)
class Load:
    """One call of `pfl.data.dataset.load`.

    Attributes:
        seconds: wall time.
        peak_bytes: peak resident memory of the process.
        bytes_before: the same until just before the call: Python and the libraries.
    """

    seconds: float
    peak_bytes: int
    bytes_before: int


def measure(name: str, repeats: int) -> tuple[list[Load], list[Load]]:
    """Loads of a data set into an empty cache, and the loads after them from that cache.

    Args:
        name: name of an available data set.
        repeats: how often, each time with a new cache.
    """
    first, cached = [], []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory(prefix="pfl-") as cache:
            first.append(_in_new_process(name, cache))
            cached.append(_in_new_process(name, cache))
    return first, cached


def _in_new_process(name: str, cache: str) -> Load:
    done = subprocess.run(
        [sys.executable, "-P", __file__, name],
        env={**os.environ, "PFL_CACHE": cache, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        check=True,
    )
    return Load(**json.loads(done.stdout))


def _load_once(name: str) -> Load:
    from pfl.data.dataset import load

    before = memory.peak()
    began = time.perf_counter()
    load(name, progress=False)
    return Load(time.perf_counter() - began, memory.peak(), before)


if __name__ == "__main__":
    print(json.dumps(dataclasses.asdict(_load_once(sys.argv[1]))))
