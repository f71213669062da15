"""Every network learns the same on every path: in float32, by the kernels and by torch's own operations."""

from __future__ import annotations

import json
from contextlib import nullcontext

import pytest

from tests.golden.networks import FILE, losses, without_kernels

GOLDEN = json.loads(FILE.read_text())

# Batch norm over few pixels makes residual networks sensitive: a rounding error that decides one ReLU
# otherwise moves a gradient by up to a per cent, in torch's operations as in the kernels.
FLOAT32 = {name: 2e-2 if name.startswith("resnet") else 1e-5 for name in GOLDEN}


@pytest.mark.parametrize("path", ["kernels", "torch"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    "model",
    [pytest.param(name, marks=pytest.mark.slow) if name.startswith("resnet") else name for name in GOLDEN],
)
def test_a_networks_losses_are_the_golden_ones(model, dtype, path):
    with without_kernels() if path == "torch" else nullcontext():
        ours = losses(model, dtype)
    assert ours == pytest.approx(GOLDEN[model], abs=1e-9 if dtype == "float64" else FLOAT32[model])
