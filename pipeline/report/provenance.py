"""Where a table's numbers come from: code, data, partitions, seeds, machines, and how to get them again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pfl.data.datasets import DATASETS
from pfl.trials import Hardware, Record
from pipeline.report.plots import megabytes, seconds
from pipeline.report.summary import Summary
from pipeline.spec.axes import AVERAGE
from pipeline.spec.evaluation import Evaluation
from pipeline.text import duration

ORIGINALS = ("original pixels", "read from the official files", "own data")
"""What `pfl.data.dataset.Dataset.identity` calls data that are no copy of others."""

OFFICIAL = ("official", "embedded")
"""Kinds of a data set's source that need no DATA_SOURCE."""

METRICS = {
    "pooled": "accuracy (%) over the test samples of all clients",
    "client_mean": "accuracy (%) of a client's personal model, averaged over the clients",
    "client_mean_weighted": (
        "accuracy (%) of a client's personal model, averaged over the clients by training samples"
    ),
}
OTHERS = {
    "seconds_per_sample": "time of local training (10⁻⁴ s per training sample)",
    "similarity": "similarity of two clients, after the last round",
}
MOMENTS = {
    "headline": "after aggregation, local training or adaptation, as each method reports it",
    "post_aggregation": "after aggregation",
    "post_local": "after local training",
    "adapted": "after each client's adaptation",
}
PRECISIONS = {
    "tf32": "tf32 (networks' products of float32 numbers rounded to TensorFloat-32)",
    "bf16": "bf16 (networks under bfloat16 autocast; weights, statistics, head and losses in float32)",
}
WHICH = {"last": "in the last round", "best": "in its best round"}


def protocol(evaluation: Evaluation) -> str:
    """What is reported, in words."""
    if not evaluation.is_accuracy:
        return OTHERS[evaluation.metric]
    return f"{METRICS[evaluation.metric]}, {WHICH[evaluation.which]}, {MOMENTS[evaluation.moment]}"


def other_protocols(summary: Summary) -> list[str]:
    """A line for each way in which columns or rows report something else than the table.

    Of groups of clients their labels say so.
    """
    table = summary.table
    labelled = [(setting.label or name, setting.evaluation) for name, setting in table.settings.items()]
    labelled += [(row.label or row.id, row.evaluation) for row in table.methods]
    found: dict[str, list[str]] = {}
    for label, reading in labelled:
        words = protocol(table.evaluation.override(reading))
        if words != protocol(table.evaluation):
            found.setdefault(words, []).append(label)
    return [f"{'; '.join(labels)}: {words}." for words, labels in found.items()]


def precisions(summary: Summary) -> list[str]:
    """A line for each precision other than fp32 in which entries were computed."""
    found: dict[str, dict[str, list[str]]] = {}
    for entry in summary.entries:
        for precision in {record.config.get("precision", "fp32") for record in entry.rows} - {"fp32"}:
            rows = found.setdefault(precision, {})
            rows.setdefault(summary.labels[entry.row], []).append(summary.columns[entry.setting])
    return [
        f"Computed in {PRECISIONS[precision]}: "
        + "; ".join(f"{row} ({', '.join(dict.fromkeys(columns))})" for row, columns in rows.items())
        + "."
        for precision, rows in sorted(found.items())
    ]


def notices(summary: Summary) -> list[str]:
    """What a reader must know before the first number."""
    said = [summary.table.note] if summary.table.note else []
    said += other_protocols(summary)
    said += precisions(summary)
    datasets = summary.results.manifest["datasets"]
    said += copies({name: dataset["identity"] for name, dataset in datasets.items()})
    scratch = {record.config["model"] for record in summary.rows if record.metrics.pretrained is False}
    said += [
        f"{model} started from scratch, as no pretrained weights were at hand." for model in sorted(scratch)
    ]
    if summary.results.sources.dirty or any(record.sources.dirty for record in summary.rows):
        said.append("Some numbers were computed by code that is in no commit.")
    # What is failed or not run where a number is printed, the report's first line counts as verdicts.
    counts = Counter(e.status for e in summary.entries if not e.published or e.status == "partial")
    missing = [f"{counts[status]} {status}" for status in ("failed", "partial", "not run") if counts[status]]
    if missing:
        said.append(f"Of {len(summary.entries)} entries: {', '.join(missing)}.")
    return said


