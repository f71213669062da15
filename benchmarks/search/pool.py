"""Learning curves of many configurations, measured once, that every search of `compare` is replayed on.

`python -m benchmarks.search.pool` appends to `reports/engineering/search/pool-<workload>.csv`, and continues
after an interruption.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer
from optuna.distributions import IntDistribution
from scipy.stats import qmc
from tqdm import tqdm

from benchmarks.search.workload import FOLDER, METHODS, SPACE, WORKLOADS
from benchmarks.workload import run
from pfl.core.config import Config, Execution
from pfl.core.errors import unknown_name
from pfl.core.rng import integer_seed
from pfl.data.dataset import load
from pfl.data.partition import make_partition
from pfl.engine.result import Result
from pfl.run.simulate import simulate
from pipeline.spec.search_space import Search, distribution, pinned_value, searched, with_params
from pipeline.sweep.search import WORST, on_validation

SEARCH = Search(trials=2, space=SPACE)
CONFIGURATIONS = 32
"""Of each method: the pinned one, then a Sobol sequence in the search space."""
POOR = CONFIGURATIONS
"""The number of the pinned configuration with a learning rate that is a hundred times too low."""
SEEDS = (0, 1, 2)
NOISE_SEEDS = {"digits-20": range(3, 43)}
"""By workload: further seeds of the pinned configurations, which measure the noise of a comparison."""


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
def configurations(workload: str, method: str) -> list[dict[str, Any]]:
    """The searched parameters of every configuration of the pool; 0 is the pinned one."""
    base, space = WORKLOADS[workload].pinned(method), _space(workload, method)
    sobol = qmc.Sobol(len(space), seed=integer_seed(0, f"pool {method}") % 2**32)
    points = sobol.random(2 ** (CONFIGURATIONS - 1).bit_length()).tolist()[: CONFIGURATIONS - 1]
    drawn = [
        {name: _at(space[name], share) for name, share in zip(space, row, strict=True)} for row in points
    ]
    return [{name: pinned_value(base, name) for name in space}, *drawn]


def params_of(workload: str, method: str, configuration: int) -> dict[str, Any]:
    """The searched parameters of a configuration, which may be `POOR`."""
    if configuration != POOR:
        return configurations(workload, method)[configuration]
    pinned = configurations(workload, method)[0]
    return {**pinned, "lr": pinned["lr"] / 100}


def position(workload: str, method: str, params: Mapping[str, Any]) -> list[float]:
    """A configuration as a point of the unit cube, each parameter on the scale of its search."""
    return [
        (_scale(one, params[name]) - _scale(one, one.low)) / (_scale(one, one.high) - _scale(one, one.low))
        for name, one in _space(workload, method).items()
    ]


def curves(workload: str) -> list[Curve]:
    """All curves of a workload that have been measured."""
    if not _file(workload).exists():
        return []
    with _file(workload).open(encoding="utf-8", newline="") as file:
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


def main(
    workload: Annotated[list[str] | None, typer.Option(help="One of the workloads; by default all.")] = None,
) -> None:
    """Measure the missing curves, one configuration of every method after another."""
    for name in workload or WORKLOADS:
        measure(name)


def measure(workload: str) -> None:
    """Add the missing curves of a workload to its file.

    Raises:
        InvalidInput: there is no such workload.
    """
    if workload not in WORKLOADS:
        raise unknown_name("workload", workload, WORKLOADS)
    one = WORKLOADS[workload]
    dataset = load(one.dataset, progress=False)
    partition = make_partition(one.partition, dataset, one.clients)
    measured = {(curve.method, curve.configuration, curve.seed) for curve in curves(workload)}
    work = [
        (method, number, seeds)
        for number, seeds in (
            *((number, SEEDS) for number in range(CONFIGURATIONS + 1)),
            *((0, (seed,)) for seed in NOISE_SEEDS.get(workload, ())),
        )
        for method in METHODS
        if (method, number, seeds[0]) not in measured
    ]
    for method, number, seeds in tqdm(work, desc=workload, disable=None):
        params = params_of(workload, method, number)
        config = on_validation(with_params(one.pinned(method), params), SEARCH.validation)
        results = simulate(config, dataset, partition, seeds, Execution(device="cpu"))
        _append(_file(workload), [_row(config, number, params, result) for result in results])


def _file(workload: str) -> Path:
    return FOLDER / f"pool-{workload}.csv"


def _row(config: Config, number: int, params: Mapping[str, Any], result: Result) -> dict[str, object]:
    metrics = result.metrics
    reached = {
        evaluation.round: evaluation.moments[metrics.headline].average("pooled")
        for evaluation in metrics.rounds
    }
    diverged = metrics.diverged_at is not None
    rounds = range(config.eval_every, config.rounds + 1, config.eval_every)
    return {
        "method": config.method,
        "configuration": number,
        "params": json.dumps(params),
        "seed": result.seed,
        **{str(at): round(WORST if diverged else reached[at], 3) for at in rounds},
        "samples": result.measured.samples,
    }


def _append(path: Path, rows: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerows(rows)


@cache
def _space(workload: str, method: str) -> dict[str, Any]:
    space = searched(WORKLOADS[workload].pinned(method), SEARCH)
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
    run(main)
