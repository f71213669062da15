"""A table's results as a Workflow Run RO-Crate: a folder whose files a JSON-LD file describes.

Sources: https://w3id.org/ro/crate/1.1 and https://w3id.org/ro/wfrun/workflow/0.5
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Iterator
from mimetypes import guess_type
from pathlib import Path
from typing import Any

from pfl.core.errors import InvalidInput, Missing
from pfl.core.files import write_json, write_text, writing
from pfl.core.text import amount
from pipeline.evidence.citation import read_citation
from pipeline.evidence.croissant import write_croissant
from pipeline.report.provenance import each_once
from pipeline.spec.cells import cells
from pipeline.spec.imported_trials import imported_trials, prior_text
from pipeline.spec.paths import report_folder, results_folder
from pipeline.spec.yaml import dumped
from pipeline.store.records import RECORDS
from pipeline.store.results import Results, load_results

METADATA = "ro-crate-metadata.json"
STAGES = "dvc.yaml"
WORKFLOW = "workflow.yaml"  # DVC would load a `dvc.yaml` in any folder of the project
LOCK = "requirements.lock"
README = "README.md"
TABLE = "table.yaml"
PRIOR = "table.prior.csv"
RESULTS = "results.json"
REPORT = "report/"
PARTITIONS = "partitions/"

CONTEXT = ["https://w3id.org/ro/crate/1.1/context", {"sha256": "http://schema.org/sha256"}]
PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": "Process Run Crate",
    "https://w3id.org/ro/wfrun/workflow/0.5": "Workflow Run Crate",
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0": "Workflow RO-Crate",
}
COMPUTATIONAL_WORKFLOW = "https://bioschemas.org/profiles/ComputationalWorkflow/1.0-RELEASE"
FORMAL_PARAMETER = "https://bioschemas.org/profiles/FormalParameter/1.0-RELEASE"

ABOUT = {
    TABLE: "The table with all that it inherits: data, partitions, network, methods, schedule and seeds.",
    PRIOR: "Trials of other searches from which the searches of the table begin.",
    WORKFLOW: "The stages: check, download, partition, train-sweep, report.",
    LOCK: "Versions of all packages of the environment.",
    RECORDS: "The ledger's records: configuration, data, partition, seed, code, hardware and numbers.",
    RESULTS: "The keys of the records behind each cell, and what searches selected.",
    PARTITIONS: "Who trains and tests on which images, as CSV with Croissant metadata.",
    REPORT: "The report of the table.",
}
INPUTS = {"table": TABLE, "trials": PRIOR, "partitions": PARTITIONS, "environment": LOCK}
OUTPUTS = {"records": RECORDS, "results": RESULTS, "report": REPORT}
"""Parameters of the workflow, and the files and folders that are their values."""


def write_crate(table: str, out: Path) -> int:
    """Write the crate of a table to a new or empty folder, and return its number of files.

    Raises:
        InvalidInput: the folder is not empty or inside the report, the table has no results, partitions or
            report here, or a file cannot be written.
    """
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise InvalidInput("out", str(out), "a folder that does not exist, or is empty")
    report = report_folder(table)
    if out.resolve().is_relative_to(report.resolve()):
        raise InvalidInput("out", str(out), f"a folder outside of {report}, which is copied")
    results = load_results(table)
    if not report.is_dir():
        raise Missing("report", str(report), f"the report of the table; `pfl report {table}` writes it")
    if not Path(STAGES).exists():
        raise Missing(STAGES, "no such file", "a project (`pfl init` creates one)")
    write_croissant(table, out / PARTITIONS)
    content = results.config.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    write_text(out / TABLE, dumped(content))
    prior = imported_trials(cells(table, results.config))
    if trials := [trial for of_cell in prior.values() for trial in of_cell]:
        write_text(out / PRIOR, prior_text(trials))
    with writing(out, "out"):
        shutil.copyfile(STAGES, out / WORKFLOW)
        if Path(LOCK).exists():
            shutil.copyfile(LOCK, out / LOCK)
        for name in (RECORDS, RESULTS):
            shutil.copyfile(results_folder(table) / name, out / name)
        shutil.copytree(report, out / REPORT)
    write_text(out / README, _readme(results, out))
    write_json(out / METADATA, {"@context": CONTEXT, "@graph": list(_graph(results, out))})
    return sum(path.is_file() for path in out.rglob("*"))


def _readme(results: Results, out: Path) -> str:
    """The README of the crate: what it is, and what its files are."""
    files = "".join(f"- `{name}`: {about}\n" for name, about in ABOUT.items() if (out / name).exists())
    return (
        f"# {results.config.title}\n\n{_about(results)}\n\n{files}\n"
        f"`{METADATA}` describes every file with its SHA-256, as a Workflow Run RO-Crate.\n"
    )


def _graph(results: Results, out: Path) -> Iterator[dict[str, Any]]:
    """The entities of the crate, of which the first two are the metadata file and the crate itself."""
    records = results.records
    times = sorted(record.finished for record in records)
    simulated = [record for record in records if not record.failed]
    python = each_once(record.success.versions.python for record in simulated)
    torch = each_once(record.success.versions.torch for record in simulated)
    codes = list({record.sources: None for record in records})
    inputs, outputs = (
        {name: value for name, value in values.items() if (out / value).exists()}
        for values in (INPUTS, OUTPUTS)
    )
    citation = read_citation()
    people = {f"#author-{i}": author for i, author in enumerate(citation.authors)}
    organisations = [identifier for identifier, author in people.items() if author["@type"] == "Organization"]
    licence = citation.licence_address
    yield {
        "@id": METADATA,
        "@type": "CreativeWork",
        "about": {"@id": "./"},
        "conformsTo": _references(("https://w3id.org/ro/crate/1.1", list(PROFILES)[-1])),
    }
    yield {
        "@id": "./",
        "@type": "Dataset",
        "name": results.config.title,
        "description": _about(results),
        "datePublished": times[-1],
        "license": {"@id": licence} if licence else "not stated",
        "conformsTo": _references(PROFILES),
        "mainEntity": {"@id": WORKFLOW},
        "mentions": {"@id": "#sweep"},
        "hasPart": _references([*inputs.values(), *outputs.values(), WORKFLOW, README]),
        **({"author": _references(people)} if people else {}),
        **({"publisher": _references(organisations)} if organisations else {}),
    }
    yield {**_file(out, README), "about": {"@id": "./"}}
    yield {
        "@id": "#sweep",
        "@type": "CreateAction",
        "name": f"Sweep of {results.table}",
        "description": f"{_extent(results)}, with Python {python} and torch {torch}.",
        "instrument": {"@id": WORKFLOW},
        "object": _references(inputs.values()),
        "result": _references(outputs.values()),
        "startTime": times[0],
        "endTime": times[-1],
        **({"agent": _references(people)} if people else {}),
    }
    yield {
        **_file(out, WORKFLOW),
        "@type": ["File", "SoftwareSourceCode", "ComputationalWorkflow"],
        "name": "pfl-repro",
        "conformsTo": {"@id": COMPUTATIONAL_WORKFLOW},
        "programmingLanguage": {"@id": "#dvc"},
        "url": "https://dvc.org",
        "version": results.sources.name,
        "hasPart": _references(f"#code-{i}" for i in range(len(codes))),
        "input": _references(f"#input-{name}" for name in inputs),
        "output": _references(f"#output-{name}" for name in outputs),
    }
    yield {
        "@id": "#dvc",
        "@type": "ComputerLanguage",
        "name": "DVC",
        "url": {"@id": "https://dvc.org"},
    }
    for i, sources in enumerate(codes):
        yield {
            "@id": f"#code-{i}",
            "@type": "SoftwareSourceCode",
            "name": f"pfl-repro, {sources.name}",
            "version": sources.commit,
            "identifier": sources.sources,
            **({"url": citation.code} if citation.code else {}),
            "description": "The simulator; its identifier is the SHA-256 of its files.",
        }
    for kind, values in (("input", inputs), ("output", outputs)):
        for name, value in values.items():
            yield from _parameter(out, f"#{kind}-{name}", value)
    for address, name in PROFILES.items():
        version = address.rpartition("/")[2]
        yield {"@id": address, "@type": "CreativeWork", "name": name, "version": version}
    if licence:
        yield {"@id": licence, "@type": "CreativeWork", "name": citation.licence}
    for identifier, author in people.items():
        yield {"@id": identifier, **author}


def _parameter(out: Path, identifier: str, value: str) -> Iterator[dict[str, Any]]:
    """A parameter of the workflow, the file or folder that is its value, and the folder's files."""
    is_folder = value.endswith("/")
    yield {
        "@id": identifier,
        "@type": "FormalParameter",
        "name": identifier.partition("-")[2],
        "conformsTo": {"@id": FORMAL_PARAMETER},
        "additionalType": "Dataset" if is_folder else "File",
        "workExample": {"@id": value},
    }
    if not is_folder:
        yield {**_file(out, value), "exampleOfWork": {"@id": identifier}}
        return
    names = sorted(str(path.relative_to(out)) for path in (out / value).rglob("*") if path.is_file())
    yield {
        "@id": value,
        "@type": "Dataset",
        "name": value.removesuffix("/"),
        "description": ABOUT[value],
        "hasPart": _references(names),
        "exampleOfWork": {"@id": identifier},
    }
    yield from (_file(out, name) for name in names)


def _about(results: Results) -> str:
    return f"Results of the table {results.table}: {_extent(results)}."


def _extent(results: Results) -> str:
    cells, runs = amount(len(results.cells), "cell"), amount(len(results.records), "run")
    return f"{cells} from {runs}"


def _file(out: Path, name: str) -> dict[str, Any]:
    content = (out / name).read_bytes()
    described = {"description": ABOUT[name]} if name in ABOUT else {}
    return {
        "@id": name,
        "@type": "File",
        "name": name,
        **described,
        "encodingFormat": _format(name),
        "contentSize": str(len(content)),
        "sha256": hashlib.sha256(content).hexdigest(),
    }


def _format(name: str) -> str:
    own = {".jsonl": "application/jsonl", ".yaml": "application/yaml", ".lock": "text/plain"}
    return own.get(Path(name).suffix) or guess_type(name)[0] or "application/octet-stream"


def _references(names: Iterable[str]) -> Any:
    """References to entities; a single one is not in a list, as in compacted JSON-LD."""
    references = [{"@id": name} for name in names]
    return references[0] if len(references) == 1 else references
