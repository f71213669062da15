"""What a table or a sweep costs, told before it starts."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from pipeline.spec.cells import Cell, cells
from pipeline.spec.files import partition_file
from pipeline.spec.table import Table
from pipeline.sweep.calibration import Calibration, Sizes, synthetic_simulation
from pipeline.text import duration

if TYPE_CHECKING:
    from pfl.config import Config
    from pipeline.store.ledger import Ledger
    from pipeline.sweep.scheduler import Scheduler

SECONDS_OF_A_SAMPLE, FLOP_PER_SECOND = 1e-4, 6e10
"""Of one core in training, where nothing is known: what every sample takes, and what the arithmetic does."""

BYTES_PER_TRIAL = 300_000  # a ledger row, twice, and a run in MLflow
BYTES_PER_SCALAR = 4
LARGE_CORE_HOURS = 2.0


@dataclass(frozen=True)
class Amount:
    """A sum over the trials of a table; partial: some of them are not known, so that it is more than this."""

    value: float
    partial: bool

    @classmethod
    def of(cls, trials: Sequence[float], parts: Sequence[float | None]) -> Amount:
        """So many trials of every cell, each of a known or unknown cost."""
        known = [number * part for number, part in zip(trials, parts, strict=True) if part is not None]
        return cls(sum(known), None in parts)

    @property
    def text(self) -> str:
        """As in a list: "?" for nothing known, ">" where a part is not.

        >>> Amount(5.63, partial=False).text, Amount(48000, partial=True).text, Amount(0, partial=True).text
        ('5.6', '> 48,000', '?')
        """
        if not self.value:
            return "?" if self.partial else "0"
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
        # Rows that read different numbers off the same simulation share it.
        found = list(
            {(c.dataset, c.partition, c.clients, str(c.config), str(c.search)): c for c in whole}.values()
        )
        each = [table.full_runs(cell.search) for cell in found]
        sizes = [sizes_of(cell, calibration) for cell in found]

        def hours(device: str) -> Amount:
            speeds = [calibration.speed(cell, device) for cell in found]
            together = zip(found, speeds, sizes, strict=True)
            return Amount.of(
                each, [v.seconds(c.config, n) / 3600 if v and n else None for c, v, n in together]
            )

        return cls(
            len(whole),
            round(sum(each)),
            Amount.of(each, [_client_epochs(c, n) for c, n in zip(found, sizes, strict=True)]),
            hours("cpu"),
            hours("cuda"),
        )


def sizes_of(cell: Cell, calibration: Calibration) -> Sizes | None:
    """Of the cell's partition where that has been made, or as they were found out in a calibration."""
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
    """Of what is left of a sweep.

    Attributes:
        trials: simulations that are not in the ledger.
        core_hours: of one core, as calibrated, or at the best speed of earlier trials with the same networks,
            or by their arithmetic.
        longest_hours: of the longest of them.
        disk_bytes: of the ledger, of MLflow, of the checkpoints of trials that are under way, and of models
            that are kept.
    """

    trials: int
    core_hours: float
    longest_hours: float
    disk_bytes: float

    @classmethod
    def of(cls, scheduler: Scheduler, ledger: Ledger, datasets: Mapping[str, Any], slots: int) -> Estimate:
        """Estimate what ``scheduler`` still runs.

        Args:
            datasets: the manifest's.
            slots: trials that run side by side.
        """
        calibration = Calibration()
        trials, core_seconds, longest, checkpoint, kept = 0, 0.0, 0.0, 0, 0
        counted: set[str] = set()
        for cell in scheduler.cells:
            config, partition = cell.cell.config, cell.partition
            sizes = Sizes(partition.clients, int(partition.sizes.sum()), sum(map(len, partition.test)))
            speed = calibration.speed(cell.cell, "cpu")
            keys = cell.keys - cell.seen - counted
            counted |= keys
            trials += len(keys) + cell.to_come
            left = cell.runs_to_come + sum(
                candidate.share for candidate in cell.candidates for key in candidate.keys if key in keys
            )
            if not left:
                continue
            data = datasets[cell.cell.dataset]
            shape = tuple(data["shape"]), data["classes"]
            scalars, flop = _network(config.model, *shape)
            if speed:
                seconds = speed.seconds(config, sizes)
            else:
                rate = ledger.speed(config.model) or 1 / (SECONDS_OF_A_SAMPLE + flop / FLOP_PER_SECOND)
                # Of local training; evaluation is a small part of most.
                a_round = config.participants(sizes.clients) * _samples(config, *shape, sizes)
                seconds = config.rounds * a_round / rate
            core_seconds += left * seconds
            longest = max(longest, seconds)
            models = sizes.clients * scalars * BYTES_PER_SCALAR
            checkpoint = max(checkpoint, models)
            if scheduler.keeps_models:
                kept += min(math.ceil(left), 2 * len(cell.pinned.keys)) * models
        disk = trials * BYTES_PER_TRIAL + slots * checkpoint + kept
        return cls(trials, core_seconds / 3600, longest / 3600, disk)

    def text(self, table: str, slots: int) -> str:
        """For the terminal, with how to run less where it is long."""
        hours = max(self.core_hours / slots, self.longest_hours)
        shown = f"about {duration(3600 * hours)}" if hours < 1 else f"about {hours:.1f} hours"
        cluster = os.environ.get("RAY_ADDRESS")
        where = f"the Ray cluster at {cluster}; on this machine alone" if cluster else "this machine"
        text = (
            f"{table}: {self.trials} trials to run on {where}, {slots} side by side, {shown} "
            f"({self.core_hours:.2g} core-hours), {self.disk_bytes / 1e6:.0f} MB of disk"
        )
        if self.core_hours > LARGE_CORE_HOURS:
            text += (
                f"\nTo run a part of it: dvc exp run -S 'tables=[{table}]' -S 'subset.settings=[...]' "
                "-S 'subset.methods=[...]' -S 'subset.seeds=[...]'. What has run is not run again."
            )
        return text


def _samples(config: Config, shape: tuple[int, int, int], classes: int, sizes: Sizes) -> int:
    """That an average participant computes gradients of in a round, all passes counted."""
    from pfl.engine.local import minibatch_count

    run = synthetic_simulation(config, shape, classes).runs[0]
    mean = round(sizes.train / sizes.clients)
    return sum(
        phase.repeat * minibatch_count(phase, config, mean) * min(phase.batch_size or config.batch_size, mean)
        for phase in run.method.phases(run.server)
    )


@cache
def _network(model: str, shape: tuple[int, int, int], classes: int) -> tuple[int, int]:
    """Parameters and buffers of a network, and FLOP of an image in training."""
    import torch

    from pfl.models import build

    flop = 0

    def count(layer: torch.nn.Conv2d | torch.nn.Linear, _: object, out: torch.Tensor) -> None:
        nonlocal flop
        flop += 2 * out.numel() * layer.weight[0].numel()

    # For real: on the device "meta" torch loads its compiler, which takes longer than the largest network.
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        network = build(model, shape, classes).eval()
        for layer in network.modules():
            if isinstance(layer, torch.nn.Conv2d | torch.nn.Linear):
                layer.register_forward_hook(count)
        network(torch.zeros(1, *shape))
    # Backward takes twice as much as forward: the gradients of the inputs and of the weights.
    return sum(tensor.numel() for tensor in network.state_dict().values()), 3 * flop
