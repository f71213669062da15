"""`pfl run-trials`: each trial of a file once, whatever interrupts it or fails."""

from __future__ import annotations

import dataclasses
import errno
import json
import re
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest
import torch

from pfl.core.config import Config
from pfl.data.dataset import Dataset, load
from pfl.data.partition import Partition, make_partition
from pfl.engine import checkpoint
from pfl.engine.metrics import json_ready
from pfl.run.trials import Trial, checked, with_checksum
from tests.command import pfl, refused
from tests.conftest import make_trial, run_trial


def data_of_trials() -> tuple[Dataset, Partition]:
    """The digits in six clients."""
    data = load("digits")
    return data, make_partition("pathological:2", data, 6)


def one_trial(seeds: tuple[int, ...] = (0,), **options: Any) -> Trial:
    """A trial of one round, unless ``options`` say otherwise."""
    return make_trial(Config(**{"rounds": 1, "epochs": 1, **options}), *data_of_trials(), seeds, clients=6)


def keys_of(rows: Path) -> list[str]:
    """The keys of a file's records."""
    return [json.loads(line)["key"] for line in rows.read_text().splitlines()]


def trials_run(file: Path, rows: Path) -> int:
    """How many trials of a file `pfl run-trials` has run for these records."""
    done = pfl("run-trials", str(file), "--rows", str(rows))
    return int(re.search(r"trials run: (\d+);", done.stdout)[1])


def write_trials(file: Path, *trials: Trial) -> Path:
    file.write_text("".join(json.dumps(json_ready(trial)) + "\n" for trial in trials))
    return file


def test_trials_of_a_file_are_run_once_and_give_rows_of_their_keys(tmp_path):
    trial = one_trial((0, 1))
    file, rows = write_trials(tmp_path / "trials.jsonl", trial), tmp_path / "rows.jsonl"
    first, second = (pfl("run-trials", str(file), "--rows", str(rows)) for _ in range(2))
    assert "trials run: 1;" in first.stdout, first.stderr
    assert "trials run: 0;" in second.stdout
    assert keys_of(rows) == trial.keys
    rows.write_bytes(rows.read_bytes().replace(b'"seed":1', b'"seed":2'))
    third = pfl("run-trials", str(file), "--rows", str(rows))
    assert "trials run: 1;" in third.stdout
    assert third.stderr.startswith(f"pfl: {rows}:2 is ignored: its checksum is not that of its content\n")


def test_one_simulation_in_two_trials_is_run_once(tmp_path):
    trial = one_trial()
    file = write_trials(tmp_path / "trials.jsonl", trial, dataclasses.replace(trial, table="another"))
    assert "trials run: 1;" in pfl("run-trials", str(file)).stdout


def test_a_trial_whose_record_lacks_a_moment_runs_again_with_all_moments_that_are_read(tmp_path):
    rows = tmp_path / "rows.jsonl"
    received, local = (
        dataclasses.replace(one_trial(rounds=2, eval_every=1), moments=(moment,), table=table)
        for moment, table in (("post_aggregation", "a"), ("post_local", "b"))
    )
    file = write_trials(tmp_path / "trials.jsonl", received)
    assert trials_run(file, rows) == 1
    write_trials(file, received, local)
    assert trials_run(file, rows) == 1
    lines = rows.read_text().splitlines()
    first, second = map(json.loads, lines)
    assert first["key"] == second["key"]
    assert "post_local" not in first["metrics"]["rounds"][0]
    assert {"post_aggregation", "post_local"} <= second["metrics"]["rounds"][0].keys()
    assert trials_run(file, rows) == 0
    rows.write_text(lines[0] + "\n")
    write_trials(file, dataclasses.replace(received, moments=()))  # () means all
    assert trials_run(file, rows) == 1


def test_a_paused_trial_whose_record_lacks_a_moment_runs_again(tmp_path):
    paused = dataclasses.replace(one_trial(rounds=2, eval_every=1), until=1, moments=("post_aggregation",))
    file, rows = write_trials(tmp_path / "trials.jsonl", paused), tmp_path / "rows.jsonl"
    assert trials_run(file, rows) == 1
    write_trials(file, dataclasses.replace(paused, moments=("post_aggregation", "post_local")))
    assert trials_run(file, rows) == 1
    assert trials_run(file, rows) == 0


def test_a_line_with_a_valid_checksum_that_is_no_record_is_ignored_in_one_line(tmp_path):
    file, rows = write_trials(tmp_path / "trials.jsonl", one_trial()), tmp_path / "rows.jsonl"
    rows.write_bytes(with_checksum(b'{"a":1}') + b"\n")
    done = pfl("run-trials", str(file), "--rows", str(rows))
    assert "trials run: 1;" in done.stdout
    assert done.stderr.startswith(f"pfl: {rows}:1 is ignored: it is not a record\n")


