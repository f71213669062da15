"""Checkpoints that are cut, flipped, forged or cannot be written cost time at most, never a number."""

from __future__ import annotations

import errno
import io
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pfl.core.config import CHECKPOINT, Config, Execution
from pfl.core.errors import InvalidInput
from pfl.engine import checkpoint
from pfl.engine.simulation import Result
from tests.conftest import interrupt, simulate
from tests.refusal import refusal

CONFIG = Config(
    method="pfedsim", model="lenet5_bn", participation=0.5, rounds=4, epochs=1, batch_size=8, eval_every=1
)


@pytest.fixture
def run(dataset, partition, checkpointed) -> Callable[..., Result]:
    """Runs a simulation with checkpoints in ``tmp_path``."""
    return lambda **options: simulate(CONFIG, dataset, partition, (0,), checkpointed, **options)[0]


@pytest.fixture
def interrupted(dataset, partition, checkpointed, tmp_path) -> Path:
    """The checkpoint of a simulation that was interrupted after half of its rounds."""
    interrupt(3, CONFIG, dataset, partition, (0,), checkpointed)
    return tmp_path / CHECKPOINT


@pytest.fixture(scope="module")
def whole(dataset, partition) -> Result:
    return simulate(CONFIG, dataset, partition)[0]


def flipped(content: bytes) -> bytes:
    """One bit of a tensor: torch itself would load this without a word."""
    place = len(content) // 2
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.mark.parametrize(
    "damage",
    [flipped, lambda content: content[:-100], lambda _: b"", lambda content: bytes(len(content))],
    ids=["a bit flipped", "the end cut off", "empty", "zeros"],
)
def test_a_damaged_checkpoint_is_set_aside_and_the_simulation_starts_again(
    damage, interrupted, run, whole, caplog
):
    content = damage(interrupted.read_bytes())
    interrupted.write_bytes(content)
    rounds = []
    assert run(on_round=lambda round, *_: rounds.append(round)).metrics == whole.metrics
    assert rounds == [1, 2, 3, 4]
    assert "the checkpoint is damaged, now checkpoint.damaged; starting from the beginning" in caplog.text
    assert interrupted.with_suffix(".damaged").read_bytes() == content


def test_a_flipped_byte_is_noticed_wherever_it_is(tmp_path):
    checkpoint.save(tmp_path, {"fingerprint": "abc", "round": 3, "store": {"weight": torch.arange(4.0)}})
    file = tmp_path / CHECKPOINT
    whole = file.read_bytes()
    assert checkpoint.load(tmp_path)
    for place in range(len(whole)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        assert checkpoint.load(tmp_path) is None


def test_a_checkpoint_runs_no_code(tmp_path):
    class Malicious:
        def __reduce__(self):
            return Path.touch, (tmp_path / "harm",)

    checkpoint.save(tmp_path, {"fingerprint": Malicious()})
    with pytest.raises(InvalidInput, match="UnpicklingError: Weights only load failed"):
        checkpoint.load(tmp_path)
    assert not (tmp_path / "harm").exists()


def forged(state: dict, **changes: object) -> dict:
    """A checkpoint of one seed with some of its entries replaced."""
    return state | {"runs": [state["runs"][0] | changes]}


@pytest.mark.parametrize(
    "forge",
    [
        lambda _: [1, 2, 3],
        lambda state: state | {"runs": "none"},
        lambda state: state | {"seconds": "long"},
        lambda state: forged(state, round="first"),
        lambda state: forged(state, store={}),
        lambda state: forged(
            state, store={name: (rows[..., :1], at) for name, (rows, at) in state["runs"][0]["store"].items()}
        ),
        lambda state: forged(
            state, store={name: (rows, at + 99) for name, (rows, at) in state["runs"][0]["store"].items()}
        ),
        lambda state: forged(state, positions=torch.zeros(1)),
    ],
)
def test_a_forged_checkpoint_whose_digest_is_valid_is_one_line(forge, interrupted, run, tmp_path):
    checkpoint.save(interrupted.parent, forge(checkpoint.load(interrupted.parent)))
    assert refusal(run).startswith(
        f"checkpoint: {tmp_path} is not accepted; expected a folder whose checkpoint this"
    )


@pytest.mark.parametrize(
    ("change", "lacks"),
    [
        (lambda state: {"fingerprint": state["fingerprint"]}, "rounds"),
        (lambda state: state | {"runs": [{"round": 1}]}, "positions"),
        (lambda state: forged(state, run={"history": []}), None),
        (lambda state: state | {"runs": [state["runs"][0] | state["runs"][0].pop("run")]}, "run"),
    ],
)
def test_a_checkpoint_of_an_earlier_version_is_one_line(change, lacks, interrupted, run, tmp_path):
    checkpoint.save(interrupted.parent, change(checkpoint.load(interrupted.parent)))
    line = refusal(run)
    assert line.startswith(f"checkpoint: the one in {tmp_path} was written by another version of pfl-repro, ")
    assert line.endswith(f"as it has no {lacks!r}; use an empty folder" if lacks else "; use an empty folder")


def test_a_full_disk_costs_the_checkpoint_and_nothing_else(run, whole, tmp_path, fill_disk, caplog):
    fill_disk(tmp_path / CHECKPOINT)
    assert run().metrics == whole.metrics
    assert "no checkpoint could be written (No space left on device)" in caplog.text


def test_a_disk_that_fills_up_halfway_costs_the_checkpoint_and_nothing_else(tmp_path, monkeypatch, caplog):
    class Full(io.BytesIO):
        def write(self, _):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "replacing", lambda _: Full())
    checkpoint.save(tmp_path, {"models": torch.zeros(8)})
    assert "no checkpoint could be written (No space left on device)" in caplog.text
    with pytest.raises(OSError, match="No space left on device"):
        checkpoint.write(tmp_path / "models.pt", {"models": torch.zeros(8)})


def test_a_folder_that_cannot_be_written_costs_the_checkpoint_and_nothing_else(
    dataset, partition, whole, tmp_path, caplog
):
    (tmp_path / "file").touch()
    execution = Execution(checkpoint_dir=str(tmp_path / "file/folder"))
    assert simulate(CONFIG, dataset, partition, (0,), execution)[0].metrics == whole.metrics
    assert "no checkpoint could be written (Not a directory)" in caplog.text


def test_a_checkpoint_that_fails_halfway_leaves_the_one_before(tmp_path):
    checkpoint.save(tmp_path, {"round": 1})
    with pytest.raises(TypeError, match="cannot pickle"):
        checkpoint.save(tmp_path, {"round": 2, "thread": (_ for _ in ())})
    assert checkpoint.load(tmp_path) == {"round": 1}
    assert [file.name for file in tmp_path.iterdir()] == [CHECKPOINT]
