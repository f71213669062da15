"""What a simulation is computed on."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from pfl.core.errors import InvalidInput
from pfl.engine.device import resolve_device
from tests.command import python
from tests.repository import ROOT

PIPELINE = ("cmaes", "dvc", "itables", "jinja2", "markdown_it", "matplotlib", "mlflow", "msgspec", "optuna")
PIPELINE += ("pandas", "psutil", "pydantic", "ray", "rich", "ruamel", "scikit_posthocs")
"""What only the pipeline and its tests need."""


def test_a_gpu_that_is_absent_is_one_clear_line(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(InvalidInput, match="device: cuda is not accepted; expected cpu"):
        resolve_device("cuda")


def test_a_machine_with_a_gpu_needs_no_more_than_the_simulator():
    without = "import sys; " + "".join(f"sys.modules[{name!r}] = None; " for name in PIPELINE)
    collect = "['-m', 'gpu', '--collect-only', '-p', 'no:cacheprovider']"
    python("-c", f"{without}import benchmarks.gpu, pytest; sys.exit(pytest.main({collect}))", cwd=ROOT)


def operations_compiled(before: str) -> int:
    """By oneDNN, for convolutions of 1,100 batch sizes, which come twice."""
    program = f"""
import torch
from pfl.engine import device
{before}
images, weight = torch.zeros(1100, 1, 3, 3), torch.zeros(1, 1, 3, 3)
for size in [*range(1, 1101)] * 2:
    torch.conv2d(images[:size], weight)
"""
    verbose = {**os.environ, "ONEDNN_VERBOSE": "profile_create"}
    verbose.pop("ONEDNN_PRIMITIVE_CACHE_CAPACITY", None)  # of this process, which may have simulated
    command = (sys.executable, "-c", program)
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=verbose)
    return done.stdout.count("create:cache_miss")


def test_operations_stay_compiled_that_come_again():
    assert 0 < operations_compiled("device.keep_compiled()") <= operations_compiled("") / 2 + 10
