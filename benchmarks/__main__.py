"""``python -m benchmarks``: run all benchmarks in turn, and draw ``reports/engineering/speed/``.

Nothing else should run on the machine. Each benchmark is a process of its own on its usual work.
"""

from __future__ import annotations

import os
import subprocess
import sys

import torch

from benchmarks.report import FOLDER, PLOTS, main
from pfl.kernels.conv_block import tiles

COMMANDS = {"tiles": ["throughput", "--precisions"], "bf16": ["accuracy", "--bf16"]}
"""Of plots that no benchmark has the name of; both on a CPU with Intel AMX."""

for name in PLOTS:
    if (name == "gpu" and not torch.cuda.is_available()) or (name in COMMANDS and not tiles()):
        continue
    benchmark, *options = COMMANDS.get(name, [name])
    command = [sys.executable, "-m", f"benchmarks.{benchmark}", *options]
    command += ["--json", str(FOLDER / f"{name}.json")]
    print(f"\n$ {' '.join(command[1:-2])}", flush=True)
    subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
main()
