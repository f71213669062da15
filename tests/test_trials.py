"""Trials: the key of a result, and the rows that a trial gives."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from pfl.core.config import Config, Execution
from pfl.core.digests import Edited
from pfl.core.errors import InvalidInput
from pfl.data.cache import ordered_checksum
from pfl.engine import checkpoint
from pfl.engine.metrics import json_ready
from pfl.models.mobilenet_v2 import weights_file
from pfl.run import sources
from pfl.run.fingerprint import Components
from pfl.run.saved import load_models
from pfl.run.sources import edits, git, knows, running_code
from pfl.run.trials import Trial, folder_of, run_trials, trial_key
from pfl.run.validation import validated
from tests import repository
from tests.conftest import make_trial, run_trial, simulate

CONFIG = validated(
    Config(method="fedprox", model="lenet5_bn", rounds=2, epochs=1, batch_size=8, eval_every=1)
)


@pytest.fixture
def trial(dataset, partition) -> Trial:
    return make_trial(CONFIG, dataset, partition, (0, 1))


@pytest.fixture
def read_record():
    """Reads a record as the pipeline does; skips where its libraries are not installed."""
    pytest.importorskip("msgspec")
    from pipeline.store.records import read_record

    return read_record


def test_a_trial_gives_one_record_per_seed_that_json_can_hold(trial, dataset, partition, read_record):
    records = run_trial(trial, dataset, partition)
    assert [record.seed for record in records] == [0, 1]
    assert [record.key for record in records] == trial.keys
    for record in records:
        assert read_record(record.to_line()) == record


def test_metrics_are_in_the_record_and_in_the_key(trial, dataset, partition, read_record):
    with_metrics = make_trial(dataclasses.replace(CONFIG, metrics=("auroc", "recall")), dataset, partition)
    (record,) = run_trial(with_metrics, dataset, partition)
    read = read_record(record.to_line())
    assert read.metrics.to_json() == record.metrics.to_json()  # where NaN is null
    assert read.expected_key() == record.key != trial.keys[0]
    assert set(read.metrics.client_metrics) == {"auroc", "recall"}


def test_trials_in_one_stack_give_the_rows_of_each_alone(trial, dataset, partition):
    exact = dataclasses.replace(CONFIG, dtype="float64")
    configs = (exact, dataclasses.replace(exact, lr=CONFIG.lr / 3))
    trials = [dataclasses.replace(trial, config=config.to_dict()) for config in configs]
    execution = Execution(backend="stacked")
    together = run_trials(trials, dataset, partition, execution)
    for variant, rows in zip(trials, together, strict=True):
        alone = run_trial(variant, dataset, partition, execution)
        assert [row.key for row in rows] == [row.key for row in alone] == variant.keys
        for ours, theirs in zip(rows, alone, strict=True):
            loss, expected = (row.metrics.rounds[-1].train_loss for row in (ours, theirs))
            assert loss == pytest.approx(expected, abs=1e-9)


def test_a_trial_that_pauses_has_another_key_and_the_same_folder(trial, dataset, partition, read_record):
    paused = dataclasses.replace(trial, until=1)
    assert set(paused.keys).isdisjoint(trial.keys)
    assert folder_of(paused) == folder_of(trial)
    record = run_trial(paused, dataset, partition)[0]
    assert [entry.round for entry in record.metrics.rounds] == [1]
    assert read_record(record.to_line()) == record
    assert record.expected_key() == record.key


def test_a_configuration_with_metrics_survives_its_dictionary():
    config = dataclasses.replace(CONFIG, metrics=("auroc", "recall"))
    assert Config.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_a_trial_survives_a_journey_as_json(trial):
    for sent in (trial, dataclasses.replace(trial, until=1)):
        received = Trial.from_dict(json.loads(json.dumps(json_ready(sent))))
        assert (received, received.keys) == (sent, sent.keys)


def test_a_trial_older_than_a_hyperparameter_has_its_default_and_the_same_key(trial):
    older = json.loads(json.dumps(json_ready(trial)))
    del older["config"]["hyperparameters"]["mu"]
    assert Trial.from_dict(older) == trial
    assert Trial.from_dict(older).keys == trial.keys


def test_a_trial_with_a_partition_for_each_seed_gives_the_rows_of_each_alone(trial, dataset, partition):
    other = dataclasses.replace(partition, train=partition.train[::-1], test=partition.test[::-1])
    checksums = {0: partition.checksum, 1: other.checksum}
    both = dataclasses.replace(trial, partition_checksum=checksums)
    both = Trial.from_dict(json.loads(json.dumps(json_ready(both))))
    rows = run_trial(both, dataset, {0: partition, 1: other})
    for row, own in zip(rows, (partition, other), strict=True):
        alone = make_trial(CONFIG, dataset, own, (row.seed,))
        (expected,) = run_trial(alone, dataset, own)
        assert (row.key, row.partition_checksum) == (expected.key, expected.partition_checksum)
        assert row.metrics == expected.metrics
    with pytest.raises(ValueError, match="partition"):
        run_trial(both, dataset, {0: partition, 1: partition})


def test_other_data_than_the_trials_is_refused(trial, dataset, partition):
    stale = dataclasses.replace(trial, partition_checksum="0" * 64)
    with pytest.raises(ValueError, match="partition"):
        run_trial(stale, dataset, partition)


def test_defaults_written_out_and_left_out_have_one_key():
    short = validated(Config(method="fedprox"))
    long = validated(Config(method="fedprox", hyperparameters={"mu": 1}, lr=0.05))
    assert trial_key(short.to_dict(), "d", "p", 0, "b") == trial_key(long.to_dict(), "d", "p", 0, "b")


def test_a_new_option_at_its_default_makes_no_result_stale():
    config = validated(Config(method="fedprox", lr=0.1)).to_dict()
    before = {**config, "hyperparameters": {}}
    for option in ("bn_stats", "lr_schedule", "lr_step", "lr_gamma", "lr_warmup", "precision"):
        del before[option]
    for option in ("patience", "min_delta", "stop_share", "unseen", "unseen_epochs"):
        del before[option]
    assert trial_key(before, "d", "p", 0, "b") == trial_key(config, "d", "p", 0, "b")


@pytest.mark.parametrize(
    "changed",
    [
        {"config": validated(Config(method="fedprox", hyperparameters={"mu": 0.5})).to_dict()},
        {"config": validated(Config(method="fedprox", precision="bf16")).to_dict()},
        {"data_checksum": "other"},
        {"partition_checksum": "other"},
        {"seed": 1},
        {"behaviour": "other"},
    ],
)
def test_whatever_decides_a_number_is_in_the_key(changed):
    same = {"config": validated(Config(method="fedprox")).to_dict(), "data_checksum": "d"}
    same |= {"partition_checksum": "p", "seed": 0, "behaviour": "b"}
    assert trial_key(**same) != trial_key(**{**same, **changed})


def test_code_that_does_something_else_is_refused_before_it_runs(trial, dataset, partition):
    stale = dataclasses.replace(trial, behaviour="fedprox-000000000000")
    with pytest.raises(InvalidInput, match="code: has the name fedprox-"):
        run_trial(stale, dataset, partition)


def test_code_that_was_edited_while_it_ran_gives_no_record(trial, dataset, partition, monkeypatch):
    class Other(Components):
        def digest(self, component: str) -> str:
            return "other"

    def edit(*_: object) -> None:
        monkeypatch.setattr("pfl.run.fingerprint.Components", Other)

    with pytest.raises(Edited, match=r"source changed during the run: .*; run it again"):
        run_trial(trial, dataset, partition, Execution(device="cpu"), edit)


def test_a_row_names_the_backend_that_ran(trial, dataset, partition):
    row, _ = run_trial(trial, dataset, partition, Execution(device="cpu"))
    assert row.success.hardware.backend == "loop"


def commit_empty(folder: Path, *names: str) -> None:
    """Make a repository of empty files."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    repository.commit(folder)


