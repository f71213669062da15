"""The runs in the published ledger, with their costs and machines."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from pfl.core.errors import InvalidInput
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


def published_runs() -> dict[str, PublishedRun]:
    """The runs of the published ledger, by key; of several records with one key, the last.

    Raises:
        InvalidInput: a line is damaged.
    """
    decode = msgspec.json.Decoder(PublishedRun).decode
    runs = {}
    for file in sorted(PUBLISHED.glob("*.jsonl")):
        for line in read_lines(file):
            try:
                run = decode(line.content)
            except msgspec.DecodeError as error:
                where = f"{file}:{line.number}"
                raise InvalidInput("ledger", where, f"a record, as git has it ({error})") from None
            runs[run.key] = run
    return runs


def cost(runs: Iterable[PublishedRun]) -> str:
    """The compute that runs used, as in "1.5 core-hours and 0.2 GPU-hours"; empty if there are none."""
    hours = {"core-hour": 0.0, "GPU-hour": 0.0}
    for run in runs:
        cores = run.hardware.threads * run.hardware.workers
        unit, share = ("GPU-hour", 1) if run.hardware.gpu else ("core-hour", cores)
        hours[unit] += run.measured.wall_seconds * share / 3600
    shown = {unit: f"{value:,.{1 if value >= 1 else 2}f}" for unit, value in hours.items() if value}
    return " and ".join(f"{value} {unit}s" for unit, value in shown.items())
