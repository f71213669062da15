"""What a table takes: its size, and the time by what was measured on this machine."""

from __future__ import annotations

import json

import pytest

from pfl.core.config import Config
from pfl.core.text import duration
from pfl.data.dataset import load
from pfl.data.partition import make_partition
from pfl.methods import METHODS
from pipeline.spec.cells import cells
from pipeline.spec.table import load_table
from pipeline.store.ledger import Ledger
from pipeline.sweep.calibration import Calibration, Sizes, Speed
from pipeline.sweep.estimate import Amount, Estimate, Extent, sizes_of
from tests.pipeline.conftest import scheduler_of


@pytest.fixture(autouse=True)
def cache(project, monkeypatch):
    monkeypatch.setenv("PFL_CACHE", str(project / "cache"))


def small():
    return cells("small", load_table("small"))


def measured() -> Calibration:
    calibration = Calibration()
    calibration.measure(small(), ["cpu"], lambda _: None)
    return Calibration()


def estimate(ledger: Ledger, calibration: Calibration, slots: int = 1) -> Estimate:
    return Estimate.of(scheduler_of(ledger), calibration, slots, "cpu")


def test_a_simulation_takes_its_rounds_and_its_evaluations():
    config = Config(participation=0.1, rounds=20, eval_every=6)
    sizes = Sizes(clients=100, train=30_000, test=20_000)
    # 10 participants of 300 samples in each of 20 rounds, and four evaluations: 6, 12, 18 and the last.
    assert Speed(0.001, 0, 0, 0).seconds(config, sizes) == pytest.approx(20 * 10 * 300 * 0.001)
    assert Speed(0, 2, 0, 0).seconds(config, sizes) == 20 * 10 * 2
    assert Speed(0, 0, 3, 0).seconds(config, sizes) == 20 * 3
    assert Speed(0, 0, 0, 0.0001).seconds(config, sizes) == pytest.approx(4 * 20_000 * 0.0001)


def test_nothing_is_known_before_a_calibration():
    extent = Extent.of("small", load_table("small"), Calibration())
    assert (extent.cells, extent.trials, extent.client_epochs) == (4, 56, Amount(224, partial=False))
    assert extent.core_hours.text == "?"


def test_a_calibration_is_kept_for_the_next_call():
    calibration = measured()
    for cell in small():
        speed = calibration.speed(cell, "cpu")
        assert speed is not None
        assert speed.sample > 0
        assert speed.test > 0
    assert Extent.of("small", load_table("small"), calibration).core_hours.value > 0
    told: list[str] = []
    calibration.measure(small(), ["cpu"], told.append)
    assert told == []


@pytest.mark.parametrize("content", ["{", "[]", '{"here": 5}', '{"here": {"speeds": {"a": {"sample": 1}}}}'])
def test_a_calibration_that_is_damaged_is_as_good_as_none(project, content):
    (project / "cache").mkdir()
    (project / "cache/calibration.json").write_text(content)
    assert not Calibration().has("cpu")
    assert measured().has("cpu")


def test_the_sizes_of_a_partition_are_found_without_its_data():
    dirichlet = small()[0]
    sizes = measured().sizes(dirichlet)
    partition = make_partition(dirichlet.partition, load("digits", progress=False), 5)
    assert sizes is not None
    assert sizes.clients == 5
    assert sizes.train == pytest.approx(partition.sizes.sum(), rel=0.01)


def test_a_method_that_takes_steps_is_measured_by_the_client(edit):
    edit("- fedavg\n", "- {method: plga, params: {steps: 3}}\n")
    speed = measured().speed(small()[0], "cpu")
    assert speed is not None
    assert (speed.sample, speed.client > 0) == (0, True)


def test_a_full_batch_is_measured_on_a_batch(edit):
    edit("batch_size: 16", "batch_size: 1000000000")
    speed = measured().speed(small()[0], "cpu")
    assert speed is not None
    assert speed.sample > 0


