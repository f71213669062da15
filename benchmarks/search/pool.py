"""Learning curves of many configurations, measured once, that every search of `compare` is replayed on.

`python -m benchmarks.search.pool` appends to `reports/engineering/search/pool.csv`, and goes on where it
was interrupted.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from optuna.distributions import IntDistribution
from scipy.stats import qmc
from tqdm import tqdm

from benchmarks.search.workload import CLIENTS, FOLDER, METHODS, PARTITION, SPACE, pinned
from pfl.config import Execution
from pfl.data.dataset import load
from pfl.data.partition import make_partition
from pfl.rng import integer_seed
from pfl.simulation import Result, simulate
from pipeline.spec.search import Search, distribution, pinned_value, searched, with_params
from pipeline.sweep.search import WORST, on_validation

FILE = FOLDER / "pool.csv"
SEARCH = Search(trials=2, space=SPACE)
CONFIGURATIONS = 24
"""Of each method: the pinned one, then a Sobol sequence in the search space."""
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Curve:
    """A configuration with one seed.

    Attributes:
        accuracies: on validation data in percent, by round.
        samples: that it trained on in all rounds.
    """

    method: str
    configuration: int
    params: Mapping[str, Any]
    seed: int
    accuracies: Mapping[int, float]
    samples: int


@cache
def configurations(method: str) -> list[dict[str, Any]]:
    """The searched parameters of every configuration of the pool; 0 is the pinned one."""
    base, space = pinned(method), _space(method)
    sobol = qmc.Sobol(len(space), seed=integer_seed(0, f"pool {method}") % 2**32)
    points = sobol.random(2 ** (CONFIGURATIONS - 1).bit_length()).tolist()[: CONFIGURATIONS - 1]
    drawn = [
        {name: _at(space[name], share) for name, share in zip(space, row, strict=True)} for row in points
    ]
    return [{name: pinned_value(base, name) for name in space}, *drawn]


def position(method: str, params: Mapping[str, Any]) -> list[float]:
    """A configuration as a point of the unit cube, each parameter on the scale of its search."""
    return [
        (_scale(one, params[name]) - _scale(one, one.low)) / (_scale(one, one.high) - _scale(one, one.low))
        for name, one in _space(method).items()
    ]


def curves() -> list[Curve]:
    """All curves that have been measured."""
    if not FILE.exists():
        return []
    with FILE.open(encoding="utf-8", newline="") as file:
        return [
            Curve(
                row["method"],
                int(row["configuration"]),
                json.loads(row["params"]),
                int(row["seed"]),
                {int(name): float(value) for name, value in row.items() if name.isdecimal()},
                int(row["samples"]),
            )
            for row in csv.DictReader(file)
        ]


def main() -> None:
    """Measure what is missing, one configuration of every method after another."""
    dataset = load("digits", progress=False)
    partition = make_partition(PARTITION, dataset, CLIENTS)
    measured = {(curve.method, curve.configuration) for curve in curves()}
    work = [
        (method, number, params)
        for number, together in enumerate(zip(*map(configurations, METHODS), strict=True))
        for method, params in zip(METHODS, together, strict=True)
    ]
    for method, number, params in tqdm(work, disable=None):
        if (method, number) not in measured:
            config = on_validation(with_params(pinned(method), params), SEARCH.validation)
            results = simulate(config, dataset, partition, SEEDS, Execution(backend="stacked", device="cpu"))
            _append([_row(method, number, params, result) for result in results])


def _row(method: str, number: int, params: Mapping[str, Any], result: Result) -> dict[str, object]:
    base = pinned(method)
    metrics = result.metrics
    reached = {one.round: one.moments[metrics.headline].average("pooled") for one in metrics.rounds}
    diverged = metrics.diverged_at is not None
    rounds = range(base.eval_every, base.rounds + 1, base.eval_every)
    return {
        "method": method,
        "configuration": number,
        "params": json.dumps(params),
        "seed": result.seed,
        **{str(at): round(WORST if diverged else reached[at], 3) for at in rounds},
        "samples": result.measured.samples,
    }


def _append(rows: list[dict[str, object]]) -> None:
    FILE.parent.mkdir(parents=True, exist_ok=True)
    new = not FILE.exists()
    with FILE.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerows(rows)


@cache
def _space(method: str) -> dict[str, Any]:
    space = searched(pinned(method), SEARCH)
    return {name: distribution(method, name, declared) for name, declared in space.items()}


def _at(one: Any, share: float) -> float:
    """The value at a share of a range of floats or integers."""
    if isinstance(one, IntDistribution):
        return min(one.high, math.floor(one.low + share * (one.high + 1 - one.low)))
    low, high = _scale(one, one.low), _scale(one, one.high)
    value = low + share * (high - low)
    return math.exp(value) if one.log else value


def _scale(one: Any, value: float) -> float:
    return math.log(value) if one.log else value


if __name__ == "__main__":
    main()