@pytest.fixture
def checkout(tmp_path, monkeypatch) -> Iterator[Path]:
    """A checkout of the simulator with one commit, as the code that is running."""
    code = ("pfl/__init__.py", "pfl/cli/run.py", "pfl/core/digests.py", "pfl/testing/battery.py")
    commit_empty(tmp_path, *code, "requirements.lock")
    monkeypatch.setattr(sources, "ROOT", tmp_path / "pfl")
    running_code.cache_clear()
    yield tmp_path
    running_code.cache_clear()


@pytest.mark.parametrize(
    ("edited", "dirty"),
    [
        (None, False),
        ("pfl/__init__.py", True),
        ("pfl/new.py", True),
        ("requirements.lock", True),
        ("pfl/cli/run.py", False),
        ("pfl/core/digests.py", False),
        ("pfl/testing/battery.py", False),
        ("pfl/behaviours.json", False),
        ("README.md", False),
    ],
)
def test_a_row_names_the_commit_and_whether_what_decides_numbers_is_in_none(edited, dirty, checkout):
    if edited:
        (checkout / edited).write_text("# edited")
    provenance = running_code()
    assert (provenance.commit, provenance.dirty) == (git(checkout, "rev-parse", "HEAD"), dirty)
    assert provenance.sources == sources.digest_of(sources._files())


