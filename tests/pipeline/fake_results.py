"""Made-up results of a table with everything in them that real ones can hold."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterable
from contextlib import chdir
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from pfl.engine.result import Hardware, Versions
from pfl.methods import METHODS as REGISTRY
from pfl.run.trials import Record, with_checksum
from pipeline.report.summary import Summary, summarise
from pipeline.spec.cells import cells as cells_of
from pipeline.spec.paths import results_folder
from pipeline.spec.table import Table
from pipeline.store.records import parse_record
from pipeline.store.results import RecordedStep, Results, load_results

METHODS = {
    name: REGISTRY.title(name)
    for name in (
        *("local", "fedavg", "fedprox", "feddyn", "fedgen", "fedbn", "perfedavg", "fedper", "fedrep"),
        *("fedfomo", "fedap", "pfedsim"),
    )
}
SETTINGS = {
    f"{title.lower().replace('-', '')}-{alpha}": (f"{title}, Dir({alpha})", f"dirichlet:{alpha}")
    for title in ("CIFAR-10", "CIFAR-100", "CINIC-10", "EMNIST")
    for alpha in (0.1, 0.5)
} | {"pathological-2": ("CIFAR-10, 2 classes", "pathological:2")}
HYPERPARAMETERS: dict[str, dict[str, Any]] = {
    "fedprox": {"mu": 0.01},
    "feddyn": {"alpha": 0.01},
    "fedrep": {"head_epochs": 1},
    "fedfomo": {"M": 5},
    "pfedsim": {"rho": 0.5},
}
HARDWARE = asdict(Hardware("Example CPU @ 2.60GHz", 4, 1, None, "cpu", "loop"))
VERSIONS = asdict(Versions("3.11.9", "2.15.0", "0.1.0"))
SOURCES = {"commit": "0123456789abcdef0123456789abcdef01234567", "dirty": False, "sources": "5" * 64}
DIGITS = {
    "checksum": "5f70bf18a0860070" * 4,
    "content": "c0ffee1234567890" * 4,
    "identity": "original pixels",
    "images": 1797,
    "source": {"kind": "embedded", "files": []},
}


def ledger_row(
    cell: str = "cifar10-0.1/fedavg",
    seed: int = 0,
    *,
    phase: str = "final",
    accuracy: float = 60.0,
    lr: float = 0.05,
    table: str = "fake",
    rounds: int = 30,
    clients: int = 20,
) -> dict[str, Any]:
    """A line of the ledger; ``accuracy`` (percent, pooled, after aggregation) is that of the last round."""
    setting, _, method = cell.partition("/")
    rng = np.random.default_rng([seed, sum(map(ord, cell + phase))])
    return {
        "key": hashlib.sha256(json.dumps([cell, seed, phase, lr]).encode()).hexdigest(),
        "table": table,
        "cell": cell,
        "setting": setting,
        "row": method,
        "method": method,
        "seed": seed,
        "phase": phase,
        "config": {
            "method": method,
            "hyperparameters": HYPERPARAMETERS.get(method, {}),
            "model": "cnn_digits",
            "participation": 0.5,
            "rounds": rounds,
            "epochs": 2,
            "batch_size": 16,
            "lr": lr,
            "validation": 0.2 if phase == "search" else 0.0,
            "eval_every": 5,
        },
        "dataset": "digits",
        "partition": "dirichlet:0.1,min=10,test=0.25,seed=0",
        "clients": clients,
        "data_checksum": "5f70bf18a0860070" * 4,
        "partition_checksum": "9b74c9897bac770f" * 4,
        "measured": {
            "wall_seconds": round(1.2 + rng.random(), 3),
            "train_seconds": 1.1,
            "samples_per_second": 11000.0 + 2000 * rng.random(),
            "peak_memory_bytes": 412_000_000,
        },
        "hardware": HARDWARE,
        "versions": VERSIONS,
        "behaviour": f"{method}-0123456789ab",
        "plugins": [],
        **SOURCES,
        "finished": f"2026-11-20T10:{seed:02d}:00+00:00",
        "metrics": _metrics(accuracy, rounds, clients, method, rng),
    }


def _metrics(accuracy: float, rounds: int, clients: int, method: str, rng: np.random.Generator) -> dict:
    evaluated = [r for r in range(1, rounds + 1) if r % 5 == 0 or r == rounds]
    share = 1 - np.exp(-4 * np.array(evaluated) / rounds)
    curve = accuracy * share / share[-1] + rng.normal(0, 0.8, len(evaluated)) * (1 - share)
    curve[-1] = accuracy
    moved = 0 if method == "local" else 250_000 * (2 if method in ("fedfomo", "feddyn") else 1)

    def evaluation(value: float) -> dict[str, float]:
        pooled, loss = round(value, 4), 2.3 * np.exp(-value / 40)
        return {"pooled": pooled, "client_mean": pooled - 1, "client_mean_weighted": pooled, "loss": loss}

    local = np.minimum(curve + 5, 100)
    return {
        "headline": "post_aggregation",
        "rounds": [
            {
                "round": r,
                "post_aggregation": evaluation(curve[i]),
                "post_local": evaluation(local[i]),
                "train_loss": 2.2 * np.exp(-curve[i] / 40),
                "bytes_up": moved * r,
                "bytes_down": moved * r,
            }
            for i, r in enumerate(evaluated)
        ],
        "per_client": [
            {
                "client": c,
                "train": int(rng.integers(20, 140)),
                "test": int(rng.integers(8, 45)),
                "accuracy": float(np.clip(rng.normal(accuracy, 14), 0, 100)),
            }
            for c in range(clients)
        ],
        "bytes_up": moved * rounds,
        "bytes_down": moved * rounds,
    }


def ledger_rows(cell: str, accuracies: Iterable[float], **options: Any) -> list[dict[str, Any]]:
    """The lines of a cell's seeds, which reach these accuracies."""
    return [ledger_row(cell, seed, accuracy=accuracy, **options) for seed, accuracy in enumerate(accuracies)]


