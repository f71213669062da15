"""The benchmarks of speed: what they measure on a little work, and the pages drawn from their figures."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys

import pytest
import torch
import typer

from benchmarks import (
    accuracy,
    faults,
    gpu,
    gpu_checks,
    gpu_kernels,
    kernels,
    methods,
    report,
    scale,
    throughput,
)
from benchmarks.workload import Workload, run
from tests.repository import ROOT

LITTLE = Workload(
    dataset="digits",
    partition="dirichlet:1,min=10",
    clients=5,
    model="cnn_digits",
    participation=0.4,
    rounds=9,
    epochs=1,
    batch_size=16,
)


@pytest.mark.parametrize(
    ("page", "draw"),
    [("speed", report), ("scale", scale), ("faults", faults)],
    ids=lambda value: str(value)[:8],
)
def test_a_page_is_what_its_template_makes_of_the_measured_figures(page, draw, tmp_path, monkeypatch):
    kept = ROOT / "reports/engineering" / page
    for file in [*kept.glob("*.json"), *kept.glob("*.log")]:
        shutil.copy(file, tmp_path)
    monkeypatch.setattr(draw, "FOLDER", tmp_path)
    (draw.main if draw is report else draw.draw)()
    assert (tmp_path / "README.md").read_text() == (kept / "README.md").read_text()


def test_the_error_of_a_difference_needs_two_seeds(monkeypatch, capsys):
    monkeypatch.setattr(accuracy, "in_subprocess", lambda *_: pytest.fail("a network was trained"))
    monkeypatch.setattr("sys.argv", ["benchmarks.accuracy", "--seeds", "1"])
    with pytest.raises(SystemExit):
        run(accuracy.main)
    assert "Invalid value for '--seeds'" in capsys.readouterr().err


@pytest.mark.slow
def test_both_loops_are_timed_in_training_and_in_whole_rounds():
    rates = throughput.measure(LITTLE, 2, "auto", "cpu", 1)
    for part in ("training", "round"):
        assert [len(rates[part][who]) for who in ("textbook", "engine")] == [2, 2]
        assert rates[part]["ratio"] > 0
    assert max(rates["round"]["engine"]) < max(rates["training"]["engine"])
    assert 0 < rates["share_of_peak"] < 1


@pytest.mark.slow
def test_a_method_is_timed_beside_fedavg():
    cost = methods.measure(dataclasses.replace(LITTLE, method="perfedavg"), 2)
    assert cost["seconds"] > 0
    assert cost["relative_by_sample"] != cost["relative"]


@pytest.mark.slow
def test_what_is_measured_on_a_gpu_is_a_section_of_the_page(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "WORK", {"lenet5_bn": LITTLE})
    monkeypatch.setattr(report, "FOLDER", tmp_path)
    log, figures = tmp_path / "gpu.log", tmp_path / "gpu.json"
    gpu.main(seeds=2, trials=2, rounds=2, epochs=1, repeats=2, device="cpu", log=log, json_file=figures)
    report.main()
    page = (tmp_path / "README.md").read_text()
    assert "---: |\n| lenet5_bn, fp32 |" in page
    assert "No GPU has been measured yet" not in page
    assert "lenet5_bn, fp32, 2 trials x 2 seeds: " in log.read_text()
    assert (tmp_path / "gpu.svg").exists()


@pytest.mark.slow
def test_every_way_to_compute_a_gpus_convolution_is_timed(monkeypatch, capsys):
    pytest.importorskip("triton")
    from pfl.kernels import triton_kernels

    monkeypatch.setattr("pfl.kernels.gpu.kernels", lambda: triton_kernels)
    timed = []

    def milliseconds(work):
        work()
        timed.append(work)
        return len(timed)

    monkeypatch.setattr(gpu_kernels, "milliseconds", milliseconds)
    monkeypatch.setattr(gpu_kernels, "IMAGES", 4)  # the interpreter of Triton is slow
    gpu_kernels.measure("tiny", (4, 6, 3, 1, 0, 6), 1, torch.float32, ("ieee",), device="cpu")
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "tiny, convolution",
        "tiny, images' gradient",
        "tiny, weights' gradient",
        "tiny, groups of cuDNN",
    ]
    assert all(line.count(" ms") == 1 + gpu_kernels.SHOWN for line in lines[:3])


def test_the_ways_of_a_convolution_end_when_the_time_is_up(monkeypatch, capsys):
    monkeypatch.setattr(gpu_kernels, "milliseconds", lambda _: 1.0)
    gpu_kernels.show("layer", object, [{}, {}], end=0.0)
    assert capsys.readouterr().out == "layer (0 of 2 ways): 1.000 ms; \n"


def test_the_checks_on_a_gpu_keep_what_every_step_has_written(tmp_path, monkeypatch, capsys):
    codes = {
        gpu_checks.TESTS: "print('passed')",
        gpu_checks.SPEED: "import os, time; print(os.getcwd(), flush=True); time.sleep(60)",
        gpu_checks.GRID: "raise SystemExit(3)",
    }
    monkeypatch.setattr(gpu_checks, "command", lambda kind, _: [sys.executable, "-c", codes[kind]])
    monkeypatch.setattr(gpu_checks, "LIMITS", dict.fromkeys(codes, 0.05))
    out, before = tmp_path / "out", tmp_path / "former"
    before.mkdir()
    with pytest.raises(typer.Exit):
        gpu_checks.main(out, before)
    ends = [line.rpartition(" after ")[0] for line in capsys.readouterr().out.splitlines()]
    assert ends == ["tests: done", "after: stopped", "before: stopped", "grid: failed with status 3"]
    assert (out / "tests.txt").read_text() == "passed\n"
    assert (out / "before.txt").read_text() == f"{before}\n"
    assert gpu_checks.step([sys.executable, "-c", ""], before, out / "no.txt", 0.0) == "stopped"


@pytest.mark.parametrize("kind", [gpu_checks.TESTS, gpu_checks.SPEED, gpu_checks.GRID])
def test_a_step_of_the_checks_is_a_command_with_these_options(kind, tmp_path):
    command = gpu_checks.command(kind, tmp_path / "after")
    shown = subprocess.run([*command, "--help"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr


@pytest.mark.slow
def test_every_kind_of_step_is_timed():
    assert {"textbook", "torch alone", "kernels"} <= kernels.measure("cnn_digits", 4, 0.0).keys()
