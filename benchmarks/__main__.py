"""``python -m benchmarks``: run all benchmarks in turn, and draw ``reports/engineering/speed/``.

Nothing else should run on the machine. Each benchmark runs in its own process with its default workload.
"""

from __future__ import annotations

import os
import subprocess
import sys

import torch

from benchmarks.report import BENCHMARKS, FOLDER, TABLES, main
from pfl.kernels.conv_block import tiles

failed = []
for name in (*BENCHMARKS, *(TABLES if tiles() else ())):
    if name == "gpu" and not torch.cuda.is_available():
        continue
    benchmark, *options = TABLES.get(name, [name])
    command = [sys.executable, "-m", f"benchmarks.{benchmark}", *options]
    command += ["--json", str(FOLDER / f"{name}.json")]
    print(f"\n$ {' '.join(command[1:-2])}", flush=True)
    if subprocess.run(command, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"}).returncode:
        failed.append(name)
main()
if failed:
    sys.exit(f"failed, or only measured in part: {', '.join(failed)}")
