"""Reports of made-up results."""

from __future__ import annotations

from contextlib import chdir
from pathlib import Path

import pytest

from pipeline.report.table_report import write_report
from tests.pipeline.fake_results import cell_of, fail, fake_results, reach, write_results
from tests.repository import copy_numbers

PUBLISHED = {"dataset": "cifar10", "partition": "dirichlet", "partition_arg": "alpha=0.1", "clients": 100}


def realistic() -> dict:
    """A paper's table with all that can go wrong in it."""
    results = fake_results(
        methods=4, seeds=2, search=3, published={"paper": "pfedsim", "table": "3"}, table="paper-table3"
    )
    results["config"]["title"] = "A table of <Tan> & al."
    results["config"]["claims"] = [
        {"says": "highest in all cases", "place": "Section 5", "kind": "best", "row": "pfedsim"}
        | {"settings": ["cifar10-0.1"]},
        {"says": "by 1.5 points", "place": "Section 5", "kind": "margin", "row": "pfedsim", "at_least": 1.5}
        | {"settings": ["cifar10-0.5"]},
    ]
    results["config"]["settings"]["cifar10-0.1"]["published"] = PUBLISHED
    reach(cell_of(results, "cifar10-0.1/local"), 80, 82)
    partial, failed = cell_of(results, "cifar10-0.5/fedavg"), cell_of(results, "cifar10-0.5/fedprox")
    fail(partial["pinned"], 1)
    fail(failed["pinned"], 0, 1)
    failed["selected"] = failed["pinned"]
    results["cells"].remove(cell_of(results, "cifar10-0.5/local"))
    return results


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test writes its reports in a project of its own, which has the papers' numbers."""
    monkeypatch.chdir(tmp_path)
    copy_numbers(tmp_path)


def report_of(results: dict) -> Path:
    """The folder of the report of some results, in the working directory."""
    write_results(results)
    return write_report(results["table"])


def readme_of(results: dict) -> str:
    return (report_of(results) / "README.md").read_text()


@pytest.fixture(scope="session")
def root(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("project")
    copy_numbers(root)
    (root / "pfl").mkdir()  # as in a checkout of the simulator
    return root


@pytest.fixture(scope="session")
def folder(root) -> Path:
    with chdir(root):
        return root / report_of(realistic())


@pytest.fixture(scope="session")
def readme(folder) -> str:
    return (folder / "README.md").read_text()


@pytest.fixture(scope="session")
def page(folder) -> str:
    return (folder / "index.html").read_text()


def line_of(readme: str, label: str) -> list[str]:
    """The cells of the main table's line that starts with ``label``."""
    line = next(line for line in readme.splitlines() if line.startswith(f"| {label} |"))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def small(**changes: object) -> str:
    """The README of a small table with some keys of its results replaced."""
    return readme_of(fake_results(methods=2, settings=1, seeds=1) | changes)
