"""A record in MLflow's terms."""

from __future__ import annotations

import colorsys
import hashlib
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime

from pfl.run.trials import Record
from pipeline.formatting import csv_text
from pipeline.spec.reported import Evaluation
from pipeline.spec.search_space import PINNED_TRIAL
from pipeline.store.results import CellResult
from pipeline.store.scores import curves, score

CELL, REPORT = "cell", "report"
"""The phases of runs that do not belong to a trial."""

GOLDEN_RATIO = (math.sqrt(5) - 1) / 2
"""Steps of this size spread any number of hues evenly."""

Measure = tuple[str, float | None, int]
"""Name, value, round; the round is 0 if there is none."""


def cell_tags(table: str, cell: str, record: Record) -> dict[str, str]:
    """The tags that a cell's run and those of its records share, so that one filter finds both."""
    setting, _, label = cell.partition("/")
    # A failed run has no hardware.
    hardware = asdict(record.result.hardware) if record.result else {}
    return {
        "table": table,
        "cell": cell,
        "phase": CELL,
        "setting": setting,
        "row": label,
        "method": record.method,
        "dataset": record.dataset,
        "partition": record.partition,
        "git_commit": record.sources.commit + ("-dirty" if record.sources.dirty else ""),
        "mlflow.source.git.commit": record.sources.commit,
        "mlflow.source.name": "train-sweep",
        "data_checksum": record.data_checksum,
        "hardware": ", ".join(str(value) for value in hardware.values() if value is not None),
    }


def colour(number: int) -> str:
    """The colour of a cell in charts; MLflow's own are random and often similar.

    >>> colour(0), colour(1)
    ('#931f1f', '#426dd7')
    """
    hue, lightness = number * GOLDEN_RATIO % 1, 0.35 + 0.2 * (number % 2)
    channels = colorsys.hls_to_rgb(hue, lightness, 0.65)
    return "#" + "".join(f"{round(255 * channel):02x}" for channel in channels)


def run_tags(record: Record, trial: int | None) -> dict[str, str]:
    """The tags of a record's run alone."""
    own_tags = {"seed": str(record.seed), "phase": record.phase, "key": record.key}
    if trial is not None:
        own_tags["trial"] = str(trial)
    if record.failed:
        own_tags["error"] = str(record.failure)
    return own_tags


def span_of(records: Sequence[Record]) -> tuple[int, int]:
    """The start of the first simulation and the end of the last, in milliseconds since 1970."""
    ends = [datetime.fromisoformat(record.finished).timestamp() for record in records]
    lengths = [0.0 if record.failed else record.measured.wall_seconds for record in records]
    begins = (end - length for end, length in zip(ends, lengths, strict=True))
    return round(1000 * min(begins)), round(1000 * max(ends))


def run_name(record: Record, trial: int | None) -> str:
    if record.phase == "search":
        until = f", round {record.until}" if record.until else ""
        return f"search {trial}, seed {record.seed}{until}"
    origin = "" if trial in (None, PINNED_TRIAL) else f", from search {trial}"
    return f"seed {record.seed}{origin}"


def score_name(evaluation: Evaluation) -> str:
    """The name of the number that the table reports."""
    return f"final_{'accuracy' if evaluation.is_accuracy else evaluation.metric}"


def parameters(record: Record) -> dict[str, str]:
    """The configuration; a method's own hyperparameters carry its name."""
    config = dict(record.config)
    own = config.pop("hyperparameters")
    return {name: str(value) for name, value in config.items()} | {
        f"{record.method}.{name}": str(value) for name, value in own.items()
    }


def measures(record: Record) -> list[Measure]:
    """The numbers of a record under few names, because every further one slows MLflow's pages down.

    The accuracies are those of the headline if every evaluation has it, else those that the table reports.
    """
    if record.failed:
        return []
    metrics, measured = record.metrics, record.measured
    always = metrics.always
    shown = metrics.headline if metrics.headline in always else min(always)
    part = "val_" if record.phase == "search" else ""
    values: list[Measure] = [
        ("wall_seconds", measured.wall_seconds, 0),
        ("samples_per_second", measured.samples_per_second, 0),
        ("peak_memory_bytes", measured.peak_memory_bytes, 0),
        (f"{part}accuracy_best", metrics.reached("pooled", shown).best, 0),
    ]
    if metrics.unseen:
        values += [(f"{part}unseen_{name}", value, 0) for name, value in metrics.unseen.pooled.items()]
    for entry in metrics.rounds:
        accuracy = entry.moments[shown]
        values += [
            (f"{part}accuracy", accuracy.pooled, entry.round),
            (f"{part}accuracy_client_mean", accuracy.client_mean, entry.round),
            (f"{part}loss", accuracy.loss, entry.round),
            ("train_loss", entry.train_loss, entry.round),
            ("bytes_up", entry.bytes_up, entry.round),
            ("bytes_down", entry.bytes_down, entry.round),
        ]
    return values


def cell_records(result: CellResult) -> list[Record]:
    """The records of a cell's configurations, those of the pinned one first."""
    return [record for configuration in result.configurations for record in configuration.records]


def outcome_tags(result: CellResult) -> dict[str, str]:
    """The tags added at the end of a cell's run; a new ``outcome`` means new scores or parameters."""
    keys = [[record.key for record in configuration.records] for configuration in result.configurations]
    content = json.dumps([result.status, keys, result.evaluation.model_dump()])
    seeds = sorted({record.seed for record in cell_records(result) if not record.failed})
    return {
        "seeds": ",".join(map(str, seeds)),
        "status": result.status,
        "outcome": hashlib.sha256(content.encode()).hexdigest()[:16],
    }


def cell_parameters(result: CellResult) -> dict[str, str]:
    """The pinned configuration, and what a search selected in its place."""
    pinned, selected = (
        parameters(configuration.simulated[0]) if configuration and configuration.simulated else {}
        for configuration in (result.pinned, result.selected)
    )
    changed = {name: value for name, value in selected.items() if pinned.get(name) != value}
    return pinned | {f"selected.{name}": value for name, value in changed.items()}


def cell_measures(result: CellResult) -> list[Measure]:
    """A cell's scores and, by round, the mean and the standard deviation over its seeds."""
    values: list[Measure] = []
    evaluation = result.evaluation
    for prefix, configuration in (("", result.pinned), ("selected_", result.selected)):
        records = configuration.successes if configuration else ()
        for number, accuracies in curves(records, evaluation):
            values.append((f"{prefix}accuracy", statistics.fmean(accuracies), number))
            if len(accuracies) > 1:
                values.append((f"{prefix}accuracy_std", statistics.stdev(accuracies), number))
        if reached := score(records, evaluation):
            name = f"{prefix}{score_name(evaluation)}"
            values += [(name, reached.mean, 0), (f"{name}_std", reached.std, 0)]
    seconds = {row.key: row.measured.wall_seconds for row in cell_records(result) if not row.failed}
    return [*values, ("wall_seconds", math.fsum(seconds.values()), 0)]


def per_client(record: Record) -> str:
    """Each client's number of samples and accuracy, as CSV."""
    clients = record.metrics.per_client
    rows = ((client.client, client.train, client.test, client.accuracy) for client in clients)
    return csv_text(("client", "train", "test", "accuracy"), rows)