def record_of(row: dict[str, Any]) -> Record:
    return parse_record(json.dumps(row).encode())


def failed_row(row: dict[str, Any]) -> dict[str, Any]:
    """The line that stands in for ``row`` where the trial failed."""
    unknown = ("metrics", "measured", "hardware", "versions")
    return {name: value for name, value in row.items() if name not in unknown} | {"error": "out of memory"}


def diverge(trial: dict[str, Any], seed: int = 0) -> None:
    """Let the training of a seed of a cell's trial diverge in the third round."""
    trial["records"][seed]["metrics"]["diverged_at"] = 3


def fail(trial: dict[str, Any], *seeds: int) -> None:
    """Let some seeds of a cell's trial fail."""
    for seed in seeds:
        trial["records"][seed] = failed_row(trial["records"][seed])


def fake_results(
    methods: int = 3,
    settings: int = 2,
    *,
    seeds: int = 3,
    search: int = 0,
    clients: int = 20,
    table: str = "fake",
    published: dict[str, str] | None = None,
) -> dict[str, Any]:
    """The results of a table whose cells are all done; ``search`` trials per cell.

    They are those of `results.json`, with the records themselves in place of their keys.
    """
    chosen = [*list(METHODS)[: methods - 1], "pfedsim"]
    rng = np.random.default_rng(7)
    cells = []
    for column, setting in enumerate(list(SETTINGS)[:settings]):
        for place, method in enumerate(chosen):
            cell = f"{setting}/{method}"
            level = 35 + 4 * place + 3 * column + float(rng.normal(0, 2))
            shared = {"clients": clients, "table": table}
            pinned = HYPERPARAMETERS.get(method, {})
            reached = [level + float(rng.normal(0, 0.7)) for _ in range(seeds)]
            entry: dict[str, Any] = {
                "cell": cell,
                "setting": setting,
                "row": method,
                "pinned": {
                    "number": 0 if search else None,
                    "params": {},
                    "records": ledger_rows(cell, reached, **shared),
                },
                "selected": None,
                "searched": [],
                "selection": None,
            }
            for trial in range(search):
                lr = 0.05 if trial == 0 else round(0.05 * 2 ** float(rng.normal()), 4)
                validated = level + float(rng.normal(0, 2))
                entry["searched"].append(search_step(cell, trial, lr, validated, pinned, **shared))
            if search:
                best = max(entry["searched"], key=value_of)
                number, lr = best["number"], best["params"]["lr"]
                error = 0.5 if seeds > 1 else None
                compared = [{"trial": number, "gain": 1.5, "error": error}] if number else []
                entry["selection"] = {"trial": number, "comparisons": compared}
                gain = float(rng.normal(0.5, 1)) if number else 0.0
                entry["selected"] = {
                    "number": number,
                    "params": best["params"],
                    "records": ledger_rows(cell, [value + gain for value in reached], lr=lr, **shared),
                }
            cells.append(entry)
    return {
        "table": table,
        "config": {
            "title": "Made-up numbers",
            "dataset": "digits",
            "model": "cnn_digits",
            "clients": clients,
            "schedule": {"participation": 0.5, "rounds": 30, "epochs": 2, "batch_size": 16, "lr": 0.05},
            "settings": {
                setting: {
                    "label": SETTINGS[setting][0],
                    "partition": SETTINGS[setting][1],
                    "clients": clients,
                }
                for setting in list(SETTINGS)[:settings]
            },
            "methods": [{"method": m, "label": METHODS[m], "as": m} for m in chosen],
            "seeds": list(range(seeds)),
            "evaluation": {"every": 5},
            "search": {"trials": search} if search else None,
            "published": published,
            "sources": {"schedule.rounds": "ours: the paper does not say"},
        },
        "manifest": {"table": table, "datasets": {"digits": DIGITS}, "absent": []},
        "subset": {"settings": [], "methods": [], "seeds": []},
        "cells": cells,
        "wall_seconds": 153.2,
        "trials_run": len(cells) * (seeds + search),
        "trials_from_ledger": 0,
        "sources": SOURCES,
    }