def copies(identities: Mapping[str, str]) -> list[str]:
    """A line for each data set, by name, whose pixels are or may be others than the original ones."""
    return [f"{name} is {identity}." for name, identity in identities.items() if not is_original(identity)]


def is_original(identity: str) -> bool:
    """Whether what a manifest calls a data set means the data themselves, and not a copy of them."""
    return identity in ORIGINALS


def not_tried(summary: Summary) -> list[str]:
    """The columns in which nothing has been tried, and why, a line per reason."""
    absent = summary.results.manifest["absent"]
    found: dict[str, list[str]] = {}
    for name, label in summary.empty.items():
        if name == AVERAGE:
            why = "Needs the columns that are missing"
        elif (summary.table.settings[name].dataset or summary.table.dataset) in absent:
            why = "No data here"
        else:
            why = "Not run yet"
        found.setdefault(why, []).append(label)
    return [f"{why}: {'; '.join(labels)}." for why, labels in found.items()]


def provenance(summary: Summary) -> dict[str, list[str]]:
    """Facts by topic, each a short line."""
    results, rows = summary.results, summary.rows
    code = results.sources
    redrawn = any("seed=run" in setting.partition.split(",") for setting in summary.table.settings.values())
    others = {record.sources.name for record in rows} - {code.name}
    facts = {
        "Code": [
            code.name,
            *(f"rows of {other}" for other in sorted(others)),
            *changed_since(rows, code.sources),
            *plugins(rows),
        ],
        "Data": [
            line
            for name, dataset in results.manifest["datasets"].items()
            for line in data_facts(name, dataset)
        ],
        "Seeds": [
            ", ".join(map(str, summary.table.seeds)),
            "of initialisation, participants and batches; "
            + ("each has partitions of its own" if redrawn else "a column has one partition"),
        ],
        "Versions": [
            ", ".join(f"{name} {_distinct(found)}" for name, found in _versions(rows).items()),
            f"behaviour: {_distinct(record.behaviour for record in rows)}",
        ],
        "Hardware": sorted({machine(record.success.hardware) for record in rows}),
        "Time": [
            f"{duration(results.wall_seconds)} of wall time for the sweep",
            f"{results.trials_run} trials run, {results.trials_from_ledger} taken from the ledger",
            f"{duration(sum(record.measured.wall_seconds for record in rows))} in the simulations behind it, "
            "added up",
        ],
    }
    return facts if rows else {topic: facts[topic] for topic in ("Code", "Data", "Seeds", "Time")}


def data_facts(name: str, dataset: Mapping[str, Any]) -> list[str]:
    """What a data set is, its checksums, and those of the files that it was read from.

    Args:
        dataset: fields of `pfl.data.dataset.Dataset`, as in a manifest: ``identity``, ``content``,
            ``checksum`` and ``source``.
    """
    return [
        f"{name}: {dataset['identity']}",
        f"content sha256 {dataset['content']}, in this order {dataset['checksum']}",
        *(
            f"{file['name']}, {file['bytes']:,} bytes, sha256 {file['sha256']}"
            for file in dataset["source"]["files"]
        ),
    ]


def partition_statistics(summary: Summary, root: Path) -> dict[str, dict[str, str]]:
    """What the partition stage found out, column by column, for every partition that there is."""
    folder = root / "data" / "partitions" / summary.id
    table = {}
    for name in summary.partitions:
        path = folder / f"{name}.json"
        if path.exists():
            table[name] = statistics_columns(json.loads(path.read_text(encoding="utf-8")))
    return table


