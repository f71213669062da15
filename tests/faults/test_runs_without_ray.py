"""`pfl run-trials` that is killed or whose trials fail."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pfl.core.config import Config
from pfl.data.dataset import load
from pfl.data.partition import make_partition
from pfl.engine.metrics import json_ready
from pfl.run.trials import Trial
from pfl.run.validation import validated
from tests.command import pfl
from tests.conftest import make_trial
from tests.pipeline.running import json_lines

PFL = (sys.executable, "-m", "pfl", "run-trials")


@pytest.fixture(scope="module")
def trial() -> Trial:
    data = load("digits")
    split = make_partition("pathological:2", data, 6)
    return make_trial(Config(rounds=60, epochs=1, eval_every=20), data, split, clients=6)


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return pfl("run-trials", *map(str, arguments))


@pytest.mark.slow
def test_trials_that_are_killed_go_on_from_their_checkpoint_to_the_same_numbers(trial, tmp_path):
    file, whole, resumed = tmp_path / "trials.jsonl", tmp_path / "whole.jsonl", tmp_path / "resumed.jsonl"
    file.write_text(json.dumps(json_ready(trial)) + "\n")
    run(file, "--rows", whole)
    command = [*PFL, file, "--rows", resumed, "--checkpoint", tmp_path / "under-way"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while not list(tmp_path.glob("under-way/*/checkpoint.pt")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not resumed.exists()
    resumed.write_text('{"key": "cut off, as a full disk leaves a line')
    assert "trials run: 1;" in run(*command[len(PFL) :]).stdout
    assert json_lines(whole)[0]["metrics"] == json.loads(resumed.read_text().splitlines()[1])["metrics"]
    assert not list((tmp_path / "under-way").iterdir())


def test_a_trial_that_fails_is_told_and_does_not_keep_the_others_from_running(trial, tmp_path):
    stale = dataclasses.replace(trial, partition_checksum="0" * 64)
    absent = dataclasses.replace(trial, dataset="nowhere/at/all", data_checksum="0" * 64)
    quick = dataclasses.replace(trial, config=validated(Config(rounds=1, epochs=1)).to_dict())
    file = tmp_path / "trials.jsonl"
    file.write_text("".join(json.dumps(json_ready(pending)) + "\n" for pending in (stale, absent, quick)))
    done = run(file)
    assert "setting/fedavg, seeds (0,): partition: has checksum" in done.stderr
    assert "dataset: nowhere/at/all is not accepted" in done.stderr
    assert "Traceback" not in done.stderr  # these lines say how to mend it
    assert "trials run: 1;" in done.stdout
    assert "trials failed: 2; run the same command to retry them" in done.stderr
    assert done.returncode == 1
    assert [row["key"] for row in json_lines(tmp_path / "trials.rows.jsonl")] == quick.keys


def test_a_trial_that_fails_does_not_fail_those_that_share_its_training(tmp_path):
    data = load("digits")
    split = make_partition("pathological:2", data, 6)
    configs = [
        Config("fedbabu", hyperparameters={"finetune_epochs": epochs}, rounds=1, epochs=1)
        for epochs in (1, 2, 3)
    ]
    first, stale, last = (make_trial(config, data, split, clients=6) for config in configs)
    stale = dataclasses.replace(stale, behaviour="fedbabu-0")
    file = tmp_path / "trials.jsonl"
    file.write_text("".join(json.dumps(json_ready(pending)) + "\n" for pending in (first, stale, last)))
    done = run(file)
    assert "trials run: 2;" in done.stdout
    assert done.stderr.count("the trial was made for fedbabu-0") == 1
    rows = json_lines(tmp_path / "trials.rows.jsonl")
    assert [row["key"] for row in rows] == first.keys + last.keys


def test_an_error_in_a_trial_is_told_with_its_traceback(trial, tmp_path, monkeypatch):
    monkeypatch.setattr("pfl.engine.server.Server.average", lambda _: 1 / 0)
    file = tmp_path / "trials.jsonl"
    file.write_text(json.dumps(json_ready(trial)))
    done = run(file)
    assert done.returncode == 1
    trace, _, line = done.stderr.rpartition(
        "pfl: setting/fedavg, seeds (0,): ZeroDivisionError: division by zero"
    )
    assert "fedavg.py" in trace
    assert line.strip() == "pfl: trials failed: 1; run the same command to retry them"
