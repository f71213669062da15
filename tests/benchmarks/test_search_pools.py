"""Pools of learning curves, and searches that are replayed on them."""

from __future__ import annotations

import csv
import math
import time

import numpy as np
import pytest

from benchmarks.search import pools, regret
from benchmarks.search.pools import HELD_OUT, LEFT_OUT, CurvePool
from benchmarks.search.replay import Replay, holds
from pfl.core.errors import InvalidInput
from pfl.methods import METHODS
from pfl.run.validation import validated


def full(method: str = "fedprox", size: int = 24) -> CurvePool:
    """A pool whose accuracy rises with the rounds, and is highest at a learning rate of 0.02."""
    pool = CurvePool.new("digits", method, size)
    for configuration, params in enumerate(pool.configurations):
        away = abs(math.log10(params["lr"] / 0.02))
        for seed in range(3):
            reached = 90 - 20 * away + seed - 30 / np.array(pool.rounds)
            pool.accuracy[configuration, seed] = reached
            pool.samples[configuration, seed] = 1000
    return pool


def test_a_pool_begins_with_the_pinned_configuration_and_covers_the_space():
    pool = CurvePool.new("digits", "fedprox", 32)
    assert pool.configurations[0] == {"lr": 0.2, "mu": 1.0}
    places = np.array([Replay(full(size=32), 0)._position(p) for p in pool.configurations[1:]])
    assert places.min() < 0.1
    assert places.max() > 0.9
    assert CurvePool.new("digits", "fedprox", 8).configurations == pool.configurations[:8]


def test_the_runs_of_every_method_are_valid_configurations():
    for method in {*METHODS} - {*LEFT_OUT}:
        pool = CurvePool.new("digits", method, 8)
        assert [validated(pool.config(number)).method for number in range(8)] == [method] * 8


def test_parameters_without_effect_are_left_out():
    pool = CurvePool.new("digits", "fedasync", 32)
    needed = {"constant": set(), "polynomial": {"a"}, "hinge": {"a", "b"}}
    assert all(p.keys() & {"a", "b"} == needed[p["staleness"]] for p in pool.configurations)


def test_configurations_that_differ_in_real_numbers_alone_are_simulated_together():
    groups = CurvePool.new("digits", "fedasync", 32).groups()
    assert sorted(number for group in groups for number in group) == [*range(32)]
    assert max(map(len, groups)) <= pools.TOGETHER
    pool = CurvePool.new("digits", "fedasync", 32)
    for group in groups:
        assert len({pool.configurations[number]["staleness"] for number in group}) == 1


def test_a_pool_that_was_stopped_is_continued(tmp_path, monkeypatch):
    measured = []

    def measure(pool: CurvePool, configurations: list[int], *_: object) -> CurvePool:
        measured.extend(configurations)
        if len(measured) == 3:
            raise KeyboardInterrupt
        pool.accuracy[configurations], pool.samples[configurations] = 50.0, 10
        return pool

    def lines(end: float = math.inf) -> list[str]:
        return [*pools.make("digits", ["fedprox"], tmp_path / "digits.npz", end, size=4)]

    monkeypatch.setattr(CurvePool, "measure", measure)
    monkeypatch.setattr(pools, "TOGETHER", 1)
    with pytest.raises(KeyboardInterrupt):
        lines()
    assert pools.pools(tmp_path) == []
    assert lines(time.monotonic()) == ["digits/fedprox: 2 of 4 configurations, 0 s"]
    assert lines() == ["digits/fedprox: 4 of 4 configurations, 0 s"]
    assert measured == [0, 1, 2, 2, 3]


@pytest.mark.slow
def test_curves_are_those_of_single_runs(tmp_path):
    pool = CurvePool.new("digits", "local", 3)
    for line in pools.make("digits", ["local"], tmp_path / "digits.npz", math.inf, size=3):
        assert "3 of 3" in line
    (measured,) = pools.read(tmp_path / "digits.npz")
    single = pool.measure([1])
    assert measured.accuracy[1] == pytest.approx(single.accuracy[1], abs=1)
    assert (measured.samples[1] == single.samples[1]).all()


def test_a_file_gives_back_the_pools(tmp_path):
    written = [full("fedprox"), full("fedasync"), full("fedavg"), full("pfedhn")]
    file = tmp_path / "digits.npz"
    pools.save(file, written, evaluated=1000)
    for pool, again in zip(written, pools.read(file), strict=True):
        assert again.configurations == pool.configurations
        assert again.space == pool.space
        assert again.accuracy == pytest.approx(pool.accuracy, abs=0.05)
        assert again.name == pool.name


def test_the_pools_of_some_methods_are_held_out(tmp_path):
    pools.save(tmp_path / "digits.npz", [full("scaffold", 4), full("fedper", 4)], evaluated=1000)
    (known,), (hidden,) = pools.pools(tmp_path), pools.pools(tmp_path, held_out=True)
    assert (known.method, hidden.method) == ("fedper", "scaffold")
    assert {*HELD_OUT} < {*METHODS}


