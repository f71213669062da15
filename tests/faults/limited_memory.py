"""``python -m tests.faults.limited_memory [MB]``: a simulation on the stacked backend, in so much more memory
than the process has when it begins; prints what was evaluated."""

from __future__ import annotations

import dataclasses
import json
import resource
import sys
from pathlib import Path

import torch

from pfl.core.config import Execution
from pfl.run.simulate import simulate_configs
from pfl.testing.synthetic import make_clients, make_dataset
from tests.conftest import CONFIG

EXECUTION = Execution(backend="stacked")


def main() -> None:
    torch.backends.mkldnn.set_flags(False)  # type: ignore[no-untyped-call]  # its allocator has an error of its own
    data = make_dataset(samples=2000)
    config = dataclasses.replace(
        CONFIG, rounds=1, epochs=1, batch_size=32, participation=1.0, dtype="float32"
    )
    # torch loads what it needs
    simulate_configs([config], data, make_clients(data, sizes=[8]), (0,), EXECUTION)
    if len(sys.argv) > 1:
        now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        limit = now + int(sys.argv[1]) * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    ((result,),) = simulate_configs([config], data, make_clients(data, sizes=[32] * 40), (0,), EXECUTION)
    print(json.dumps(result.metrics.to_json()["rounds"]))


if __name__ == "__main__":
    main()
