"""Golden trajectories of the networks: three rounds of FedAvg in float64, which float32 follows to rounding.

``python -m tests.golden.networks`` writes them, with torch's own operations. Other golden trajectories are in
float64 alone and do not see what is faster in float32.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from unittest.mock import patch

from pfl.config import Config
from pfl.kernels import conv_block
from pfl.simulation import simulate
from pfl.testing.federation import make_clients, make_dataset
from tests.conftest import CONFIG

FILE = Path(__file__).with_name("networks.json")
SHAPES = {
    "cnn_digits": (1, 8, 8),
    "lenet4": (3, 16, 16),
    "lenet5": (1, 20, 20),
    "lenet5_bn": (3, 16, 16),
    "spfl_cnn": (3, 20, 18),
    "cnn4": (3, 16, 16),
    "resnet8": (3, 32, 32),
    "resnet10": (3, 32, 32),
}
"""Of the images. Batches are of 16 and fewer, so that the last ones of an epoch are torch's."""

LR = 0.01  # small: rounding grows from step to step as the trajectory's curvature has it


def losses(model: str, dtype: str) -> list[float]:
    """Mean training loss of each round."""
    data = make_dataset(SHAPES[model], samples=160)
    config: Config = dataclasses.replace(CONFIG, model=model, dtype=dtype, batch_size=16, lr=LR)
    metrics = simulate(config, data, make_clients(data, sizes=[32, 20, 30, 14], tests=4), (0,))[0].metrics
    return [entry.train_loss for entry in metrics.rounds]


def without_kernels():
    """Inside, every network is computed by torch's own operations."""
    return patch.object(conv_block, "INSTRUCTIONS", ())


if __name__ == "__main__":
    with without_kernels():
        golden = {model: losses(model, "float64") for model in SHAPES}
    FILE.write_text(json.dumps(golden, indent=1) + "\n")
    print(f"{len(golden)} networks written to {FILE}")