def test_a_record_does_not_continue_a_line_that_a_full_disk_has_cut_off(tmp_path):
    trial = one_trial()
    file, rows = write_trials(tmp_path / "trials.jsonl", trial), tmp_path / "rows.jsonl"
    rows.write_text('{"key": "cut o')
    assert trials_run(file, rows) == 1
    assert json.loads(rows.read_text().splitlines()[1])["key"] == trial.keys[0]


def adapted(rounds: int) -> list[Trial]:
    """Three trials that differ in the adaptation alone."""
    epochs = [{"finetune_epochs": epochs} for epochs in (1, 2, 3)]
    return [one_trial(method="fedbabu", hyperparameters=own, rounds=rounds) for own in epochs]


def test_trials_that_differ_in_the_adaptation_alone_are_trained_once(tmp_path):
    trials = adapted(rounds=2)
    trials[2] = dataclasses.replace(trials[2], moments=("adapted",))  # its record has fewer evaluations
    file, rows = write_trials(tmp_path / "trials.jsonl", *trials), tmp_path / "rows.jsonl"
    assert trials_run(file, rows) == 3
    records = [json.loads(checked(line)) for line in rows.read_bytes().splitlines()]
    alone = [run_trial(trial, *data_of_trials())[0] for trial in trials]
    assert [record["key"] for record in records] == [record.key for record in alone]
    assert [record["metrics"] for record in records] == [record.to_json()["metrics"] for record in alone]
    first, second, third = (record["measured"]["train_seconds"] for record in records)
    assert first == second != third  # each its share of one training


def test_a_trial_that_fails_does_not_fail_those_that_share_its_training(tmp_path):
    first, stale, last = adapted(rounds=1)
    stale = dataclasses.replace(stale, behaviour="fedbabu-0")
    file = write_trials(tmp_path / "trials.jsonl", first, stale, last)
    done = pfl("run-trials", str(file))
    assert "trials run: 2;" in done.stdout
    assert done.stderr.count("the trial was made for fedbabu-0") == 1
    assert keys_of(tmp_path / "trials.rows.jsonl") == first.keys + last.keys


def test_a_trial_that_fails_is_told_and_does_not_keep_the_others_from_running(tmp_path):
    trial = one_trial()
    stale = dataclasses.replace(trial, partition_checksum="0" * 64)
    absent = dataclasses.replace(trial, dataset="nowhere/at/all", data_checksum="0" * 64)
    file = write_trials(tmp_path / "trials.jsonl", stale, absent, trial)
    done = pfl("run-trials", str(file))
    assert "setting/fedavg, seeds (0,): partition: has checksum" in done.stderr
    assert "dataset: nowhere/at/all is not accepted" in done.stderr
    assert "Traceback" not in done.stderr  # these lines say how to mend it
    assert "trials run: 1;" in done.stdout
    assert "trials failed: 2; run the same command to retry them" in done.stderr
    assert done.returncode == 1
    assert keys_of(tmp_path / "trials.rows.jsonl") == trial.keys


def test_an_error_in_a_trial_is_told_with_its_traceback(tmp_path, monkeypatch):
    monkeypatch.setattr("pfl.engine.server.Server.average", lambda _: 1 / 0)
    done = pfl("run-trials", str(write_trials(tmp_path / "trials.jsonl", one_trial())))
    assert done.returncode == 1
    trace, _, line = done.stderr.rpartition(
        "pfl: setting/fedavg, seeds (0,): ZeroDivisionError: division by zero"
    )
    assert "fedavg.py" in trace
    assert line.strip() == "pfl: trials failed: 1; run the same command to retry them"


def test_the_trials_after_one_that_diverges_before_a_checkpoint_are_run(tmp_path):
    trials = (one_trial(rounds=2, lr=lr) for lr in (1e18, 0.05))
    file = write_trials(tmp_path / "trials.jsonl", *trials)
    done = pfl("run-trials", str(file), "--checkpoint", str(tmp_path / "checkpoints"))
    assert "trials run: 2;" in done.stdout, done.stderr


def test_a_trial_is_paused_when_the_time_is_up_and_continued_by_the_same_command(tmp_path, monkeypatch):
    trials = [one_trial(rounds=3, lr=lr) for lr in (0.05, 0.1)]
    file = write_trials(tmp_path / "trials.jsonl", *trials)
    rows, models, checkpoints = (tmp_path / name for name in ("rows.jsonl", "models", "checkpoints"))
    command = ("run-trials", str(file), "--rows", str(rows), "--checkpoint", str(checkpoints))
    command = (*command, "--save", str(models), "--minutes", "1")
    with monkeypatch.context() as patch:
        clock = chain([0, 0, 30], repeat(61))  # the second round ends after a minute
        patch.setattr("pfl.cli.trials.monotonic", lambda: next(clock))
        done = pfl(*command)
    assert (done.returncode, rows.exists(), list(models.iterdir())) == (0, False, []), done.stderr
    assert "trials run: 0;" in done.stdout
    assert "trials pending: 2; run the same command to continue\n" in done.stdout
    (state,) = checkpoints.glob("*/checkpoint.pt")
    assert torch.load(state)["runs"][0]["round"] == 2
    assert "trials run: 2;" in pfl(*command).stdout
    assert not list(checkpoints.iterdir())
    records = [json.loads(checked(line)) for line in rows.read_bytes().splitlines()]
    alone = [run_trial(trial, *data_of_trials())[0].to_json() for trial in trials]
    assert [record["metrics"] for record in records] == [record["metrics"] for record in alone]