def test_data_of_the_user_s_own_are_known_from_a_manifest_alone(edit):
    edit("dataset: digits", "dataset: photos.zip")
    assert Extent.of("small", load_table("small"), measured()).core_hours.text == "?"
    calibration = Calibration({"photos.zip": {"shape": [3, 8, 8], "classes": 4}})
    calibration.measure(small(), ["cpu"], lambda _: None)
    assert calibration.speed(small()[0], "cpu") is not None


def test_what_is_known_in_part_is_a_lower_bound():
    assert Amount.of([3, 3], [2.0, None]).text == "> 6"


def test_a_sweep_is_estimated_by_the_calibration(ledger):
    calibration = measured()
    speeds = [calibration.speed(cell, "cpu") for cell in small()]
    sizes = Sizes(5, 40, 40)
    # A search takes six trials of one round and two of two; before and after it come two seeds.
    seconds = [v.seconds(c.config, sizes) for c, v in zip(small(), speeds, strict=True) if v]
    estimated = estimate(ledger, calibration)
    assert estimated.hours == pytest.approx(13 * sum(seconds) / 3600)
    assert not estimated.partial
    assert ", 1 side by side, about " in estimated.text("small", slots=1)


def test_what_cannot_be_measured_makes_a_sweep_s_estimate_a_lower_bound(ledger, monkeypatch):
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(METHODS["fedprox"], "loss", broken)
    estimated = estimate(ledger, measured())
    assert estimated.partial
    assert ", 1 side by side, more than " in estimated.text("small", slots=1)


def test_no_trial_ends_sooner_for_idle_places(ledger, edit):
    edit("search: {trials: 4}\n", "")
    edit("- {method: fedprox, params: {mu: 0.1}}\n", "")
    estimated = estimate(ledger, measured(), slots=100)
    assert estimated.longest_hours == pytest.approx(estimated.hours / estimated.trials)
    assert duration(3600 * estimated.longest_hours) in estimated.text("small", slots=100)


def test_the_first_line_names_where_the_sweep_runs(ledger, monkeypatch):
    estimated = estimate(ledger, measured())
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert " runs to compute on this machine, 2 side by side" in estimated.text("small", slots=2)
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    assert " on the Ray cluster at head:6379; on this machine alone, 2" in estimated.text("small", slots=2)


def test_rows_of_a_method_that_differ_in_steps_are_measured_each(edit):
    edit(
        "- fedavg\n- {method: fedprox, params: {mu: 0.1}}\n",
        """\
- {method: plga, as: two, params: {steps: 2}}
- {method: plga, as: six, params: {steps: 6}}
- {method: plga, as: same, params: {steps: 6, temperature: 0.5}}
""",
    )
    two, six, same = (measured().speed(cell, "cpu") for cell in small()[:3])
    assert two and six and same
    assert two.client != six.client
    assert six == same


def test_sizes_are_those_of_the_partition_once_it_is_made(project):
    dirichlet = small()[0]
    (project / "data/partitions/small").mkdir(parents=True)
    made = {"clients": 5, "train": 1234, "test": 56}
    (project / "data/partitions/small/dir.json").write_text(json.dumps(made))
    assert sizes_of(dirichlet, Calibration()) == Sizes(5, 1234, 56)
    assert sizes_of(small()[2], Calibration()) is None


def test_models_that_are_kept_take_their_disk_space(ledger, edit):
    before = estimate(ledger, Calibration())
    edit("search:", "keep: models\nsearch:")
    after = estimate(ledger, Calibration())
    model = 5 * 4 * (4_800 + 330)  # of five clients, in float32
    # Of each of four cells, the pinned and the selected configuration with two seeds.
    assert after.disk_bytes - before.disk_bytes == 4 * 2 * 2 * model


def test_what_was_measured_on_another_machine_is_not_taken(monkeypatch, project):
    measured()
    monkeypatch.setattr("platform.node", lambda: "elsewhere")
    assert Calibration().speed(small()[0], "cpu") is None
    assert len(json.loads((project / "cache/calibration.json").read_text())) == 1
