"""What is in `examples/` runs."""

from __future__ import annotations

import json
import runpy
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import matplotlib as mpl
import pytest

import pfl
from pfl.methods import METHODS
from pfl.models import MODELS
from pipeline.spec.table import load_table
from pipeline.sweep.check import check_runs

EXAMPLES = Path(__file__).parents[1] / "examples"
PACKAGE = EXAMPLES / "my_method"


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The package as an installation leaves it: on the path, with its entry points."""
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    info = tmp_path / "my_method-0.1.0.dist-info"
    info.mkdir()
    name, version = project["name"], project["version"]
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{point} = {module}" for point, module in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(PACKAGE)
    for registry in (METHODS, MODELS):
        points = {point.name: point for point in entry_points(group=registry.package)}
        monkeypatch.setitem(registry.__dict__, "_points", points)


@pytest.mark.usefixtures("installed")
def test_the_method_and_the_network_of_the_package_are_simulated():
    options = {"clients": 4, "rounds": 2, "epochs": 1, "progress": False, "model": "tiny_mlp"}
    (warm,) = pfl.simulate("warmhead", hyperparameters={"warmup": 1.0}, **options)
    (average,) = pfl.simulate("fedavg", **options)
    assert warm.metrics.rounds == average.metrics.rounds


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    "test", ["test_the_network", pytest.param("test_the_method", marks=pytest.mark.slow)]
)
def test_the_tests_of_the_package_pass(test):
    tests = runpy.run_path(str(PACKAGE / "tests/test_my_method.py"))
    tests[test]()


@pytest.mark.usefixtures("installed")
def test_the_table_of_the_package_is_one(monkeypatch):
    monkeypatch.chdir(PACKAGE)
    assert check_runs("warmhead", load_table("warmhead")) == []


@pytest.mark.slow
def test_the_notebook_ends_with_a_table():
    mpl.use("Agg")
    notebook = json.loads((EXAMPLES / "from_data_to_a_table.ipynb").read_text())
    names = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert list(names["table"].index) == ["fedavg", "fedper", "pfedsim"]
