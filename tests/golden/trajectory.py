"""Golden trajectories: three rounds of every method in float64, and every default.

``make golden`` writes them, after an edit that was to move them.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from pfl.config import Config
from pfl.methods import METHODS
from pfl.simulation import simulate
from pfl.testing.federation import make_clients, make_dataset
from pfl.validation import validated
from tests.conftest import CONFIG

FILE = Path(__file__).with_name("trajectories.json")


def trajectory(method: str) -> dict[str, Any]:
    """Defaults, and losses and accuracies of three rounds."""
    data = make_dataset()
    config = dataclasses.replace(CONFIG, method=method)
    (result,) = simulate(config, data, make_clients(data, sizes=[20, 9, 14, 5, 16, 12]), (0,))
    return {
        "defaults": validated(Config(method=method)).to_dict(),
        "rounds": [
            {
                "post_aggregation": entry["post_aggregation"],
                "post_local": entry["post_local"],
                "train_loss": entry["train_loss"],
                "bytes_up": entry["bytes_up"],
                "bytes_down": entry["bytes_down"],
            }
            for entry in result.metrics.to_json()["rounds"]
        ],
    }


if __name__ == "__main__":
    golden = {method: trajectory(method) for method in METHODS}
    FILE.write_text(json.dumps(golden, indent=1) + "\n")
    print(f"{len(golden)} trajectories written to {FILE}")
