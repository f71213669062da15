"""Estimates of the cost of a table or a sweep, before it starts."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from pfl.core.text import amount, duration
from pipeline.spec.cells import Cell, cells
from pipeline.spec.paths import partition_file
from pipeline.spec.table import Table
from pipeline.sweep.calibration import Calibration, Sizes

if TYPE_CHECKING:
    from pfl.models import Shape
    from pipeline.sweep.scheduler import Scheduler

BYTES_PER_TRIAL = 300_000  # a ledger row, twice, and a run in MLflow
BYTES_PER_SCALAR = 4
LARGE_HOURS = 2.0
UNKNOWN = "?"


@dataclass(frozen=True)
class Amount:
    """A sum over a table's trials; if ``partial``, some are not known and the true sum is larger."""

    value: float
    partial: bool

    @classmethod
    def of(cls, trials: Sequence[float], parts: Sequence[float | None]) -> Amount:
        """From the number of trials of every cell and the known or unknown cost of each."""
        known = [number * part for number, part in zip(trials, parts, strict=True) if part is not None]
        return cls(sum(known), None in parts)

    @property
    def text(self) -> str:
        """The text in a list: "?" if nothing is known, ">" if a part is unknown.

        >>> Amount(5.63, partial=False).text, Amount(48000, partial=True).text, Amount(0, partial=True).text
        ('5.6', '> 48,000', '?')
        """
        if not self.value:
            return UNKNOWN if self.partial else "0"
        shown = f"{self.value:,.0f}" if self.value >= 10 else f"{self.value:.2g}"
        return f"> {shown}" if self.partial else shown


@dataclass(frozen=True)
class Extent:
    """How large a table is.

    Attributes:
        client_epochs: local epochs of all clients in all trials, as scheduled, also of rows that take a
            number of steps instead.
        core_hours, gpu_hours: on this machine, as far as it has been calibrated.
    """

    cells: int
    trials: int
    client_epochs: Amount
    core_hours: Amount
    gpu_hours: Amount

    @classmethod
    def of(cls, name: str, table: Table, calibration: Calibration) -> Extent:
        whole = cells(name, table)
        distinct = _distinct(whole)
        each = [table.simulations(cell.search) for cell in distinct]
        sizes = [sizes_of(cell, calibration) for cell in distinct]

        def hours(device: str) -> Amount:
            speeds = [calibration.speed(cell, device) for cell in distinct]
            together = zip(distinct, speeds, sizes, strict=True)
            return Amount.of(
                each, [v.seconds(c.config, n) / 3600 if v and n else None for c, v, n in together]
            )

        return cls(
            len(whole),
            round(sum(each)),
            Amount.of(each, [_client_epochs(c, n) for c, n in zip(distinct, sizes, strict=True)]),
            hours("cpu"),
            hours("cuda"),
        )


def size(name: str, table: Table) -> str:
    """For example "14 cells, at most 210 simulations"."""
    whole = cells(name, table)
    simulations = sum(table.simulations(cell.search) for cell in _distinct(whole))
    return f"{amount(len(whole), 'cell')}, at most {amount(round(simulations), 'simulation')}"


def _distinct(whole: Sequence[Cell]) -> list[Cell]:
    """A table's cells, less those that read other numbers off the simulations of another cell."""
    simulated = {
        (cell.dataset, cell.partition, cell.clients, str(cell.config), str(cell.search)): cell
        for cell in whole
    }
    return list(simulated.values())


def sizes_of(cell: Cell, calibration: Calibration) -> Sizes | None:
    """Sizes of the cell's partition if that has been made, else those of a calibration."""
    path = partition_file(cell.table, cell.partition_name).with_suffix(".json")
    if path.exists():
        made = json.loads(path.read_text(encoding="utf-8"))
        return Sizes(made["clients"], made["train"], made["test"])
    return calibration.sizes(cell)


def _client_epochs(cell: Cell, sizes: Sizes | None) -> float | None:
    clients = cell.clients or (sizes.clients if sizes else None)
    return cell.config.rounds * cell.config.epochs * cell.config.participants(clients) if clients else None


@dataclass(frozen=True)
class Estimate:
    """Estimate of the remaining part of a sweep.

    Attributes:
        trials: simulations that are not in the ledger.
        hours: of one core, or of one GPU.
        longest_hours: of the longest of them.
        partial: the sweep takes longer than this, since the speed of some trials is not known.
        disk_bytes: of the ledger, of MLflow, of the checkpoints of trials that are under way, and of models
            that are kept.
        device: "cpu" or "cuda".
    """

    trials: int
    hours: float
    longest_hours: float
    partial: bool
    disk_bytes: float
    device: str

    @classmethod
    def of(cls, scheduler: Scheduler, calibration: Calibration, slots: int, device: str) -> Estimate:
        """Estimate what ``scheduler`` still runs.

        Args:
            slots: trials that run side by side.
            device: "cpu" or "cuda".
        """
        trials, total, longest, partial, checkpoint, kept = 0, 0.0, 0.0, False, 0, 0
        counted: set[str] = set()
        for cell in scheduler.cells:
            config, partition = cell.cell.config, cell.partition
            sizes = Sizes(partition.clients, int(partition.sizes.sum()), sum(map(len, partition.test)))
            keys = cell.keys - cell.seen - counted
            counted |= keys
            trials += len(keys) + cell.to_come
            left = cell.runs_to_come + sum(
                candidate.share for candidate in cell.candidates for key in candidate.keys if key in keys
            )
            if not left:
                continue
            if speed := calibration.speed(cell.cell, device):
                seconds = speed.seconds(config, sizes)
                total += left * seconds
                longest = max(longest, seconds)
            else:
                partial = True
            images = calibration.images(cell.cell.dataset)
            assert images is not None  # the manifest has them
            models = sizes.clients * _scalars(config.model, *images) * BYTES_PER_SCALAR
            checkpoint = max(checkpoint, models)
            if scheduler.keeps_models:
                kept += min(math.ceil(left), 2 * len(cell.pinned.keys)) * models
        disk = trials * BYTES_PER_TRIAL + slots * checkpoint + kept
        return cls(trials, total / 3600, longest / 3600, partial, disk, device)

    def text(self, table: str, slots: int) -> str:
        """Text for the terminal; for a long sweep it says how to run less."""
        hours = max(self.hours / slots, self.longest_hours)
        shown = duration(3600 * hours) if hours < 1 else f"{hours:.1f} hours"
        cluster = os.environ.get("RAY_ADDRESS")
        where = f"the Ray cluster at {cluster}; on this machine alone" if cluster else "this machine"
        text = (
            f"{table}: {amount(self.trials, 'run')} to compute on {where}, {slots} side by side, "
            f"{'more than' if self.partial else 'about'} {shown} "
            f"({self.hours:.2g} {'GPU' if self.device == 'cuda' else 'core'}-hours), "
            f"{self.disk_bytes / 1e6:.0f} MB of disk"
        )
        if self.hours > LARGE_HOURS:
            text += (
                f"\nTo run a part of it: dvc exp run -S 'tables=[{table}]' -S 'subset.settings=[...]' "
                "-S 'subset.methods=[...]' -S 'subset.seeds=[...]'. What has run is not run again."
            )
        return text


@cache
def _scalars(model: str, shape: Shape, classes: int) -> int:
    """Parameters and buffers of a network."""
    import torch

    from pfl.models import build

    # Not on the device "meta", where torch loads its compiler, which takes longer than the largest network.
    with torch.random.fork_rng(devices=[]):
        network = build(model, shape, classes)
    return sum(tensor.numel() for tensor in network.state_dict().values())
