"""What a sweep will cost, told before it starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from pipeline.formats import duration

if TYPE_CHECKING:
    from pipeline.agenda import Agenda
    from pipeline.ledger import Ledger

SAMPLES_PER_SECOND = 10_000
"""Trained on by one core, where the ledger knows no better: LeNet-5 on 32x32 images."""

BYTES_PER_TRIAL = 300_000  # a ledger row, twice, and a run in MLflow
BYTES_PER_SCALAR = 4
LARGE_CORE_HOURS = 2.0


@dataclass(frozen=True)
class Estimate:
    """Of what is left of a sweep.

    Attributes:
        trials: simulations that are not in the ledger.
        core_hours: of one core, at the speed of earlier trials with the same networks.
        disk_bytes: of the ledger, of MLflow, of the checkpoints of trials that are under way, and of models
            that are kept.
    """

    trials: int
    core_hours: float
    disk_bytes: float

    @classmethod
    def of(cls, agenda: Agenda, ledger: Ledger, datasets: Mapping[str, Any], slots: int) -> Estimate:
        """Estimate what ``agenda`` still runs.

        Args:
            datasets: the manifest's.
            slots: trials that run side by side.
        """
        trials, core_seconds, checkpoint, kept = 0, 0.0, 0, 0
        counted: set[str] = set()
        for cell in agenda.cells:
            config, sizes = cell.cell.config, cell.partition.sizes
            keys = cell.keys - cell.seen - counted
            counted |= keys
            left = len(keys) + cell.to_come
            samples = config.rounds * config.epochs * config.participation * sizes.sum()
            trials += left
            core_seconds += left * samples / (ledger.speed(config.model) or SAMPLES_PER_SECOND)
            if left:
                data = datasets[cell.cell.dataset]
                scalars = _scalars(config.model, tuple(data["shape"]), data["classes"])
                models = len(sizes) * scalars * BYTES_PER_SCALAR
                checkpoint = max(checkpoint, models)
                if agenda.keeps_models:
                    kept += min(left, 2 * len(cell.pinned.keys)) * models
        return cls(trials, core_seconds / 3600, trials * BYTES_PER_TRIAL + slots * checkpoint + kept)

    def text(self, table: str, slots: int) -> str:
        """For the terminal, with how to run less where it is long."""
        hours = self.core_hours / slots
        shown = f"about {duration(3600 * hours)}" if hours < 1 else f"about {hours:.1f} hours"
        text = (
            f"{table}: {self.trials} trials to run, {slots} side by side, {shown} "
            f"({self.core_hours:.2g} core-hours), {self.disk_bytes / 1e6:.0f} MB of disk"
        )
        if self.core_hours > LARGE_CORE_HOURS:
            text += (
                f"\nTo run a part of it: dvc exp run -S 'tables=[{table}]' -S 'subset.settings=[...]' "
                "-S 'subset.methods=[...]' -S 'subset.seeds=[...]'. What has run is not run again."
            )
        return text


@cache
def _scalars(model: str, shape: tuple[int, int, int], classes: int) -> int:
    """Parameters and buffers of a network, counted without computing them."""
    import torch

    from pfl.models import MODELS

    with torch.device("meta"):
        return sum(tensor.numel() for tensor in MODELS[model](shape, classes).state_dict().values())
