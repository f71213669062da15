"""The runs in the published ledger, with what they took and on which machine."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from pfl.core.files import read_lines
from pfl.engine.metrics import Measured
from pfl.engine.result import Hardware, Versions
from pipeline.store.ledger import PUBLISHED


class PublishedRun(msgspec.Struct, frozen=True):
    """A record of `results/ledger/` without its accuracies."""

    key: str
    method: str
    phase: str
    commit: str
    measured: Measured
    hardware: Hardware
    versions: Versions

    @property
    def core_hours(self) -> float:
        """Processor time; 0 on a GPU."""
        return 0.0 if self.hardware.gpu else self.measured.wall_seconds * self.hardware.threads / 3600

    @property
    def gpu_hours(self) -> float:
        return self.measured.wall_seconds / 3600 if self.hardware.gpu else 0.0


def published_runs() -> dict[str, PublishedRun]:
    """The runs of the published ledger, by key; of several records with one key, the last."""
    decode = msgspec.json.Decoder(PublishedRun).decode
    lines = (line for file in sorted(PUBLISHED.glob("*.jsonl")) for line in read_lines(file))
    return {run.key: run for run in (decode(line.content) for line in lines)}


def cost(runs: Iterable[PublishedRun]) -> str:
    """Compute that runs took, as in "1.5 core-hours and 0.2 GPU-hours"; empty without any run."""
    runs = list(runs)
    hours = {
        "core-hour": sum(run.core_hours for run in runs),
        "GPU-hour": sum(run.gpu_hours for run in runs),
    }
    shown = {unit: f"{value:,.{1 if value >= 1 else 2}f}" for unit, value in hours.items() if value}
    return " and ".join(f"{value} {unit}s" for unit, value in shown.items())
