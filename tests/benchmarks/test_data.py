"""The report on data: its pages and mistakes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks import data
from benchmarks.data import write_data_report
from benchmarks.workload import run
from pfl.core.errors import InvalidInput
from pfl.data.dataset import load
from tests.repository import copy_numbers

pytestmark = pytest.mark.slow

SAMPLES = 6000


@pytest.fixture(scope="module", autouse=True)
def project(tmp_path_factory) -> Iterator[Path]:
    """A project with a small stand-in for CIFAR-10 in DATA_SOURCE."""
    root = tmp_path_factory.mktemp("project")
    copy_numbers(root)
    (root / "archives").mkdir()
    np.savez(
        root / "archives/cifar10.npz",
        images=np.zeros((SAMPLES, 3, 32, 32), np.uint8),
        labels=np.arange(SAMPLES) % 10,
        classes=[f"class {c}" for c in range(10)],
        n_train=SAMPLES * 5 // 6,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pfl.data.rule.REDRAWS", 20)
        patch.chdir(root)
        patch.setenv("DATA_SOURCE", str(root / "archives"))
        patch.setenv("PFL_CACHE", str(root / "cache"))
        yield root


@pytest.fixture(scope="module")
def folder(project) -> Path:
    (project / "out").mkdir()
    (project / "out/notes.txt").touch()
    write_data_report(project / "out", seeds=range(2))
    return project / "out"


@pytest.fixture(scope="module")
def readme(folder) -> str:
    return (folder / "README.md").read_text()


# ---- the pages -----------------------------------------------------------------------------------------


def test_a_copy_of_the_data_and_figures_that_do_not_match_are_said_first(readme):
    text = readme.partition("This page compares")[0]
    assert "cifar10 is a copy that differs from the original pixels." in text
    assert "cifar10, train and test merged: samples" in text


def test_what_is_absent_is_listed_and_not_compared(readme):
    absent = readme.partition("because the data are not available: ")[2].partition(".")[0]
    assert absent == "cinic10, emnist_byclass, tiny_imagenet, mnist, emnist_balanced, cifar100"


def test_provenance_says_which_data_and_code(readme):
    dataset = load("cifar10")
    assert f"content sha256 {dataset.content}" in readme
    assert dataset.source["files"][0]["sha256"] in readme
    assert "DATA_SOURCE=path/to/archives python -m benchmarks.data" in readme


def test_no_path_of_the_machine_is_in_the_files(folder, project):
    assert not any(str(project) in path.read_text() for path in folder.iterdir())


def test_other_files_in_the_folder_stay(folder):
    assert (folder / "notes.txt").exists()


# ---- mistakes ------------------------------------------------------------------------------------------


@pytest.fixture
def nothing_computed(monkeypatch) -> None:
    monkeypatch.setattr(data, "pfedsim_table4", lambda *_: pytest.fail("partitions were drawn"))


def test_a_source_in_the_home_folder_is_found(project, monkeypatch):
    monkeypatch.setenv("HOME", str(project))
    monkeypatch.setenv("DATA_SOURCE", "~/archives")
    assert "cifar10" in data._present(["cifar10"])


@pytest.mark.usefixtures("nothing_computed")
def test_without_any_data_the_place_of_their_archives_is_named(project, monkeypatch):
    monkeypatch.delenv("DATA_SOURCE")
    place = "expected one of cifar10, .*: put its archive in the folder DATA_SOURCE or in data/raw/NAME"
    with pytest.raises(InvalidInput, match=place):
        write_data_report(project / "none")
    assert not (project / "none").exists()


def test_a_single_archive_as_data_source_is_one_clear_line(project, monkeypatch):
    monkeypatch.setenv("DATA_SOURCE", str(project / "archives/cifar10.npz"))
    monkeypatch.setattr("sys.argv", ["benchmarks.data"])
    with pytest.raises(SystemExit, match=r"^error: .* expected a folder: every data set .* there$"):
        run(data.main)


@pytest.mark.usefixtures("nothing_computed")
def test_a_folder_that_cannot_be_written_is_said_before_anything_is_computed(project):
    (project / "in-the-way").touch()
    with pytest.raises(InvalidInput, match="a file that can be written"):
        write_data_report(project / "in-the-way")
