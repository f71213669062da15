"""Partitions as Croissant metadata; `make validate` checks a file with mlcroissant."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from pfl.core.errors import InvalidInput
from pfl.data.partition import Partition
from pipeline.evidence.croissant import write_croissant
from pipeline.spec.paths import manifest_file, partition_file
from tests.pipeline.running import csv_lines


@pytest.mark.usefixtures("prepared")
def test_the_csv_of_a_partition_has_its_index_lists_and_the_metadata_its_checksums():
    assert write_croissant("small", Path("out")) == ["dir"]
    partition = Partition.load(partition_file("small", "dir"))
    rows = csv_lines(Path("out/dir.csv"))
    for part, clients in (("train", partition.train), ("test", partition.test)):
        for client, images in enumerate(clients):
            here = [row for row in rows if (row["client"], row["part"]) == (str(client), part)]
            assert [int(row["image"]) for row in here] == images.tolist()
    metadata = json.loads(Path("out/dir.json").read_text())
    assert partition.checksum in metadata["description"]
    assert metadata["conformsTo"] == "http://mlcommons.org/croissant/1.1"
    (file,) = metadata["distribution"]
    assert file["sha256"] == hashlib.sha256(Path("out/dir.csv").read_bytes()).hexdigest()
    columns = [field["source"]["extract"]["column"] for field in metadata["recordSet"][0]["field"]]
    assert columns == list(rows[0])


@pytest.mark.usefixtures("prepared")
def test_the_metadata_do_not_replace_the_statistics_of_the_partitions():
    statistics = partition_file("small", "dir").with_suffix(".json")
    before = statistics.read_text()
    with pytest.raises(
        InvalidInput, match=r"^out: .* expected a folder outside of data/partitions, because file names"
    ):
        write_croissant("small", statistics.parent)
    assert statistics.read_text() == before


def test_licence_authors_and_date_are_those_of_the_project(prepared):
    write_croissant("small", prepared / "out")
    assert "license" not in json.loads(Path("out/dir.json").read_text())
    (prepared / "CITATION.cff").write_text(
        "title: A study\nlicense: MIT\ndate-released: 2026-01-31\nauthors:\n- {name: A group}\n"
    )
    write_croissant("small", prepared / "out")
    metadata = json.loads(Path("out/dir.json").read_text())
    assert metadata["license"] == "https://spdx.org/licenses/MIT"
    assert metadata["creator"] == [{"@type": "Organization", "name": "A group"}]
    assert metadata["datePublished"] == "2026-01-31"
    assert metadata["citeAs"] == "@misc{project, author={{A group}}, title={A study}, year={2026}}"


@pytest.mark.usefixtures("prepared")
def test_a_file_of_the_data_set_has_its_official_address_and_a_copy_has_none(edit):
    manifest = json.loads(manifest_file("small").read_text())
    official, copy = "cifar-10-python.tar.gz", "copy.zip"
    manifest["datasets"]["cifar10"] = manifest["datasets"]["digits"] | {
        "source": {"files": [{"name": name, "bytes": 1, "sha256": "0" * 64} for name in (official, copy)]}
    }
    manifest_file("small").write_text(json.dumps(manifest))
    edit("dataset: digits", "dataset: cifar10")
    write_croissant("small", Path("out"))
    *files, _ = json.loads(Path("out/dir.json").read_text())["distribution"]
    addresses = {file["name"]: file["contentUrl"] for file in files}
    assert addresses[official].startswith("https://")
    assert addresses[copy] == copy


def test_each_seed_with_its_own_partition_has_its_own_file(edit, prepared):
    from pipeline.sweep import preparation

    edit('"dirichlet:0.5"', '"dirichlet:0.5,seed=run"')
    with pytest.raises(InvalidInput, match="table: smal is not accepted"):
        write_croissant("smal", prepared / "out")
    with pytest.raises(InvalidInput, match="`pfl stage partition small` creates them"):
        write_croissant("small", prepared / "out")
    preparation.partition("small")
    assert write_croissant("small", prepared / "out") == ["dir@seed0", "dir@seed1"]
