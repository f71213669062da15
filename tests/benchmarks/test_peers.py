"""The comparison with other frameworks: its inputs, its table, and what a tree of processes uses."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

from benchmarks import report
from benchmarks.peers import __main__ as command
from benchmarks.peers import environments
from benchmarks.peers.environments import PEERS
from benchmarks.peers.inputs import write_inputs
from benchmarks.peers.scripts.work import Record, Work, accuracy, network, tensors
from benchmarks.peers.table import BEGIN, END, FIGURES, lines_of_code, readme_block, readme_table, summary
from benchmarks.peers.tree import members, run_tree
from benchmarks.workload import SYNTHETIC, Workload
from pfl.core.errors import InvalidInput
from tests.repository import ROOT

LITTLE = Workload(
    dataset=SYNTHETIC, partition="dirichlet:1,min=10", clients=100, participation=0.02, rounds=3, epochs=1
)


def run_of(peer: str, cores: int, repeat: int, training_seconds: float) -> dict[str, Any]:
    return {
        "peer": peer,
        "model": "lenet5_bn",
        "rounds": 4,
        "cores": cores,
        "repeat": repeat,
        "version": "1.2.3",
        "setting": f"{cores} processes",
        "samples": 1000,
        "training_seconds": training_seconds,
        "startup_seconds": 2.0,
        "seconds": 2.0 + 2 * training_seconds,
        "cpu_seconds": 3.0,
        "peak_memory_bytes": 5e8,
        "accuracies": {"2": 10.0, "4": 20.0},
    }


@pytest.fixture
def figures() -> dict[str, Any]:
    """Of two frameworks in two repeats, in the second of which the machine was half as fast."""
    seconds = {("textbook", 1): 10.0, ("ours", 1): 4.0, ("textbook", 2): 5.0, ("ours", 2): 2.5}
    runs = [
        run_of(peer, cores, repeat, took * (repeat + 1))
        for repeat in range(2)
        for (peer, cores), took in seconds.items()
    ]
    return {
        "workload": {"epochs": 5, "batch_size": 32, "lr": 0.01},
        "titles": {name: PEERS[name].title for name in ("textbook", "ours")},
        "lines": {"textbook": 90, "ours": 30},
        "check_schedule": {"rounds": 2, "epochs": 1},
        "check": {
            "textbook": {"difference": 0.0, "accuracy": 10.0},
            "ours": {"difference": 1e-7, "accuracy": 10.0},
        },
        "runs": runs,
        "hardware": {"gpu": None, "cpu": "made up", "cores": 2},
        "load": 1.0,
        "versions": {"torch": "2"},
        "commit": "0" * 40,
        "dirty": False,
    }


def test_ratios_are_taken_within_a_repeat(figures):
    rows = {(row["peer"], row["cores"]): row for row in summary(figures)}
    assert rows["ours", 1]["training_ratio"] == pytest.approx(2.5)
    assert rows["ours", 2]["whole_ratio"] == pytest.approx(2.0)
    assert rows["textbook", 1]["training_ratio"] == 1
    assert rows["ours", 1]["training"] == pytest.approx((1000 / 4 + 1000 / 8) / 2)
    assert rows["ours", 1]["accuracy"] == 20


def test_the_readme_has_a_row_per_framework(figures):
    *_, textbook, ours = readme_table(figures).splitlines()
    assert textbook == "| textbook loop | 1.00 | 1.00 | 1.00 | 1.00 | 2 s | 0.5 GB | 90 |"
    assert ours == "| **ours** | 2.50 | 2.00 | 2.50 | 2.00 | 2 s | 0.5 GB | 30 |"


def test_the_readme_has_the_numbers_of_cores_of_the_first_network(figures):
    figures["runs"] += [{**run_of(peer, 4, 0, 1.0), "model": "cnn4"} for peer in figures["titles"]]
    *_, ours = readme_table(figures).splitlines()
    assert ours == "| **ours** | 2.50 | 2.00 | 2.50 | 2.00 | 2 s | 0.5 GB | 30 |"


def test_the_page_opens_with_the_frameworks(figures, tmp_path, monkeypatch):
    (tmp_path / "peers.json").write_text(json.dumps(figures))
    monkeypatch.setattr(report, "FOLDER", tmp_path)
    report.main()
    page = (tmp_path / "README.md").read_text()
    assert page.index("\n\n## Other frameworks\n") < page.index("| ours | 2 | 300 | **2.00** |")
    assert "| ours | 1.2.3 | 1 processes; 2 processes | 1e-07 | 10.00 % |\n\nNone of" in page
    assert (tmp_path / "peers.svg").exists()


def test_the_readme_shows_the_published_figures():
    published = ROOT / FIGURES
    block = (ROOT / "README.md").read_text().split(BEGIN)[1].split(END)[0].strip()
    assert block == (readme_block(json.loads(published.read_text())) if published.exists() else "")


def test_lines_of_code_are_those_without_comments_and_docstrings(tmp_path):
    file = tmp_path / "script.py"
    file.write_text(
        '"""A script\nof two lines."""\n\n# a comment\nx = (\n    1,\n)  # another\n\n\nprint(x)\n'
    )
    assert lines_of_code(file) == 4
    assert lines_of_code(file, file) == 8


@pytest.mark.parametrize("peer", [name for name, peer in PEERS.items() if peer.requirements])
def test_every_requirement_has_an_exact_version(peer):
    lines = PEERS[peer].requirements.read_text().splitlines()
    assert any(line.startswith(f"{peer}==") for line in lines)
    assert all(line.count("==") == 1 for line in lines)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("error: no Python 3.11\nwarning: two Pythons\nwere found\n", "uv: error: no Python 3.11"),
        ("  x No solution found:\n  because flwr is too old\n", "uv: because flwr is too old"),
    ],
)
def test_an_environment_that_cannot_be_made_is_named_with_uvs_reason(said, reason, tmp_path, monkeypatch):
    def run(*_: object) -> None:
        raise subprocess.CalledProcessError(2, "uv", stderr=said)

    monkeypatch.setattr(environments, "_run", run)
    with pytest.raises(InvalidInput, match=f"Flower is not accepted; expected .* with {reason}$"):
        environments.interpreter(PEERS["flwr"], tmp_path)


@pytest.fixture
def compare(tmp_path, monkeypatch) -> Callable[..., int]:
    """Compares frameworks whose scripts do nothing, except that one has other weights, and one fails."""

    def run(bench: command.Bench, name: str, _model: str, cores: int, **_: object) -> dict[str, Any]:
        if name == "flwr":
            raise InvalidInput("script", "with_flwr.py", "one that runs; the log ends with: no backend")
        shape = (2,) if name == "pfl" else (3,)
        torch.save([torch.zeros(shape)], bench.folder / f"{name}.pt")
        return {**run_of(name, cores, 0, 1.0), "accuracies": {"1": 10.0}}

    def compared(*only: str) -> int:
        options = {"only": list(only), "model": ["lenet5_bn"], "workers": [1], "environments": tmp_path}
        try:
            command.main(**options, rounds=1, repeats=1, prepare=False, json_file=tmp_path / "peers.json")
        except typer.Exit as end:
            return end.exit_code
        return 0

    monkeypatch.setattr(command.Bench, "run", run)
    monkeypatch.setattr(command, "interpreter", lambda *_: Path(sys.executable))
    monkeypatch.setattr(command, "write_inputs", lambda *_: None)
    return compared


def test_frameworks_that_fail_the_check_are_named_and_the_others_are_measured(compare, tmp_path, capsys):
    assert compare("flwr", "pfl", "fluke-fl") == 1
    flower, apple = capsys.readouterr().err.splitlines()
    assert flower.startswith("flwr is left out: script: with_flwr.py ")
    assert apple.startswith("pfl is left out: RuntimeError: The size of tensor a (2)")
    figures = json.loads((tmp_path / "peers.json").read_text())
    for measured in (figures["titles"], figures["lines"], figures["check"]):
        assert list(measured) == ["textbook", "fluke-fl"]
    assert [run["peer"] for run in figures["runs"]] == ["textbook", "fluke-fl"]


def test_a_comparison_of_frameworks_that_all_run_ends_well(compare, capsys):
    assert compare("fluke-fl", "ours") == 0
    assert capsys.readouterr().err == ""


def test_a_framework_without_an_environment_is_a_failure(compare, monkeypatch, capsys):
    def missing(peer: environments.Peer, _: Path) -> Path:
        if peer.requirements:
            raise InvalidInput("framework", peer.title, "an environment")
        return Path(sys.executable)

    monkeypatch.setattr(command, "interpreter", missing)
    assert compare("fluke-fl", "ours") == 1
    assert capsys.readouterr().err.startswith("fluke-fl is left out: framework: fluke is not accepted")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    write_inputs(folder, LITTLE, ["lenet5_bn", "cnn4"])
    return folder


def work_in(folder: Path, model: str = "lenet5_bn") -> Work:
    schedule = {"rounds": 3, "epochs": 1, "batch_size": 32, "lr": 0.1, "eval_every": 2, "shuffle": False}
    files = {"record": str(folder / "record.json"), "weights": str(folder / "weights.pt")}
    return Work(
        **schedule, **files, inputs=str(folder), model=model, workers=1, device="cpu", began=0.0, rule=""
    )


@pytest.mark.parametrize("model", ["lenet5_bn", "cnn4"])
def test_scripts_start_from_our_weights_in_a_plain_network(inputs, model):
    ours = replace(LITTLE, model=model).simulation().program.net
    plain = work_in(inputs, model).network()
    images = torch.rand(4, 3, 32, 32)
    torch.testing.assert_close(plain(images), ours(images))


def test_scripts_get_our_partition_and_participants(inputs):
    work = work_in(inputs)
    images, labels = work.train_samples(2)
    indices = LITTLE.split.train[2]
    assert labels.tolist() == LITTLE.data.labels[indices].tolist()
    torch.testing.assert_close(images[0], torch.from_numpy(LITTLE.data.images[indices[0]]) / 255 * 4 - 2)
    assert len(work.test_samples()[1]) == sum(map(len, LITTLE.split.test))
    simulation = LITTLE.simulation()
    simulation.advance()
    assert work.partition["participants"][0] == simulation.runs[0].server.participants.tolist()
    assert [round for round in range(1, 4) if work.due(round)] == [2, 3]


def test_a_record_measures_rounds_from_the_first_participant_to_the_last(inputs):
    work = work_in(inputs)
    record = Record(work, "torch", "")
    record.spans = [(1, 5.0, 7.0, 10), (1, 6.0, 9.0, 20), (2, 20.0, 21.0, 30)]
    model = network("lenet5_bn")
    record.write(model)
    figures = json.loads(Path(work.record).read_text())
    assert (figures["samples"], figures["training_seconds"], figures["startup_seconds"]) == (60, 5.0, 5.0)
    assert len(torch.load(work.weights)) == len(tensors(model))


def test_accuracy_is_in_per_cent():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False))
    model[0].weight.data = torch.eye(2)
    images = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    assert accuracy(model, images, torch.tensor([0, 1, 1, 0])) == 75


GRANDCHILD = """
import subprocess, sys
work = "import time; x = bytearray(80_000_000); sum(range(30_000_000)); time.sleep(1)"
child = subprocess.Popen([sys.executable, "-c", work])
"""


def test_a_tree_is_measured_with_processes_whose_parent_has_ended(tmp_path):
    work = tmp_path / "script.py"
    work.write_text(GRANDCHILD + "child.wait()")
    usage = run_tree([sys.executable, str(work)], {}, [0], tmp_path / "log", timeout=60)
    assert usage.peak_memory_bytes > 80_000_000
    assert 0 < usage.cpu_seconds <= usage.seconds + 1


def test_processes_that_outlive_a_script_are_ended(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.peers.tree.GRACE", 0.0)
    marks = []
    monkeypatch.setattr("benchmarks.peers.tree.members", lambda mark: marks.append(mark) or members(mark))
    work = tmp_path / "script.py"
    sleep = "import time; time.sleep(99)"
    sleeper = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {sleep!r}])"
    work.write_text(sleeper)
    run_tree([sys.executable, str(work)], {}, [0], tmp_path / "log", timeout=60)
    assert members(marks[0]) == []


def test_a_script_that_fails_is_named_with_its_last_line(tmp_path):
    work = tmp_path / "script.py"
    work.write_text("raise SystemExit('no such option')")
    with pytest.raises(InvalidInput, match="ends with: no such option"):
        run_tree([sys.executable, str(work)], {}, [0], tmp_path / "log", timeout=60)
