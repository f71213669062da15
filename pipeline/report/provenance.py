"""Provenance of a table's numbers (code, data, partitions, seeds, machines), and how to reproduce them."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pfl.core.text import amount
from pfl.data.datasets import DATASETS
from pfl.data.partition import follows_run
from pfl.data.resize import resized
from pfl.engine.result import Hardware
from pfl.run.trials import Record
from pipeline.formatting import duration
from pipeline.report.summary import Summary
from pipeline.spec.cells import cells

OFFICIAL = ("official", "embedded")
"""Kinds of data sources that need no DATA_SOURCE."""


def provenance(summary: Summary) -> dict[str, list[str]]:
    """Facts by topic, each a short line."""
    results, records = summary.results, summary.records
    code = results.sources
    every = cells(summary.id, summary.table)
    divided = "a column has one partition"
    if len({cell.partition_name for cell in every}) > len(summary.table.settings):
        divided = "a column has one partition, except rows with their own partition"
    if any(follows_run(cell.partition) for cell in every):
        divided = "each has its own partitions"
    others = {record.sources.name for record in records} - {code.name}
    seconds = sum(record.measured.wall_seconds for record in records)
    swept = results.wall_seconds  # 0 if the results were collected from the ledger
    facts = {
        "Code": [
            code.name,
            *([f"records of {', '.join(sorted(others))}"] if others else []),
            *changed_since(records, code.sources),
            *plugins(records),
        ],
        "Data": [
            line
            for name, dataset in results.manifest["datasets"].items()
            for line in data_facts(name, dataset)
        ],
        "Seeds": [
            ", ".join(map(str, summary.table.seeds)),
            f"of initialisation, participants and batches; {divided}",
        ],
        "Versions": [
            ", ".join(
                f"{name} {each_once(getattr(record.success.versions, name) for record in records)}"
                for name in ("python", "torch", "pfl")
            ),
            f"behaviour: {each_once(record.behaviour for record in records)}",
        ],
        "Hardware": sorted({machine(record.success.hardware) for record in records}),
        "Time": [
            *([f"{duration(swept)} of wall time for the sweep"] if swept else []),
            f"{amount(results.trials_run, 'run')} computed, {results.trials_from_ledger} from the ledger",
            f"{duration(seconds)} in the simulations behind it, added up",
        ],
    }
    return facts if records else {topic: facts[topic] for topic in ("Code", "Data", "Seeds", "Time")}


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


def commands(summary: Summary) -> list[str]:
    """The shell commands that compute this report again.

    They work in a clone without the ledger, so that every simulation runs again and no record is lost.
    """
    code = summary.results.sources
    datasets = summary.results.manifest["datasets"]
    source = data_source({name: dataset["source"] for name, dataset in datasets.items()})
    clone = ["git clone . ../anew && cd ../anew"]
    if Path("pfl").is_dir():  # a checkout, which contains the simulator
        clone += [] if code.commit == "unknown" else [f"git checkout {code.commit}"]
        clone += ["# copy the files here that were not committed"] if code.dirty else []
        install = "make .venv && . .venv/bin/activate"
    elif code.version:
        install = f"# with pfl-repro {code.version} and its extra 'pipeline' installed"
    else:
        install = f"# with pfl-repro at {code.name} installed"
    return [
        *clone,
        "rm -rf results/ledger",
        install,
        f"{source}dvc exp run -S 'tables=[{summary.id}]'{_subset_options(summary)}",
    ]


def data_source(sources: Mapping[str, Mapping[str, Any]]) -> str:
    """The assignment of DATA_SOURCE that precedes a command, for data that are not the official files.

    >>> data_source({"cifar10": {"kind": "image-folder", "files": [{"name": "cifar10.zip"}]}})
    'DATA_SOURCE=/path/to/cifar10.zip '
    >>> data_source({"digits": {"kind": "embedded", "files": []}})
    ''

    Args:
        sources: `pfl.data.dataset.Dataset.source` by data set.
    """
    archives = [
        source["files"][0]["name"]
        for name, source in sources.items()
        if resized(name)[0] in DATASETS and source["kind"] not in OFFICIAL
    ]
    place = f"/path/to/{archives[0] if len(archives) == 1 else 'archives'}"
    return f"DATA_SOURCE={shlex.quote(place)} " if archives else ""


def out_option(out: Path, default: Path | None = None) -> str:
    """The option --out of a printed command, with a space before it; empty for the default folder.

    A folder in the project is printed relative to the project's root, where the command may be repeated.
    """
    folder, root = out.resolve(), Path.cwd()
    if default and folder == default.resolve():
        return ""
    shown = folder.relative_to(root) if folder.is_relative_to(root) else folder
    return f" --out {shlex.quote(str(shown))}"


def _subset_options(summary: Summary) -> str:
    results = summary.results
    part = results.config.subset(
        {cell.setting for cell in results.cells}, {cell.row for cell in results.cells}, results.subset.seeds
    )
    return "".join(f" -S 'subset.{key}=[{','.join(map(str, names))}]'" for key, names in part if names)


def changed_since(records: Sequence[Record], sources: str) -> list[str]:
    """A line if some records were computed by simulator files whose checksum is not ``sources``."""
    others = sum(record.sources.sources != sources for record in records)
    if not others:
        return []
    some = f"{others} of {amount(len(records), 'record')}"
    return [f"{some} by other versions of pfl/ with the same results in the battery"]


def plugins(records: Iterable[Record]) -> list[str]:
    """A line for each third-party plugin package that the records were computed with."""
    distinct = {(p.name, p.version, p.digest) for record in records for p in record.plugins}
    return [f"plugin {name} {version}, SHA-256 {digest[:12]}…" for name, version, digest in sorted(distinct)]


def each_once(values: Iterable[Any]) -> str:
    """The distinct values, sorted and separated by commas."""
    return ", ".join(sorted({str(value) for value in values}))


def machine(hardware: Hardware) -> str:
    """The hardware of a simulation, in one line."""
    processors = ", ".join(name for name in (hardware.gpu, hardware.cpu) if name)
    threads = f"{amount(hardware.threads, 'thread')} per trial"
    if hardware.workers > 1:
        threads += f" in each of {hardware.workers} workers"
    backend = f"{hardware.backend} backend on {hardware.device}"
    return f"{processors}, {hardware.cores} cores, {threads}, {backend}"