def statistics_columns(found: Mapping[str, Any]) -> dict[str, str]:
    """The columns of a partition whose statistics, specification and notes are given."""
    size, classes = found["size"], found["classes"]
    return {
        "Partition": found["spec"],
        "Clients": str(found["clients"]),
        "Training and test samples": f"{found['train']:,} + {found['test']:,}",
        "Samples per client": f"{size['mean']:.0f} ± {size['std']:.0f} ({size['min']} – {size['max']})",
        "Classes per client": f"{classes['mean']:.1f} ({classes['min']} – {classes['max']})",
        "Label cosine": f"{found['label_cosine']:.2f}",
        "Notes": "; ".join(found["notes"]),
    }


def commands(summary: Summary) -> list[str]:
    """The shell commands that compute this report anew.

    They work in a clone without the ledger, so that no row stands in for a simulation and none is lost.
    """
    code = summary.results.sources
    archives = [
        dataset["source"]["files"][0]["name"]
        for name, dataset in summary.results.manifest["datasets"].items()
        if name in DATASETS and dataset["source"]["kind"] not in OFFICIAL
    ]
    source = f"DATA_SOURCE=/path/to/{archives[0] if len(archives) == 1 else 'archives'} " if archives else ""
    return [
        "git clone . ../anew && cd ../anew",
        *([] if code.version or code.commit == "unknown" else [f"git checkout {code.commit}"]),
        "rm -rf results/ledger",
        f"pip install 'pfl-repro[pipeline]=={code.version}'"
        if code.version
        else "make .venv && . .venv/bin/activate",
        f"{source}dvc exp run -S 'tables=[{summary.id}]'{_subset_options(summary)}",
    ]


def _subset_options(summary: Summary) -> str:
    return "".join(
        f" -S 'subset.{key}=[{','.join(map(str, names))}]'" for key, names in summary.results.subset if names
    )


def costs(summary: Summary) -> list[dict[str, str]]:
    """Communication, time and memory of each method: ranges over the settings, of means over the seeds."""
    table = []
    for line in summary.pinned:
        entries = [entry for entry in line.entries.values() if entry.rows]
        if entries:
            table.append(
                {
                    "label": line.label,
                    "round": value_range(megabytes(entry)[0] for entry in entries),
                    "total": value_range(megabytes(entry)[1] for entry in entries),
                    "seconds": value_range(seconds(entry) for entry in entries),
                    "memory": value_range(
                        record.measured.peak_memory_bytes / 1e6 for entry in entries for record in entry.rows
                    ),
                }
            )
    return table


def value_range(values: Iterable[float]) -> str:
    """The least and the most of some quantities, or the one number that both are printed as."""
    low, *_, high = sorted([*values] * 2)
    shown = [f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in (low, high)]
    return shown[0] if shown[0] == shown[1] else f"{shown[0]} – {shown[1]}"


def changed_since(rows: Sequence[Record], sources: str) -> list[str]:
    """A line where some rows are of other files of the simulator than those with the checksum ``sources``."""
    others = sum(record.sources.sources != sources for record in rows)
    if not others:
        return []
    return [f"{others} of {len(rows)} rows are of other files of pfl/, which did the same when probed"]


def plugins(rows: Iterable[Record]) -> list[str]:
    """A line for each package of somebody else's that rows were made with."""
    found = {(p.name, p.version, p.digest) for record in rows for p in record.plugins}
    return [f"plugin {name} {version}, SHA-256 {digest[:12]}…" for name, version, digest in sorted(found)]


def _versions(rows: Sequence[Record]) -> dict[str, list[str]]:
    """The versions of each package by which ``rows`` were computed."""
    found = [record.success.versions for record in rows]
    return {
        "python": [versions.python for versions in found],
        "torch": [versions.torch for versions in found],
        "pfl": [versions.pfl for versions in found],
    }


def _distinct(values: Iterable[Any]) -> str:
    return ", ".join(sorted({str(value) for value in values}))


def machine(hardware: Hardware) -> str:
    """What a simulation ran on, in a line."""
    processors = ", ".join(name for name in (hardware.gpu, hardware.cpu) if name)
    threads = f"{hardware.threads} thread{'s' if hardware.threads != 1 else ''} per trial"
    backend = f"{hardware.backend} backend on {hardware.device}"
    return f"{processors}, {hardware.cores} cores, {threads}, {backend}"