def test_a_mere_copy_of_the_code_is_of_an_unknown_commit(checkout):
    shutil.rmtree(checkout / ".git")
    assert (running_code().name, running_code().dirty) == ("commit unknown, edited", True)


def test_a_checkpoint_of_other_code_is_passed_over(trial, dataset, partition, tmp_path):
    execution = Execution(checkpoint_dir=str(tmp_path / "trial"))
    config = Config.from_dict(trial.config)
    simulate(config, dataset, partition, trial.seeds, dataclasses.replace(execution, code="other"))
    resumed, fresh = run_trial(trial, dataset, partition, execution), run_trial(trial, dataset, partition)
    assert [row.metrics for row in resumed] == [row.metrics for row in fresh]


def test_the_time_of_a_resumed_trial_is_that_of_all_its_segments(trial, dataset, partition, tmp_path):
    folder = tmp_path / "trial"
    run_trial(trial, dataset, partition, Execution(checkpoint_dir=str(folder)))
    state = checkpoint.load(folder)
    assert state is not None
    checkpoint.save(folder, state | {"seconds": 2 * 1280.0})  # of both seeds, before the interruption
    rows = run_trial(trial, dataset, partition, Execution(checkpoint_dir=str(folder)))
    assert [row.measured.wall_seconds for row in rows] == [1280.0, 1280.0]


def test_pretrained_weights_that_are_at_hand_are_in_the_key(tmp_path, monkeypatch):
    config = validated(Config(model="mobilenet_v2")).to_dict()
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    scratch = trial_key(config, "d", "p", 0, "b")
    weights_file().parent.mkdir(parents=True)
    weights_file().touch()
    assert trial_key(config, "d", "p", 0, "b") != scratch


def test_the_models_of_each_seed_are_in_a_file_of_its_key(trial, dataset, partition, tmp_path):
    run_trial(trial, dataset, partition, Execution(save=str(tmp_path)))
    assert {path.stem for path in tmp_path.iterdir()} == set(trial.keys)
    for seed, key in zip(trial.seeds, trial.keys, strict=True):
        alone = dataclasses.replace(trial, seeds=(seed,))
        run_trial(alone, dataset, partition, Execution(save=str(tmp_path / "alone")))
        together, by_itself = (load_models(folder / f"{key}.pt") for folder in (tmp_path, tmp_path / "alone"))
        assert together.seed == by_itself.seed == seed
        assert all(torch.equal(tensor, by_itself.tensors[name]) for name, tensor in together.tensors.items())


def test_two_orders_of_the_same_images_have_two_keys():
    config = validated(Config()).to_dict()
    images, labels = np.arange(8, dtype=np.uint8).reshape(2, 1, 2, 2), np.array([0, 1])
    keys = {
        trial_key(config, ordered_checksum(images[order], labels[order], ("a", "b"), 2), "p", 0, "b")
        for order in ([0, 1], [1, 0])
    }
    assert len(keys) == 2


def test_what_is_not_committed_below_a_path_counts_as_an_edit_and_nothing_else(tmp_path):
    commit_empty(tmp_path, "pfl/method.py", "tables/old.yaml", "pipeline/report.py")
    (tmp_path / "pipeline/report.py").write_text("# edited\n")
    assert not edits(tmp_path, "pfl", "tables/old.yaml")
    (tmp_path / "tables/new.yaml").touch()
    assert edits(tmp_path, "tables/new.yaml")
    (tmp_path / "pfl/new.py").touch()
    assert edits(tmp_path, "pfl")


def test_git_knows_a_file_once_it_is_committed(checkout):
    (checkout / "table.yaml").touch()
    assert git(checkout, "add", "table.yaml") is not None
    assert not knows(checkout, "table.yaml")
    assert knows(checkout, "pfl/cli/run.py")


def test_outside_of_a_checkout_git_says_nothing(tmp_path):
    assert git(tmp_path, "rev-parse", "HEAD") is None
