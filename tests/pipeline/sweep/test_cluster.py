"""Sweeps on a Ray of their own, and clusters that a sweep refuses to join."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import psutil
import pytest

from pfl import load_models
from pipeline.report.table_report import write_report
from pipeline.store.results import load_results
from pipeline.store.workspace import models_file
from tests.pipeline.running import (
    BIN,
    checkpoints,
    command_of,
    csv_lines,
    finished,
    rows,
    wait_until,
    workers,
)
from tests.pipeline.services import NO_TOKEN, TOKEN, Cluster, without
from tests.repository import ROOT

pytestmark = pytest.mark.slow

ROUNDS_OF_A_MINUTE = 3000


def test_a_table_is_run_with_its_metrics_and_of_its_trials_only_the_final_models_are_kept(start, edit):
    measured = "{every: 1, metrics: [auroc, macro_f1, recall]}"
    edit("evaluation: {every: 1}", f"search: {{trials: 2}}\nkeep: models\nevaluation: {measured}")
    output = finished(start())
    assert f"{len(rows())} runs computed, 0 from the ledger" in output
    assert "the final models are in .sweeps/models/; results/small/models.csv lists them" in output
    assert [cell.status for cell in load_results("small").cells] == ["done", "done"]
    assert all(row["hardware"]["threads"] == 1 for row in rows())
    final = {row["key"]: row["seed"] for row in rows() if row["phase"] == "final"}
    kept = [path for path in Path(".sweeps").rglob("*") if path.is_file()]
    assert {path.stem for path in kept if path.suffix == ".pt"} == final.keys()
    assert {str(path.parent) for path in kept} == {".sweeps/models", ".sweeps/ledger", ".sweeps"}
    for key, seed in final.items():
        models = load_models(models_file(key), seed)
        assert all(tensor.shape[0] in (1, 5) for tensor in models.tensors.values())
    folder = write_report("small")
    lines, metrics = (
        [line for line in csv_lines(folder / name) if line["configuration"] == "pinned"]
        for name in ("table.csv", "metrics.csv")
    )
    names = ["auroc", "auroc_client_mean", "macro_f1", "macro_f1_client_mean"]
    assert all(0 < float(line[name]) < 1 for line in lines for name in names)
    assert "recall" not in lines[0]
    recalls = [line for line in metrics if line["metric"] == "recall"]
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


def refused(process: subprocess.Popen[str]) -> str:
    """What a sweep has said that ended with one line."""
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 2, output
    assert "Traceback" not in output
    return output


def test_a_cluster_that_does_not_answer_is_one_line(start):
    output = refused(start(RAY_ADDRESS="127.0.0.1:1"))
    assert "RAY_ADDRESS: 127.0.0.1:1 is not accepted; expected the address of a running cluster" in output


def test_a_cluster_that_anybody_may_use_is_refused(start, tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("cluster"), NO_TOKEN) as open_to_all:
        output = refused(start(RAY_ADDRESS=open_to_all.address, **TOKEN))
    assert "expected a cluster started with RAY_AUTH_MODE=token (see docs/cluster.md)" in output


def test_a_wrong_token_and_nodes_without_the_folder_are_told(start, tmp_path_factory, prepared):
    with Cluster(tmp_path_factory.mktemp("cluster")) as joined:
        wrong = start(RAY_ADDRESS=joined.address, **{**TOKEN, "RAY_AUTH_TOKEN": "0" * 64})
        assert "expected a cluster that accepts this user's token" in refused(wrong)
        elsewhere = without(prepared)
        if not elsewhere:
            pytest.skip("this machine hides no folder from a process")
        joined.add_node(*elsewhere)
        output = refused(start(RAY_ADDRESS=joined.address, **TOKEN))
    assert f"expected one with the folder {prepared} of the sweep, on storage that all nodes share" in output
