"""Sweeps on a Ray of their own."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
from pathlib import Path

import psutil
import pytest

from pipeline.report.table_report import write_report
from pipeline.store.results import load_results
from tests.pipeline.running import BIN, checkpoints, command_of, finished, rows, wait_until, workers
from tests.repository import ROOT

pytestmark = pytest.mark.slow

ROUNDS_OF_A_MINUTE = 3000


def test_a_table_is_run_and_its_metrics_are_columns_of_its_report(start, edit):
    edit("evaluation: {every: 1}", "evaluation: {every: 1, metrics: [auroc, macro_f1, recall]}")
    assert "4 runs computed, 0 from the ledger" in finished(start())
    assert [cell.status for cell in load_results("small").cells] == ["done", "done"]
    assert all(row["hardware"]["threads"] == 1 for row in rows())
    assert not list(Path(".sweeps/trials").iterdir())
    assert "0 runs computed, 4 from the ledger" in finished(start())
    folder = write_report("small")
    with (folder / "table.csv").open() as file:
        lines = list(csv.DictReader(file))
    names = ["auroc", "auroc_client_mean", "macro_f1", "macro_f1_client_mean"]
    assert all(0 < float(line[name]) < 1 for line in lines for name in names)
    assert "recall" not in lines[0]
    with (folder / "metrics.csv").open() as file:
        recalls = [line for line in csv.DictReader(file) if line["metric"] == "recall"]
    assert len(recalls) == 2 * 2 * 10  # rows, averages, classes
    assert all(0 <= float(recall["mean"]) <= 1 for recall in recalls)
    for page in ("README.md", "index.html"):
        shown = (folder / page).read_text()
        assert "auroc, pooled" in shown
        assert "macro_f1: F1 score, averaged over the classes." in shown
    assert "(metrics.csv)" in (folder / "README.md").read_text()


def test_a_sweep_s_own_ray_takes_nobody_else_and_an_edit_of_the_sources_ends_it(start, edit, tmp_path):
    edit("rounds: 2", f"rounds: {ROUNDS_OF_A_MINUTE}")
    for package in ("pfl", "pipeline"):
        shutil.copytree(ROOT / package, tmp_path / "sources" / package)
    process = start(PYTHONPATH=str(tmp_path / "sources"))
    wait_until(checkpoints)
    family = psutil.Process(process.pid).children(recursive=True)
    commands = [command_of(child) for child in family]
    arguments = {argument for command in commands for argument in command.split()}
    (address,) = [argument for argument in arguments if argument.startswith("--gcs-address=")]
    for access in ({"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}):
        asked = subprocess.run(
            [BIN / "ray", "health-check", "--address", address.partition("=")[2]],
            env={**os.environ, **access},
            capture_output=True,
            text=True,
            check=False,
        )
        assert asked.returncode != 0
        assert "InvalidAuthToken" in asked.stderr
    dashboards = [command for command in commands if "dashboard.py" in command]
    assert dashboards
    assert all("--disable-frontend" in dashboard for dashboard in dashboards)
    (tmp_path / "sources/pfl/later.py").write_text("")
    for victim in workers(process):
        victim.kill()
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 2, output
    assert "sources: the source changed during the sweep; run it again" in output
    assert not any("error" in row for row in rows())
    edit(f"rounds: {ROUNDS_OF_A_MINUTE}", "rounds: 2")
    assert "from the ledger" in finished(start(PYTHONPATH=str(tmp_path / "sources")))
