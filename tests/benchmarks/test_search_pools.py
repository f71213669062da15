"""Pools of learning curves, and searches that are replayed on them."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from benchmarks.search import pools, regret
from benchmarks.search.pools import CurvePool, held_out
from pfl.methods import METHODS


def made_up(method: str = "fedprox", size: int = 24) -> CurvePool:
    """A pool whose accuracy rises with the rounds, and is highest at a learning rate of 0.02."""
    pool = CurvePool.new("digits-pool", method, size)
    for configuration, params in enumerate(pool.configurations):
        away = abs(math.log10(params["lr"] / 0.02))
        for seed in range(3):
            reached = 90 - 20 * away + seed - 30 / np.array(pool.rounds)
            pool.accuracy[configuration, seed] = reached
            pool.samples[configuration, seed] = 1000
    return pool


def test_a_pool_begins_with_the_pinned_configuration_and_covers_the_space():
    pool = CurvePool.new("digits-pool", "fedprox", 32)
    assert pool.configurations[0] == {"lr": 0.2, "mu": 1.0}
    places = np.array([regret.Replay(made_up(size=32), 0)._position(p) for p in pool.configurations[1:]])
    assert places.min() < 0.1
    assert places.max() > 0.9
    assert CurvePool.new("digits-pool", "fedprox", 8).configurations == pool.configurations[:8]


def test_parameters_without_effect_are_left_out():
    pool = CurvePool.new("digits-pool", "fedasync", 32)
    needed = {"constant": set(), "polynomial": {"a"}, "hinge": {"a", "b"}}
    assert all(p.keys() & {"a", "b"} == needed[p["staleness"]] for p in pool.configurations)


def test_a_pool_that_was_stopped_is_continued(tmp_path, monkeypatch):
    measured = []

    def measure(pool: CurvePool, configuration: int, *_: object) -> None:
        measured.append(configuration)
        if len(measured) == 3:
            raise KeyboardInterrupt
        pool.accuracy[configuration], pool.samples[configuration] = 50.0, 10

    monkeypatch.setattr(CurvePool, "measure", measure)
    with pytest.raises(KeyboardInterrupt):
        pools.make("digits-pool", "fedprox", 4, None, None, tmp_path, math.inf)
    assert pools.pools(tmp_path) == []
    line = pools.make("digits-pool", "fedprox", 4, None, None, tmp_path, math.inf)
    assert line == "digits-pool/fedprox: 4 of 4 configurations, 0 s"
    assert measured == [0, 1, 2, 2, 3]
    pools.make("digits-pool", "fedper", 4, None, None, tmp_path, time.monotonic())
    assert len(measured) == 5


def test_a_file_gives_back_the_pool(tmp_path):
    pool = made_up()
    pool.save(tmp_path)
    again = CurvePool.load(tmp_path / "digits-pool/fedprox.npz")
    assert again.configurations == pool.configurations
    assert (again.accuracy == pool.accuracy).all()
    assert again.name == "digits-pool/fedprox"


def test_a_fifth_of_the_pools_is_kept_apart(tmp_path):
    reserved = held_out("digits-pool")
    assert len(reserved) == len(METHODS) // 5
    for method in (min(reserved), min(set(METHODS) - reserved)):
        made_up(method, 4).save(tmp_path)
    (known,), (hidden,) = pools.pools(tmp_path), pools.pools(tmp_path, kept_apart=True)
    assert known.method not in reserved
    assert hidden.method in reserved


@pytest.mark.parametrize("name", ["ours", "TPE", "Hyperband", "random"])
def test_a_replayed_search_is_the_same_again_and_its_regret_never_rises(name):
    pool = made_up()
    first, again = (regret.SEARCHES[name](pool, 1) for _ in range(2))
    assert (first == again).all()
    assert (np.diff(first) <= 0).all()
    assert first[-1] < first[0]
    assert first[-1] >= 0


def test_a_trial_that_costs_twice_as_much_is_counted_twice():
    pool = made_up()
    replay = regret.Replay(pool, 0)
    pinned, other = replay.choose(pool.configurations[0]), replay.choose(pool.configurations[7])
    pool.samples[7] = 2000
    replay.train(pinned, 0, 27)
    replay.train(other, 0, 9)
    assert replay.tried == [0, 7]
    assert replay._spent == pytest.approx(1 + 2 / 3)


def test_the_page_shows_every_search_with_intervals_over_the_pools(tmp_path, monkeypatch):
    monkeypatch.setattr(regret, "REPLAYS", 2)
    monkeypatch.setattr(regret, "SEARCHES", {name: regret.SEARCHES[name] for name in ("ours", "random")})
    reserved = held_out("digits-pool")
    for method in ("fedprox", "fedper", "fedrep"):
        if method not in reserved:
            made_up(method).save(tmp_path)
    regret.main(tmp_path, tmp_path, held_out=False)
    text = (tmp_path / "regret.md").read_text()
    assert "| ours | " in text
    assert "±" in text
    assert (tmp_path / "regret.svg").exists()
    assert len((tmp_path / "regret.csv").read_text().splitlines()) > 2 * len(regret.COSTS)
