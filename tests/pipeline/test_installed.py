"""The wheel, installed where there is no checkout: a project that it makes runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pipeline.running import BIN, json_lines
from tests.repository import ROOT, commit, replace_text

pytestmark = pytest.mark.slow

TABLE = """\
extends: methods-digits
schedule: {rounds: 1}
methods: [fedavg]
seeds: [1]
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Runs a command in a virtual environment with the wheel, and with this one's libraries."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder / "wheel"],
        cwd=ROOT,
        check=True,
    )
    (wheel,) = (folder / "wheel").iterdir()
    place = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (place / "lib" / version / "site-packages/libraries.pth").write_text(sysconfig.get_path("purelib"))
    quiet = ["--quiet", "--offline", "--no-deps"]
    install = [BIN / "uv", "pip", "install", *quiet, "--python", place / "bin/python"]
    subprocess.run([*install, wheel], check=True)
    path = os.pathsep.join(map(str, (place / "bin", BIN, os.environ["PATH"])))
    installed = {**os.environ, "PATH": path, "PYTHONPATH": "", "OMP_NUM_THREADS": "1"}

    def in_environment(*command: str, cwd: Path) -> str:
        done = subprocess.run(command, cwd=cwd, env=installed, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return in_environment


def test_a_project_of_the_installed_package_runs_and_its_rows_count(run, tmp_path):
    study = tmp_path / "study"
    run("pfl", "init", "--table", "methods-digits", "study", cwd=tmp_path)
    (study / "tables/short.yaml").write_text(TABLE)
    replace_text(study / "params.yaml", "- methods-digits", "- short")
    commit(study)
    assert "short: 1 cell, 1 run" in run("pfl", "check", cwd=study / "tables")
    run("dvc", "repro", cwd=study)
    (row,) = json_lines(study / "results/ledger/short.jsonl")
    assert row["commit"].startswith("pfl-repro ")
    assert not row["dirty"]
    assert row["seed"] == 1
    assert "pfl-repro " in (study / "results/short/report/README.md").read_text()
    run("pfl", "export", "rocrate", "short", "--out", "crate", cwd=study)
    assert "pfl-repro " in (study / "crate/ro-crate-metadata.json").read_text()


PLUGIN = """\
from dataclasses import dataclass

from pfl.methods.fedper import FedPer


@dataclass(frozen=True)
class Mine(FedPer):
    pass
"""


def test_a_project_with_published_records_reports_them_and_runs_only_the_method_that_is_compared(
    run, tmp_path
):
    """In a small part of a table: two of its rows and one of its seeds."""
    study = tmp_path / "study"
    said = run("pfl", "init", "--table", "methods-digits", "--results", "study", cwd=tmp_path)
    assert re.match(r"1\d\d records of methods-digits in study/results/ledger/\n", said)
    (study / "tables/few.yaml").write_text("extends: methods-digits\nmethods: [fedavg, fedper]\nseeds: [0]\n")
    assert run("pfl", "report", "few", cwd=study).endswith("few: results/few/report/README.md, 2 cells\n")
    assert not list((study / ".sweeps").glob("ledger/*"))
    assert "not run" not in (study / "results/few/report/table.csv").read_text()
    (study / "plugins/methods").mkdir(parents=True)
    (study / "plugins/methods/mine.py").write_text(PLUGIN)
    compared = run("pfl", "compare", "few", "--method", "mine", cwd=study)
    assert "few-mine: 1 run computed, 0 from the ledger" in compared
    # 30 rounds of an equal method give equal numbers, so the interval over the clients is a point.
    assert re.search(r"FedPer +[0-9.]+ +\+0.00 \(\+0.00 to \+0.00, \d+ clients\)", compared)
    (record,) = json_lines(study / ".sweeps/ledger/few-mine.jsonl")
    assert record["cell"] == "two-classes/mine"


def test_the_installed_package_has_the_papers(run, tmp_path):
    run("pfl", "init", "--table", "pfedsim-table3-draws", "study", cwd=tmp_path)
    said = run("pfl", "check", cwd=tmp_path / "study")
    assert said.startswith("pfedsim-table3-draws: 12 cells, 12 runs")