def search_only(results: dict[str, Any], *rows: str) -> None:
    """Let only these rows of a searched table have a search, of their own."""
    config = results["config"]
    search = config.pop("search")
    config["methods"] = [row | {"search": search if row["as"] in rows else None} for row in config["methods"]]
    for cell in results["cells"]:
        if cell["row"] not in rows:
            cell |= {"selected": None, "selection": None, "searched": []}


def reach(cell: dict[str, Any], *accuracies: float) -> None:
    """Let the pinned configuration of a cell reach these accuracies, one per seed."""
    cell["pinned"]["records"] = ledger_rows(cell["cell"], accuracies)


def results_by_row(settings: int = 1, **accuracies: tuple[float, ...]) -> dict[str, Any]:
    """The results of a table whose rows reach these accuracies, one per seed, in every column."""
    results = fake_results(len(accuracies), settings, seeds=len(next(iter(accuracies.values()))))
    for cell in results["cells"]:
        reach(cell, *accuracies[cell["row"]])
    return results


def search_step(
    cell: str,
    number: int,
    lr: float,
    accuracy: float,
    params: dict[str, Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """A trial of a search, which reached ``accuracy`` in the last round."""
    row = ledger_row(cell, phase="search", lr=lr, accuracy=accuracy, **options)
    row["key"] = hashlib.sha256(json.dumps([row["key"], number]).encode()).hexdigest()
    return {"number": number, "params": {**(params or {}), "lr": lr}, "records": [row]}


def recorded_step(
    trial: int, until: int, value: float | None, samples: int | None, seed: int = 0, **params: Any
) -> RecordedStep:
    """A step of a search, as results keep it."""
    return RecordedStep(trial, seed, until, params, value, samples, error=None)


def value_of(step: dict[str, Any]) -> float:
    """The accuracy of a `search_step`."""
    return step["records"][0]["metrics"]["rounds"][-1]["post_aggregation"]["pooled"]


def results_of(results: dict[str, Any]) -> Results:
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        write_results(results)
        return load_results(results["table"])


def summary_of(results: dict[str, Any]) -> Summary:
    return summarise(results_of(results))


def cell_of(results: dict[str, Any], cell: str) -> dict[str, Any]:
    return next(entry for entry in results["cells"] if entry["cell"] == cell)


def write_results(results: dict[str, Any]) -> None:
    """Write what the sweep and the partition stage leave for the report."""
    folder = results_folder(results["table"])
    folder.mkdir(parents=True, exist_ok=True)
    table = Table.model_validate(results["config"])
    evaluations = {cell.id: cell.evaluation.model_dump() for cell in cells_of(results["table"], table)}
    rows: list[dict[str, Any]] = []

    def keys(trial: dict[str, Any] | None) -> dict[str, Any] | None:
        if trial is None:
            return None
        rows.extend(trial["records"])
        return {**trial, "records": [row["key"] for row in trial["records"]]}

    cells = [
        {
            "cell": cell["cell"],
            "evaluation": evaluations[cell["cell"]],
            "selection": cell["selection"],
            "pinned": keys(cell["pinned"]),
            "selected": keys(cell["selected"]),
            "searched": list(map(keys, cell["searched"])),
        }
        for cell in results["cells"]
    ]
    (folder / "results.json").write_text(json.dumps({**results, "cells": cells}))
    lines = [with_checksum(json.dumps(row, separators=(",", ":")).encode()) for row in rows]
    (folder / "rows.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    partitions = Path("data/partitions", results["table"])
    partitions.mkdir(parents=True, exist_ok=True)
    for setting, declared in results["config"]["settings"].items():
        statistics = {
            "spec": declared["partition"] + ",min=10,test=0.25,seed=0",
            "clients": declared["clients"],
            "train": 1348,
            "test": 449,
            "size": {"mean": 89.9, "std": 40.2, "min": 21, "max": 160},
            "classes": {"mean": 4.2, "min": 2, "max": 7},
            "label_cosine": 0.27,
            "notes": ["redraws: 1"],
        }
        (partitions / f"{setting}.json").write_text(json.dumps(statistics))
        (partitions / f"{setting}.svg").write_text(
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 10 10"><circle cx="5" cy="5" r="4"/></svg>'
        )
