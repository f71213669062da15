"""The report on data: rules, printed figures, loads."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pfl.data.dataset import Dataset, load
from pfl.data.partitions import PARTITIONS
from pfl.errors import InvalidInput
from pipeline import data_report
from pipeline.comparisons import SPREAD, Comparison, pfedsim_table4, spfl_table5
from pipeline.data_report import EXAMPLES, NEEDS, write_data_report
from pipeline.loading import measure
from pipeline.spec.published import FOLDER, published_cells

SAMPLES = 6000


@pytest.fixture(scope="module", autouse=True)
def project(tmp_path_factory) -> Iterator[Path]:
    """A project with a small stand-in for CIFAR-10 in DATA_SOURCE."""
    root = tmp_path_factory.mktemp("project")
    shutil.copytree(FOLDER, root / FOLDER)
    (root / "archives").mkdir()
    np.savez(
        root / "archives/cifar10.npz",
        images=np.zeros((SAMPLES, 3, 32, 32), np.uint8),
        labels=np.arange(SAMPLES) % 10,
        classes=[f"class {c}" for c in range(10)],
        n_train=SAMPLES * 5 // 6,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.setenv("DATA_SOURCE", str(root / "archives"))
        patch.setenv("PFL_CACHE", str(root / "cache"))
        yield root


@pytest.fixture(scope="module")
def folder(project) -> Path:
    (project / "out").mkdir()
    (project / "out/notes.txt").touch()
    write_data_report(project / "out", seeds=range(2), repeats=1)
    return project / "out"


@pytest.fixture(scope="module")
def readme(folder) -> str:
    return (folder / "README.md").read_text()


@pytest.fixture(scope="module")
def page(folder) -> str:
    return (folder / "index.html").read_text()


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load("digits")


# ---- the pages -----------------------------------------------------------------------------------------


def test_every_rule_is_drawn_or_listed_with_what_it_needs(readme, page):
    drawn = {example.spec.partition(":")[0] for example in EXAMPLES.values()}
    assert drawn | NEEDS.keys() == set(PARTITIONS)
    assert not drawn & NEEDS.keys()
    for text in (readme, page):
        assert all(need in text for need in NEEDS.values())


def test_every_example_has_its_plot_and_its_statistics(readme, page, folder):
    for name, example in EXAMPLES.items():
        assert (folder / f"partition-{name}.svg").read_text().startswith("<?xml")
        assert f'<img src="partition-{name}.svg"' in readme
        assert f'aria-label="{example.label}"' in page
        (line,) = re.findall(rf"^\| {re.escape(example.label)} \|.*", readme, re.MULTILINE)
        assert f"| {example.clients} |" in line


def test_a_copy_of_the_data_and_figures_that_do_not_match_are_said_first(readme, page):
    for text in (readme.partition("## Rules")[0], page.partition('id="rules"')[0]):
        assert "cifar10 is a copy that differs from the original pixels." in text
        assert "cifar10, train and test merged: samples" in text


def test_what_is_absent_is_listed_and_not_compared(readme):
    assert (
        "Not present: cifar100, cinic10, domainnet, emnist_balanced, emnist_byclass, femnist, mnist" in readme
    )
    assert "as the data are not present: cinic10, emnist_byclass, tiny_imagenet." in readme
    assert "as the data are not present: mnist, emnist_balanced, cifar100." in readme


def test_each_data_set_that_is_present_has_its_loads(readme):
    loads = readme.partition("## Loading")[2].partition("## Provenance")[0]
    assert re.search(rf"\| cifar10 \| {SAMPLES:,} \| 3 × 32 × 32 \| 18.4 \|( [\d.–, ]+ \|){{5}}\n", loads)
    assert "| digits | 1,797 | 1 × 8 × 8 | 0.1 |" in loads


def test_provenance_says_which_data_and_code(readme, page):
    dataset = load("cifar10")
    for text in (readme, page):
        assert f"content sha256 {dataset.content}" in text
        assert dataset.source["files"][0]["sha256"] in text
        assert "DATA_SOURCE=path/to/archives pfl data-report" in text


def test_no_path_of_the_machine_is_in_the_files(folder, project):
    assert not any(str(project) in path.read_text() for path in folder.iterdir())


def test_the_page_needs_no_network_and_its_ids_are_unique(page):
    hosts = {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert set(re.findall(r"https?://[^\s\"'<>)]+", page)) <= hosts
    assert not re.search(r"<(script|link|iframe|img)\b|@import", page)
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_other_files_in_the_folder_stay(folder):
    assert (folder / "notes.txt").exists()


# ---- printed figures -----------------------------------------------------------------------------------


def compared(printed: float, *ours: float) -> Comparison:
    return Comparison("digits", "", "", printed, ours)


def test_a_figure_within_two_standard_deviations_over_the_seeds_matches():
    ours = (90, 100, 110)
    assert compared(119, *ours).matches
    assert compared(81, *ours).matches
    assert not compared(121, *ours).matches
    assert compared(119, *ours).apart == pytest.approx(1.9)


def test_a_figure_that_no_seed_changes_matches_if_it_is_the_same_when_rounded():
    assert compared(600, 600.2).matches
    assert not compared(600, 601).matches
    assert compared(600, 600.2).apart is None


def test_the_figures_are_those_of_the_published_file(digits):
    cells = [replace(c, std=12345.0) if c.std else c for c in published_cells("pfedsim.csv")]
    datasets = {"cifar10": digits}
    spread = [c for c in pfedsim_table4(cells, datasets, seeds=range(2)) if c.quantity == SPREAD]
    assert [(c.setting, c.printed) for c in spread] == [
        ("Dir(0.1), 100 clients", 12345.0),
        ("Dir(0.5), 100 clients", 12345.0),
    ]


def test_ours_are_of_partitions_by_the_given_options_and_seeds(digits):
    cells = [c for c in published_cells("pfedsim.csv") if c.partition_arg == "alpha=0.5"]
    cells = [replace(c, clients=10) for c in cells]
    capped, free = (
        next(c for c in pfedsim_table4(cells, {"cifar10": digits}, range(3), options) if c.quantity == SPREAD)
        for options in ("test=0.5", "uncapped,test=0.5")
    )
    assert len(set(capped.ours)) == 3
    assert capped.mean < free.mean


def test_a_setting_that_spfl_prints_for_two_ways_of_training_is_compared_once(digits):
    found = spfl_table5(published_cells("spfl.csv"), {"mnist": digits}, seeds=range(2))
    assert [(c.setting, c.quantity, c.printed) for c in found] == [
        ("6 classes, IID, 10 clients", "training samples a client", 2800),
        ("6 classes, IID, 10 clients", "test samples a client", 700),
        ("6 classes, non-IID, 10 clients", "training samples a client", 2800),
        ("6 classes, non-IID, 10 clients", "test samples a client", 700),
    ]
    mine = digits.n_train / 10 * 0.6  # ten clients, six classes of ten
    assert [c.mean for c in found] == pytest.approx([0.8 * mine, 0.2 * mine] * 2, abs=3)


def test_the_two_emnists_are_told_apart(digits):
    by_class = pfedsim_table4(published_cells("pfedsim.csv"), {"emnist_byclass": digits}, seeds=[0])
    balanced = spfl_table5(published_cells("spfl.csv"), {"emnist_byclass": digits}, seeds=[0])
    assert {c.dataset for c in by_class} == {"emnist_byclass"}
    assert balanced == []


# ---- loads ---------------------------------------------------------------------------------------------


def test_a_load_has_a_process_and_a_cache_of_its_own():
    ballast = np.ones(50_000_000)  # 400 MB that are none of a load's
    (first,), (cached,) = measure("digits", repeats=1)
    assert first.bytes_before < ballast.nbytes
    assert cached.peak_bytes < first.peak_bytes  # scikit-learn is not needed again


# ---- mistakes ------------------------------------------------------------------------------------------


@pytest.fixture
def nothing_computed(monkeypatch) -> None:
    monkeypatch.setattr(data_report, "measure", lambda *_: pytest.fail("a load was measured"))
    monkeypatch.setattr(data_report, "published_cells", lambda *_: pytest.fail("figures were read"))


@pytest.mark.usefixtures("nothing_computed")
def test_without_cifar10_the_place_of_its_archive_is_named(project, monkeypatch):
    monkeypatch.delenv("DATA_SOURCE")
    place = "cifar10, too: put its archive in the folder DATA_SOURCE or in data/raw/cifar10"
    with pytest.raises(InvalidInput, match=place):
        write_data_report(project / "none")
    assert not (project / "none").exists()


def test_a_single_archive_as_data_source_is_one_clear_line(project, monkeypatch):
    monkeypatch.setenv("DATA_SOURCE", str(project / "archives/cifar10.npz"))
    command = [sys.executable, "-m", "pfl", "data-report"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "expected a folder: every data set is looked for there" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.usefixtures("nothing_computed")
def test_a_folder_that_cannot_be_written_is_said_before_anything_is_measured(project):
    (project / "in-the-way").touch()
    with pytest.raises(InvalidInput, match="a folder that can be written"):
        write_data_report(project / "in-the-way")
