"""Pools of learning curves on which `benchmarks.search.regret` replays searches.

`python -m benchmarks.search.pools` measures, for each workload in `POOLS` and each method, the pinned
configuration and a Sobol sequence in the default search space, with three seeds each. It writes after every
configuration, continues where it was stopped, and with ``--minutes`` stops by itself.

A pool is a file ``reports/engineering/search/pools/<workload>/<method>.npz``, which `numpy.load` reads:

==============  =======  =================================  ==================================================
array           type     shape                              content
==============  =======  =================================  ==================================================
``accuracy``    float32  configurations, seeds, rounds      on validation data in percent; NaN: not measured
``samples``     int64    configurations, seeds              trained on in all rounds; 0: not measured
``seconds``     float32  configurations                     of processor time, all seeds together
``rounds``      int32    rounds                             after which accuracy was evaluated
``seeds``       int32    seeds
``parameters``  str      configurations                     searched parameters as JSON; 0 is the pinned one
==============  =======  =================================  ==================================================

A run that diverged has the accuracy 0 in all rounds. Conditional parameters that have no effect are omitted.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from scipy.stats import qmc

from benchmarks.search.workload import FOLDER, POOLS
from benchmarks.workload import run
from pfl.core.config import Config, Execution
from pfl.core.errors import InvalidInput, unknown_name
from pfl.core.files import replacing
from pfl.core.hyper import Hyperparameter
from pfl.core.rng import integer_seed
from pfl.core.text import first_line
from pfl.data.dataset import Dataset, load
from pfl.data.partition import Partition, make_partition
from pfl.engine.result import Result
from pfl.methods import METHODS
from pfl.run.simulate import simulate
from pipeline.algorithms._starts import value_at
from pipeline.spec.search_space import Search, distribution, pinned_value, searched, with_params
from pipeline.sweep.search import WORST, on_validation

CURVES = FOLDER / "pools"
SEARCH = Search(trials=2)
CONFIGURATIONS = 100
"""Of each pool, the pinned one included."""
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class CurvePool:
    """The learning curves of one method on one workload; arrays as in the module's table.

    Attributes:
        configurations: the searched parameters of each configuration.
    """

    workload: str
    method: str
    configurations: list[dict[str, Any]]
    accuracy: np.ndarray
    samples: np.ndarray
    seconds: np.ndarray

    @property
    def name(self) -> str:
        return f"{self.workload}/{self.method}"

    @cached_property
    def pinned(self) -> Config:
        return POOLS[self.workload].pinned(self.method)

    @cached_property
    def rounds(self) -> list[int]:
        return [*range(self.pinned.eval_every, self.pinned.rounds + 1, self.pinned.eval_every)]

    @cached_property
    def _declared(self) -> dict[str, Hyperparameter]:
        return searched(self.pinned, SEARCH)

    @cached_property
    def space(self) -> dict[str, Any]:
        """The distribution of each searched parameter."""
        return {name: distribution(self.method, name, one) for name, one in self._declared.items()}

    @property
    def conditions(self) -> dict[str, tuple[str, ...]]:
        """For each conditional parameter, the one that it depends on, and the choices that activate it."""
        declared = self._declared.items()
        return {name: one.when for name, one in declared if one.when and one.when[0] in self._declared}

    def active(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """``params`` without the conditional ones that have no effect."""
        values = {**self.pinned.hyperparameters, **params}
        return {name: value for name, value in params.items() if self._declared[name].active(values)}

    @cached_property
    def final(self) -> np.ndarray:
        """The mean accuracy over the seeds after the last round, by configuration; NaN if not measured."""
        mean: np.ndarray = self.accuracy[:, :, -1].mean(axis=1)
        return mean

    @classmethod
    def new(cls, workload: str, method: str, size: int = CONFIGURATIONS) -> CurvePool:
        """A pool of which nothing is measured.

        Raises:
            InvalidInput: the method does not accept the workload's schedule.
        """
        pool = cls(workload, method, [], np.empty(0), np.empty(0), np.empty(0))
        sobol = qmc.Sobol(len(pool.space), seed=integer_seed(0, f"pool {pool.name}") % 2**32)
        configurations = [{name: pinned_value(pool.pinned, name) for name in pool.space}]
        for places in sobol.random(2 ** (size - 1).bit_length()).tolist()[: size - 1]:
            pairs = zip(pool.space.items(), places, strict=True)
            configurations.append({name: value_at(one, place) for (name, one), place in pairs})
        shape = (size, len(SEEDS), len(pool.rounds))
        accuracy, samples = np.full(shape, np.nan, np.float32), np.zeros(shape[:2], np.int64)
        active = list(map(pool.active, configurations))
        return cls(workload, method, active, accuracy, samples, np.zeros(size, np.float32))

    @classmethod
    def load(cls, file: Path) -> CurvePool:
        with np.load(file) as arrays:
            configurations = [json.loads(text) for text in arrays["parameters"]]
            curves = (arrays[name] for name in ("accuracy", "samples", "seconds"))
            return cls(file.parent.name, file.stem, configurations, *curves)

    def save(self, folder: Path) -> None:
        file = folder / f"{self.name}.npz"
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as out:
            np.savez_compressed(
                out,
                accuracy=self.accuracy,
                samples=self.samples,
                seconds=self.seconds,
                rounds=np.array(self.rounds, np.int32),
                seeds=np.array(SEEDS, np.int32),
                parameters=np.array([json.dumps(params) for params in self.configurations]),
            )

    def is_measured(self, configuration: int) -> bool:
        return bool(self.samples[configuration].all())

    def measure(self, configuration: int, dataset: Dataset, partition: Partition) -> None:
        """Run a configuration with all seeds."""
        began = time.process_time()
        config = with_params(self.pinned, self.configurations[configuration])
        config = on_validation(config, SEARCH.validation)
        for place, result in enumerate(simulate(config, dataset, partition, SEEDS, Execution(device="cpu"))):
            self.accuracy[configuration, place] = self._curve(result)
            self.samples[configuration, place] = max(result.measured.samples, 1)
        self.seconds[configuration] = time.process_time() - began

    def _curve(self, result: Result) -> list[float]:
        metrics = result.metrics
        if metrics.diverged_at is not None:
            return [WORST] * len(self.rounds)
        reached = {entry.round: entry.moments.get(metrics.headline) for entry in metrics.rounds}
        return [entry.pooled if (entry := reached[number]) else np.nan for number in self.rounds]


def held_out(workload: str) -> set[str]:
    """The methods whose pools are kept apart from the development of the search: a fifth, by a digest."""

    def digest(method: str) -> str:
        return hashlib.sha256(f"{workload}/{method}".encode()).hexdigest()

    return set(sorted(METHODS, key=digest)[: len(METHODS) // 5])


def pools(folder: Path = CURVES, *, kept_apart: bool = False) -> list[CurvePool]:
    """The pools of a folder whose every configuration is measured, with or without those kept apart."""
    every = (CurvePool.load(file) for file in sorted(folder.glob("*/*.npz")))
    return [
        pool
        for pool in every
        if pool.samples.all() and (pool.method in held_out(pool.workload)) == kept_apart
    ]


def main(
    workload: Annotated[list[str] | None, typer.Option(help="One of the workloads; by default all.")] = None,
    method: Annotated[list[str] | None, typer.Option(help="One of the methods; by default all.")] = None,
    size: Annotated[int, typer.Option(min=2, help="Configurations per pool.")] = CONFIGURATIONS,
    minutes: Annotated[float | None, typer.Option(help="Begin no configuration after this time.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the pools.")] = CURVES,
) -> None:
    """Measure the missing curves, one pool after another."""
    end = time.monotonic() + 60 * minutes if minutes is not None else float("inf")
    for name in workload or POOLS:
        if name not in POOLS:
            raise unknown_name("workload", name, POOLS)
        dataset = load(POOLS[name].dataset, progress=False)
        partition = make_partition(POOLS[name].partition, dataset, POOLS[name].clients)
        for own in method or METHODS:
            if time.monotonic() < end:
                print(make(name, own, size, dataset, partition, out, end), flush=True)


def make(
    workload: str, method: str, size: int, dataset: Dataset, partition: Partition, folder: Path, end: float
) -> str:
    """Measure the missing curves of one pool until ``end`` (monotonic clock), and return what there is."""
    file = folder / workload / f"{method}.npz"
    pool = CurvePool.load(file) if file.exists() else CurvePool.new(workload, method, size)
    for configuration in range(len(pool.configurations)):
        if pool.is_measured(configuration) or time.monotonic() >= end:
            continue
        try:
            pool.measure(configuration, dataset, partition)
        except InvalidInput as error:
            return f"{pool.name}: left out: {first_line(error)}"
        pool.save(folder)
    measured = int(pool.samples.all(axis=1).sum())
    return f"{pool.name}: {measured} of {len(pool.configurations)} configurations, {pool.seconds.sum():.0f} s"


if __name__ == "__main__":
    run(main)