def test_a_limit_of_time_without_checkpoints_is_refused(tmp_path):
    file = write_trials(tmp_path / "trials.jsonl", one_trial())
    line = refused("run-trials", str(file), "--minutes", "1")
    assert line == "pfl: error: --minutes: given without --checkpoint DIR; name its folder"


def test_trials_whose_models_are_saved_go_on_after_an_interruption(tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    trial = one_trial()
    file = write_trials(tmp_path / "trials.jsonl", trial)
    models = tmp_path / "models"
    command = ("run-trials", str(file), "--save", str(models))
    with monkeypatch.context() as patch:
        patch.setattr("pfl.cli.trials.append_lines", interrupted)  # the models are saved, and no record is
        assert pfl(*command).returncode == 130
    assert "trials run: 1;" in pfl(*command).stdout
    assert [path.stem for path in models.iterdir()] == trial.keys


@pytest.mark.parametrize("seed", [0, 1])  # the models of all seeds are written first, then those of each
def test_models_wait_until_a_full_disk_has_space(seed, tmp_path, fill_disk, monkeypatch, caplog):
    trial = one_trial((0, 1))
    file, models = write_trials(tmp_path / "trials.jsonl", trial), tmp_path / "models"
    files = [models / f"{key}.pt" for key in trial.keys]
    models.mkdir()
    fill_disk(files[seed])
    monkeypatch.setattr("pfl.core.files.SECONDS_BETWEEN_TRIES", 0)
    done = pfl("run-trials", str(file), "--save", str(models))
    assert f"{files[seed]}: no space left on the disk; waiting for space" in caplog.text
    assert "trials run: 1;" in done.stdout
    assert [list(torch.load(path)["seeds"]) for path in files] == [[0], [1]]


@pytest.mark.parametrize("seed", [0, 1])
def test_records_of_models_that_cannot_be_written_are_kept_and_the_same_command_retries(
    seed, tmp_path, monkeypatch, caplog
):
    trial = one_trial((0, 1))
    file, rows = write_trials(tmp_path / "trials.jsonl", trial), tmp_path / "rows.jsonl"
    models, dump = tmp_path / "models", checkpoint._dump

    def refuse(content: Any, opened: Any) -> None:
        if trial.keys[seed] in str(opened.name):
            raise OSError(errno.EFBIG, "File too large")
        dump(content, opened)

    command = ("run-trials", str(file), "--rows", str(rows), "--save", str(models))
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "_dump", refuse)
        done = pfl(*command)
    assert f"{trial.keys[seed]}.pt is not accepted; expected a file that can be written (" in caplog.text
    assert done.stderr.endswith("pfl: trials failed: 1; run the same command to retry them\n")
    assert (done.returncode, keys_of(rows)) == (1, trial.keys)
    assert "trials run: 1;" in pfl(*command).stdout
    assert {path.stem for path in models.iterdir()} == set(trial.keys)
    assert "trials run: 0;" in pfl(*command).stdout
    assert keys_of(rows) == trial.keys


def test_records_do_not_go_into_the_file_of_the_trials_or_of_something_else(tmp_path):
    file = write_trials(tmp_path / "trials.jsonl", one_trial())
    other = tmp_path / "students.csv"
    other.write_text("age,ill\n30,0\n")
    for rows, accepted in (
        (file, "a file different from that of the trials"),
        (other, "a new file, or one of records"),
    ):
        content = rows.read_bytes()
        line = refused("run-trials", str(file), "--rows", str(rows))
        assert line == f"pfl: error: rows: {rows} is not accepted; expected {accepted}"
        assert rows.read_bytes() == content


@pytest.mark.parametrize(
    "content",
    [None, b"no JSON", b"PK\x03\x04\xff\xfe", b"[]", b"{}", b'{"moments": [], "seeds": [0]}', b"[" * 10**5],
)
def test_a_file_that_holds_no_trials_is_refused_in_one_line(content, tmp_path):
    file = tmp_path / "trials.jsonl"
    if content is not None:
        file.write_bytes(content)
    expected = "trials.jsonl is not accepted; expected a file that `pfl trials` wrote"
    assert expected in refused("run-trials", str(file))


@pytest.mark.parametrize("folder", [".", "/"])
def test_a_folder_in_place_of_the_trials_is_refused_in_one_line(folder):
    line = f"pfl: error: trials: {folder} is not accepted; expected a file that `pfl trials` wrote"
    assert refused("run-trials", folder).startswith(line)
