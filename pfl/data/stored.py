"""The parts of a cached data set that simulations use.

They are read after the checksums were computed, so this file counts as a part of the engine
(`pfl.run.fingerprint`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np


def read(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fields of a `pfl.data.dataset.Dataset` in the folder of a cache entry, and its meta.json."""
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    labels = np.load(folder / "labels.npy")
    fields = {
        # copy-on-write: torch accepts it without a warning, and writes never reach the file
        "images": np.memmap(folder / "images.bin", meta["dtype"], "c", shape=(len(labels), *meta["shape"])),
        "labels": labels,
        "n_train": meta["n_train"],
        **{name: tuple(meta[name]) for name in ("classes", "mean", "std")},
        "columns": {name: np.load(folder / f"column{i}.npy") for i, name in enumerate(meta["columns"])},
        "tokens": meta["tokens"],
        "checksum": meta["checksum"],
    }
    return fields, meta
