"""The data sets and partitions of a table as Croissant 1.1 metadata.

Each partition gets two files: `NAME.csv` assigns images to clients, and `NAME.json` describes it and the
files of its data set.

Source: https://docs.mlcommons.org/croissant/docs/croissant-spec-1.1.html
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from mimetypes import guess_type
from pathlib import Path
from typing import Any

from pfl.core.errors import InvalidInput, Missing
from pfl.core.files import write_json, write_text
from pfl.data.datasets import DATASETS
from pfl.data.partition import Partition, follows_run, parse_spec
from pfl.data.resize import resized
from pipeline.evidence.citation import read_citation
from pipeline.formatting import csv_text
from pipeline.spec.cells import Cell, by_partition, cells
from pipeline.spec.paths import partition_file, partitions_folder
from pipeline.spec.table import Table, load_table
from pipeline.store.stage_files import load_manifest

OWN_TERMS = """
    arrayShape citeAs column containedIn equivalentProperty extract field fileObject fileProperty
    fileSet format includes isArray isLiveDataset jsonPath key md5 parentField path recordSet references
    regex repeated replace samplingRate separator source subField transform
"""
"""Croissant terms to which the context only adds the prefix ``cr:``."""

CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    **{term: f"cr:{term}" for term in OWN_TERMS.split()},
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "description": {"@container": "@language"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "name": {"@container": "@language"},
    "rai": "http://mlcommons.org/croissant/RAI/",
    "sc": "https://schema.org/",
}
"""The Croissant 1.1 context, which every file repeats."""

FIELDS = {
    "client": ("sc:Integer", "Number of the client, from 0."),
    "part": ("sc:Text", "train or test."),
    "image": ("sc:Integer", "Position in the pooled data set, from 0; the training set is first."),
}
"""Columns of a partition's CSV file: type and meaning."""


def write_croissant(table: str, out: Path) -> list[str]:
    """Write the metadata of all current partitions of a table to a folder, and return their names.

    Raises:
        InvalidInput: there is no such table, its stages have not run, the folder is inside the partitions'
            folder, or a file cannot be written.
    """
    content, folder = load_table(table), partitions_folder(table).parent
    if out.resolve().is_relative_to(folder.resolve()):
        raise InvalidInput("out", str(out), f"a folder outside of {folder}, because file names would collide")
    datasets = load_manifest(table)["datasets"]
    names = []
    for name, cell, partition in _divisions(table, content, datasets):
        listed = _csv(partition)
        write_text(out / f"{name}.csv", listed)
        write_json(
            out / f"{name}.json", _metadata(table, name, cell, partition, datasets[cell.dataset], listed)
        )
        names.append(name)
    if not names:
        again = f"the partitions of the table; `pfl stage partition {table}` creates them"
        raise Missing("partitions", str(partitions_folder(table)), again)
    return names


def _divisions(
    table: str, content: Table, datasets: Mapping[str, Any]
) -> Iterator[tuple[str, Cell, Partition]]:
    """The current partitions of a table by name, each with a cell that uses it."""
    for name, cell in by_partition(cells(table, content)).items():
        for seed in content.seeds if follows_run(cell.partition) else (None,):
            file = partition_file(table, name, seed)
            if cell.dataset in datasets and file.exists():
                partition = Partition.load(file)
                if partition.spec == parse_spec(cell.partition, seed)[0]:
                    yield file.stem, cell, partition


def _csv(partition: Partition) -> str:
    parts = (("train", partition.train), ("test", partition.test))
    rows = (
        (client, part, image)
        for part, clients in parts
        for client, images in enumerate(clients)
        for image in images.tolist()
    )
    return csv_text(tuple(FIELDS), rows)


def _metadata(
    table: str, name: str, cell: Cell, partition: Partition, dataset: Mapping[str, Any], listed: str
) -> dict[str, Any]:
    file = f"{name}.csv"
    return {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.1",
        "name": f"{table}-{name}",
        "description": (
            f"Partition {partition.spec} of the data set {cell.dataset} over {partition.clients} clients: "
            f"{dataset['images']} samples in {dataset['classes']} classes, {dataset['identity']}. SHA-256 of "
            f"the images and labels in any order: {dataset['content']}, in pooled order: "
            f"{dataset['checksum']}, and of the partition: {partition.checksum}."
        ),
        "version": "1.0.0",
        **_cited(),
        "isLiveDataset": False,
        "distribution": [
            *_files(cell.dataset, dataset["source"]["files"]),
            {
                "@type": "cr:FileObject",
                "@id": file,
                "name": file,
                "description": "The images of each client.",
                "contentUrl": file,
                "encodingFormat": "text/csv",
                "contentSize": f"{len(listed.encode())} B",
                "sha256": hashlib.sha256(listed.encode()).hexdigest(),
            },
        ],
        "recordSet": [
            {
                "@type": "cr:RecordSet",
                "@id": "images",
                "name": "images",
                "description": "A record for each image of a client.",
                "field": [
                    {
                        "@type": "cr:Field",
                        "@id": f"images/{column}",
                        "name": column,
                        "description": meaning,
                        "dataType": kind,
                        "source": {"fileObject": {"@id": file}, "extract": {"column": column}},
                    }
                    for column, (kind, meaning) in FIELDS.items()
                ],
            }
        ],
    }


def _cited() -> dict[str, Any]:
    """Licence, authors, date and reference of the partition: the project's, not those of the images."""
    citation = read_citation()
    stated = {
        "license": citation.licence_address,
        "creator": list(citation.authors),
        "datePublished": citation.date,
        "url": citation.code,
    }
    if citation.title and citation.authors and citation.date:
        authors = " and ".join(f"{{{author['name']}}}" for author in citation.authors)
        fields = f"author={{{authors}}}, title={{{citation.title}}}, year={{{citation.date[:4]}}}"
        stated["citeAs"] = f"@misc{{project, {fields}}}"
    return {key: value for key, value in stated.items() if value}


def _files(dataset: str, files: list[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The files that a data set was read from, with their official URLs if they have any."""
    name, _ = resized(dataset)
    official = {file.name: file.url for file in DATASETS[name].files} if name in DATASETS else {}
    for file in files:
        yield {
            "@type": "cr:FileObject",
            "@id": file["name"],
            "name": file["name"],
            "description": f"A file of the data set {dataset}.",
            "contentUrl": official.get(file["name"], file["name"]),
            "encodingFormat": guess_type(file["name"])[0] or "application/octet-stream",
            "contentSize": f"{file['bytes']} B",
            "sha256": file["sha256"],
        }
