"""A row of the ledger in MLflow's terms."""

from __future__ import annotations

import csv
import io
from datetime import datetime

from pipeline.spec.evaluation import Row, evaluated
from pipeline.store.score import failure

Measure = tuple[str, float | None, int]
"""Name, value, round; the round is 0 where there is none."""


def tags(table: str, cell: str, row: Row) -> dict[str, str]:
    """The tags that a cell's run and its trials' share, so that one filter finds both."""
    setting, _, label = cell.partition("/")
    hardware = row.get("hardware", {})  # a trial that failed does not say
    return {
        "table": table,
        "cell": cell,
        "setting": setting,
        "row": label,
        "method": row["method"],
        "dataset": row["dataset"],
        "partition": row["partition"],
        "git_commit": row["commit"] + ("-dirty" if row["dirty"] else ""),
        "mlflow.source.git.commit": row["commit"],
        "mlflow.source.name": "train-sweep",
        "data_checksum": row["data_checksum"],
        "hardware": ", ".join(str(value) for value in hardware.values() if value is not None),
    }


def trial_tags(row: Row, trial_number: int | None, from_ledger: bool) -> dict[str, str]:
    """The tags of a trial's run alone."""
    found = {
        "seed": str(row["seed"]),
        "phase": row["phase"],
        "key": row["key"],
        "from_ledger": str(from_ledger).lower(),
    }
    if trial_number is not None:
        found["trial"] = str(trial_number)
    if "error" in row:
        found["error"] = row["error"]
    return found


def status(row: Row) -> str:
    return "FAILED" if failure(row) else "FINISHED"


def span(row: Row) -> tuple[int, int]:
    """When a row's simulation began and ended, in milliseconds since 1970."""
    finished = datetime.fromisoformat(row["finished"]).timestamp()
    return round(1000 * (finished - row.get("measured", {}).get("wall_seconds", 0))), round(1000 * finished)


def run_name(row: Row, trial_number: int | None) -> str:
    if row["phase"] == "search":
        return f"search {trial_number}"
    origin = f", from search {trial_number}" if trial_number else ""
    return f"seed {row['seed']}{origin}"


def parameters(row: Row) -> dict[str, str]:
    """The configuration; a method's own hyperparameters carry its name."""
    config = dict(row["config"])
    own = config.pop("hyperparameters")
    return {name: str(value) for name, value in config.items()} | {
        f"{row['method']}.{name}": str(value) for name, value in own.items()
    }


def measures(row: Row) -> list[Measure]:
    """The numbers of a row; few names, since MLflow's pages slow down with every further one.

    The accuracies are the headline's where every evaluation has it, and else those that the table reads.
    """
    measured = row.get("measured", {})
    found: list[Measure] = [
        ("wall_seconds", measured.get("wall_seconds"), 0),
        ("samples_per_second", measured.get("samples_per_second"), 0),
        ("peak_memory_bytes", measured.get("peak_memory_bytes"), 0),
    ]
    if "metrics" not in row:
        return found
    metrics = row["metrics"]
    whole = evaluated(row)
    shown = metrics["headline"] if metrics["headline"] in whole else min(whole)
    found.append(("accuracy_best", metrics["moments"][shown]["pooled"]["best"], 0))
    for entry in metrics["rounds"]:
        at = entry["round"]
        found += [
            ("accuracy", entry[shown]["pooled"], at),
            ("accuracy_client_mean", entry[shown]["client_mean"], at),
            ("loss", entry[shown]["loss"], at),
            ("train_loss", entry["train_loss"], at),
            ("bytes_up", entry["bytes_up"], at),
            ("bytes_down", entry["bytes_down"], at),
        ]
    return found


def per_client(row: Row) -> str:
    """Each client's number of samples and accuracy, as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, ("client", "train", "test", "accuracy"), extrasaction="ignore")
    writer.writeheader()
    writer.writerows(row["metrics"]["per_client"])
    return text.getvalue()