def test_processes_that_measure_other_methods_keep_each_others_curves(tmp_path, monkeypatch):
    file = tmp_path / "digits.npz"

    def measure(pool: CurvePool, configurations: list[int], *_: object) -> CurvePool:
        pools.save(file, [full("fedper", 4)], evaluated=1000)  # what another process does meanwhile
        pool.samples[configurations] = 10
        return pool

    monkeypatch.setattr(CurvePool, "measure", measure)
    (line,) = pools.make("digits", ["fedprox"], file, math.inf, size=4)
    assert line == "digits/fedprox: 4 of 4 configurations, 0 s"
    assert [pool.method for pool in pools.read(file)] == ["fedper", "fedprox"]


def test_a_method_that_refuses_the_workload_keeps_the_curves_in_the_file(tmp_path, monkeypatch):
    half = full("fedprox", 4)
    half.samples[2:] = 0
    pools.save(tmp_path / "digits.npz", [half], evaluated=1000)

    def refuse(*_: object) -> CurvePool:
        raise InvalidInput("model", "mlp", "another one")

    monkeypatch.setattr(CurvePool, "measure", refuse)
    lines = [*pools.make("digits", ["fedprox", "fedbn"], tmp_path / "digits.npz", math.inf, size=4)]
    assert ["left out: m" in line for line in lines] == [True, True]
    (pool,) = pools.read(tmp_path / "digits.npz")
    assert pool.measured.sum() == 2


def test_fedbn_is_not_among_the_pools(tmp_path, monkeypatch):
    with pytest.raises(InvalidInput, match="fedbn"):
        CurvePool.new("digits", "fedbn")
    monkeypatch.setattr(pools, "LEFT_OUT", ())
    pools.save(tmp_path / "digits.npz", [full("fedbn", 4), full("fedper", 4)], evaluated=1000)
    monkeypatch.undo()
    assert [pool.method for pool in pools.read(tmp_path / "digits.npz")] == ["fedper"]


def test_a_pinned_value_of_0_is_outside_a_logarithmic_range():
    pool = CurvePool.new("digits", "pfedhn", 4)
    pinned = pool.configurations[0]
    assert {name for name in pinned if not holds(pool.space[name], pinned[name])} == {"weight_decay"}
    pool = full("pfedhn")
    assert regret.SEARCHES["random"](pool, 0)[-1] >= 0


@pytest.mark.parametrize("name", ["ours", "TPE", "Hyperband", "random"])
def test_a_replayed_search_is_the_same_again_and_its_regret_never_rises(name):
    pool = full()
    first, again = (regret.SEARCHES[name](pool, 1) for _ in range(2))
    assert (first == again).all()
    assert (np.diff(first) <= 0).all()
    assert first[-1] < first[0]
    assert first[-1] >= 0


def test_a_trial_that_costs_twice_as_much_is_counted_twice():
    pool = full()
    replay = Replay(pool, 0)
    pinned, other = replay.choose(pool.configurations[0]), replay.choose(pool.configurations[7])
    pool.samples[7] = 2000
    replay.train(pinned, 0, 18)
    replay.train(other, 0, 6)
    assert replay.tried == [0, 7]
    assert replay._spent == pytest.approx(1 + 2 / 3)


def test_the_page_shows_every_search_with_intervals_over_the_pools(tmp_path, monkeypatch):
    monkeypatch.setattr(regret, "REPLAYS", 2)
    monkeypatch.setattr(regret, "SEARCHES", {name: regret.SEARCHES[name] for name in ("ours", "random")})
    pools.save(tmp_path / "digits.npz", [full("fedprox"), full("fedper")], evaluated=1000)
    regret.main(tmp_path, tmp_path, held_out=False)
    text = (tmp_path / "regret.md").read_text()
    assert "| ours | " in text
    assert "±" in text
    assert (tmp_path / "regret.svg").exists()
    rows = list(csv.DictReader((tmp_path / "regret.csv").open()))
    assert len(rows) == 2 * 2 * len(regret.SHOWN)


def test_a_search_is_tied_if_its_regret_is_not_significantly_higher_than_the_lowest(monkeypatch):
    monkeypatch.setattr(regret, "SEARCHES", dict.fromkeys(("lowest", "noisy", "worse")))
    lowest = np.ones((20, len(regret.COSTS)))
    noisy = lowest + np.where(np.arange(20) % 2, 3.0, -2.9)[:, None]
    rows = regret.rows_of([full()], np.stack([lowest, noisy, lowest + 1])[None])
    assert [row.best_or_tied for row in rows[:3]] == [True, True, False]
    assert rows[0].rank < rows[2].rank


def test_searches_that_are_the_same_are_one_row_and_ranked_once(monkeypatch):
    monkeypatch.setattr(regret, "SEARCHES", dict.fromkeys(("TPE", "ours", "random")))
    regrets = np.ones((1, 3, 20, len(regret.COSTS)))
    regrets[:, 1] = 2
    regrets[:, 0, :, -1] = 0.5
    rows = {(row.runs, row.search): row.rank for row in regret.rows_of([full()], regrets)}
    assert rows["9", "random start (TPE, random)"] == 1
    assert rows["9", "ours"] == 2
    assert [rows["18", search] for search in ("TPE", "random", "ours")] == [1, 2, 3]
