"""The size of a table, and the time that its sweep takes, before it starts and while it runs."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Mapping

import numpy as np
import pytest

from pfl.core.config import Config
from pfl.data.partition import Partition
from pfl.engine.metrics import Measured
from pfl.methods import METHODS
from pfl.run.trials import Record, Trial
from pipeline.spec.table import Resources, load_table
from pipeline.store.ledger import Ledger
from pipeline.sweep.check import check_tables
from pipeline.sweep.dry_run import DryRun, Speed
from pipeline.sweep.estimate import Expected, Extent, Running, TimeLeft, Work, dry_runs, first_line
from tests.pipeline.conftest import fake_run, scheduler_of

# ---- before a sweep ------------------------------------------------------------------------------------


def test_the_list_the_check_and_the_sweep_count_the_same_runs(ledger):
    assert Extent.of("small", load_table("small")) == Extent(4, 64, 208, searched=True)
    assert check_tables() == ["small: 4 cells, about 64 runs"]
    assert line(ledger).startswith("small: about 64 runs; on this machine, 2 at a time, about ")


def test_client_epochs_are_not_known_if_the_data_decide_how_many_clients_there_are(edit):
    edit("clients: 5\n", "")
    assert Extent.of("small", load_table("small")).client_epochs is None


def test_a_simulation_takes_its_rounds_and_its_evaluations():
    config = Config(participation=0.1, rounds=20, eval_every=6)
    train, test = np.arange(30_000).reshape(100, 300), np.arange(20_000).reshape(100, 200)
    divided = Partition("made-up", tuple(train), tuple(test), data_checksum="")
    # 10 participants of 300 samples in each of 20 rounds, and four evaluations: 6, 12, 18 and the last.
    assert Speed(0.001, 0, 0, 0).seconds(config, divided) == pytest.approx(20 * 10 * 300 * 0.001)
    assert Speed(0, 2, 0, 0).seconds(config, divided) == 20 * 10 * 2
    assert Speed(0, 0, 3, 0).seconds(config, divided) == 20 * 3
    assert Speed(0, 0, 0, 0.0001).seconds(config, divided) == pytest.approx(4 * 20_000 * 0.0001)


@pytest.mark.parametrize("batch_size", [4, 10**9])
def test_a_dry_run_measures_a_method_on_few_samples_whatever_the_batch(batch_size):
    dry = DryRun(Config(batch_size=batch_size), (1, 8, 8), 10)
    speed = dry.speed(cold=False)
    assert speed.sample > 0 and speed.test > 0 and speed.client == 0
    assert dry.run.server.sizes.sum() <= 32


def test_a_method_that_takes_steps_is_measured_by_the_client():
    config = Config(method="plga", hyperparameters={"steps": 3}, batch_size=4)
    speed = DryRun(config, (1, 8, 8), 10).speed(cold=False)
    assert (speed.sample, speed.client > 0) == (0, True)


def test_each_method_and_network_runs_dry_once(ledger, monkeypatch):
    methods = []
    speed = DryRun.speed
    monkeypatch.setattr(
        DryRun, "speed", lambda dry, cold: methods.append(type(dry.run.method)) or speed(dry, cold)
    )
    expected = dry_runs(scheduler_of(ledger), "cpu")
    assert methods == [METHODS["fedavg"], METHODS["fedprox"]]
    assert expected["dir/fedavg"] == expected["two/fedavg"]
    assert expected["dir/fedavg"].seconds > 0
    assert expected["dir/fedavg"].models == 5 * 4 * (4_800 + 330)  # of five clients, in float32


def test_what_cannot_run_dry_takes_as_long_as_the_others(ledger, monkeypatch):
    tried = []

    def broken(*_: object) -> None:
        tried.append(True)
        raise ZeroDivisionError

    monkeypatch.setattr(METHODS["fedprox"], "loss", broken)
    scheduler = scheduler_of(ledger)
    expected = dry_runs(scheduler, "cpu")
    assert list(expected) == ["dir/fedavg", "two/fedavg"]
    assert len(tried) == 1
    assert len(set(TimeLeft(scheduler, expected)._costs())) == 1


def test_no_trial_ends_sooner_for_idle_slots():
    work = Work(runs=4, pending=400, chain=100)
    assert work.on(1) == 400
    assert 200 < work.on(2) < 250
    assert 100 < work.on(100) < 104


def line(ledger: Ledger, seconds: float = 100.0, cpus: int = 1) -> str:
    scheduler = scheduler_of(ledger)
    scheduler.resources = Resources(cpus=cpus)
    expected = {cell.cell.id: Expected("", seconds, models=10**6) for cell in scheduler.cells}
    return first_line("small", TimeLeft(scheduler, expected), 2, "cpu", "do less")


def test_the_first_line_says_how_long_the_sweep_takes_with_its_start(ledger, edit):
    edit("search: {trials: 4}\n", "")
    # Eight runs on two slots, and 20 s until they begin.
    assert "small: 8 runs; on this machine, 2 at a time, about 7 min 25 s (0.22 core-hours)" in line(ledger)
    assert "about 7 min 25 s (0.89 core-hours)" in line(ledger, cpus=4)
    assert "(4,444 core-hours)" in line(ledger, seconds=2_000_000)
    assert "To run a part" not in line(ledger)
    assert "To run a part of it: do less. Finished runs are not repeated." in line(ledger, seconds=10_000)


def test_the_first_line_counts_what_the_ledger_has(ledger, edit):
    edit("search: {trials: 4}\n", "")
    scheduler = scheduler_of(ledger)
    scheduler.record(trial := scheduler.next(), fake_run(trial))
    assert "small: 8 runs, 1 of them from the ledger; on this machine, 2 at a time, about 6" in line(ledger)


def test_the_first_line_names_the_cluster_where_the_sweep_runs(ledger, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    assert "; on the Ray cluster at head:6379; on this machine alone, 2 at a time" in line(ledger)


def test_models_that_are_kept_take_their_disk_space(ledger, edit):
    edit("search: {trials: 4}\n", "")
    assert "4 MB of disk" in line(ledger)  # eight records, and a checkpoint per slot
    edit("seeds:", "keep: models\nseeds:")
    assert "12 MB of disk" in line(ledger)


# ---- during a sweep ------------------------------------------------------------------------------------


class Machine:
    """A sweep of the project's table on a made-up machine.

    Args:
        seconds: of a whole simulation of each method.
        overhead: of a run beside its simulation.
    """

    def __init__(self, ledger: Ledger, seconds: Mapping[str, float], overhead: float, slots: int):
        self.scheduler = scheduler_of(ledger)
        self._seconds, self._overhead, self._slots = seconds, overhead, slots
        self._reached: dict[str, int] = {}

    def _first_round(self, trial: Trial) -> int:
        return self._reached.get(f"{trial.cell} {trial.config} {trial.seeds}", 0)

    def _run(self, trial: Trial) -> list[Record]:
        part = int(trial.until or trial.config["rounds"]) / trial.config["rounds"]
        wall = part * self._seconds[trial.method]
        took = Measured(
            wall, wall, samples_per_second=1e6 / self._seconds[trial.method], peak_memory_bytes=1e8
        )
        return [
            dataclasses.replace(row, result=dataclasses.replace(row.result, measured=took))
            for row in fake_run(trial)
        ]

    def run(self, expected: Mapping[str, float]) -> list[tuple[float, float | None]]:
        """The time that is truly left and the time that is shown, at every start and end of a run.

        Args:
            expected: seconds of a whole simulation of each method, as from dry runs.
        """
        cells = self.scheduler.cells
        left = TimeLeft(
            self.scheduler, {cell.cell.id: Expected(cell.cell.row, expected[cell.cell.row]) for cell in cells}
        )
        now, shown, running = 30.0, [], []  # after half a minute, the workers have started
        left.update(0.0, self._slots, [])
        while not self.scheduler.finished:
            while len(running) < self._slots and (trial := self.scheduler.next()):
                rounds = int(trial.until or trial.config["rounds"]) - self._first_round(trial)
                each = self._seconds[trial.method] / trial.config["rounds"]
                heapq.heappush(running, (now + self._overhead + each * rounds, len(shown), each, trial))
                shown.append((now, self._shown(left, now, running)))
            now, _, _, trial = heapq.heappop(running)
            if trial.until:
                self._reached[f"{trial.cell} {trial.config} {trial.seeds}"] = trial.until
            self.scheduler.record(trial, self._run(trial))
            shown.append((now, self._shown(left, now, running)))
        return [(now - when, seconds) for when, seconds in shown]

    def _shown(self, left: TimeLeft, now: float, running: list) -> float | None:
        """With the rounds of what is running, as the workers report them."""
        stacks = []
        for end, _, each, trial in running:
            last = int(trial.until or trial.config["rounds"])
            stacks.append(Running([trial], max(self._first_round(trial), int(last - (end - now) / each))))
        left.update(now, self._slots, stacks)
        return left.seconds


def test_rounds_of_a_checkpoint_do_not_count_as_done_by_this_sweep(ledger):
    scheduler = scheduler_of(ledger)
    left = TimeLeft(scheduler, {cell.cell.id: Expected("", 100) for cell in scheduler.cells})
    before = left.work().pending
    running = Running([scheduler.next()], 1)  # of two rounds
    left.update(0.0, 1, [running])
    assert (left.work().done, before - left.work().pending) == (0, pytest.approx(50))


TRUE = {"fedavg": 10.0, "fedprox": 30.0}


@pytest.mark.parametrize("slots", [1, 2, 8])
@pytest.mark.parametrize(
    ("expected", "overhead"),
    [(TRUE, 2.0), ({"fedavg": 1.0, "fedprox": 3.0}, 0.2), ({"fedavg": 12.5, "fedprox": 30.0}, 0.2)],
)
@pytest.mark.parametrize("searched", ["", "search: {budget: 3}\n", "search: {trials: 12, halving: false}\n"])
def test_the_time_left_is_right_within_about_a_factor_of_two_from_the_first_finished_run_on(
    ledger, edit, slots, overhead, expected, searched
):
    edit("search: {trials: 4}\n", searched)
    assert_right(ledger, edit, slots, overhead, expected, bool(searched))


@pytest.mark.parametrize("slots", [1, 2])
def test_the_time_left_is_right_if_searches_keep_the_pinned_configuration(ledger, edit, slots):
    edit("search: {trials: 4}\n", "search: {budget: 3}\n")
    edit("lr: 0.05", "lr: 0.1")
    assert_right(ledger, edit, slots, 0.1, TRUE, searched=True)


def assert_right(
    ledger, edit, slots: int, overhead: float, expected: Mapping[str, float], searched: bool
) -> None:
    edit("rounds: 2", "rounds: 20")
    edit("every: 1", "every: 5")
    shown = Machine(ledger, TRUE, overhead, slots).run(expected)
    assert [seconds for _, seconds in shown[:slots]] == [None] * slots
    left = [(true, seconds) for true, seconds in shown if seconds is not None]
    assert len(left) > len(shown) - 2 * slots - 2
    # The last search may still compare its best trial, in six runs, and select it, which takes two more.
    uncertain = 8 * (30 + overhead) if searched else 2 * (30 + overhead)
    checked = [(true, seconds) for true, seconds in left if true > uncertain / min(slots, 6)]
    assert checked
    for true, seconds in checked:
        assert true / 2 <= seconds <= 2.1 * true
    assert left[-1] == (0, 0)
