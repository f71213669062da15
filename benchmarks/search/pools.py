"""Pools of learning curves on which `benchmarks.search.replay` replays searches.

`python -m benchmarks.search.pools` measures, for each workload in `WORKLOADS` and each method, the pinned
configuration and a Sobol sequence in the default search space, with three seeds each. It saves as it goes,
continues after an interruption, and with ``--minutes`` stops by itself.

A workload is a file ``reports/engineering/search/pools/<workload>.npz``, which `numpy.load` reads:

==============  =======  ==================================  =================================================
array           type     shape                               content
==============  =======  ==================================  =================================================
``methods``     str      methods
``seeds``       int32    seeds
``rounds``      int32    rounds                              after which there was an evaluation
``evaluated``   int32                                        validation samples of all clients
``correct``     uint16   methods, configurations, seeds,     validation samples predicted correctly; 0 in all
                         rounds                              rounds if the run diverged
``samples``     int32    methods, configurations, seeds      trained on in all rounds; 0 if not measured
``seconds``     float32  methods                             CPU time of all runs together
``spaces``      str      methods                             search space as JSON: distributions of Optuna by
                                                             parameter
``parameters``  float32  methods, configurations, parameter  in the order of the space; a choice as its index;
                                                             NaN if conditional without effect
==============  =======  ==================================  =================================================

Configuration 0 is the pinned one. Numbers are rounded to five digits, so that float32 holds them exactly.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    distribution_to_json,
    json_to_distribution,
)
from scipy.stats import qmc

from benchmarks.search.workload import FOLDER, WORKLOADS
from benchmarks.workload import run
from pfl.core.config import Config, Execution
from pfl.core.errors import InvalidInput, check_names
from pfl.core.files import folder_lock, replacing
from pfl.core.hyper import Hyperparameter
from pfl.core.rng import integer_seed
from pfl.core.text import first_line
from pfl.engine.result import Result
from pfl.methods import METHODS
from pfl.run.simulate import simulate_configs
from pfl.run.validation import stackable
from pipeline.algorithms._starts import value_at
from pipeline.spec.search_space import Search, distribution, pinned_value, searched, with_params
from pipeline.sweep.search import WORST, on_validation

CURVES = FOLDER / "pools"
SEARCH = Search(trials=2)
CONFIGURATIONS = 100
"""Number per pool, including the pinned one."""
SEEDS = (0, 1, 2)
TOGETHER = 25
"""Configurations that are simulated together, in a third of the time that they take one by one."""
HELD_OUT = (
    "fedadam",
    "fedala",
    "fedavg_async",
    "fedbabu",
    "feddyn",
    "pfedme",
    "plga",
    "scaffold",
    "spfl",
)
"""Methods on which the search is not developed: a random fifth, drawn once."""
# The workloads' MLP has no batch normalisation, without which FedBN is FedAvg.
LEFT_OUT = ("fedbn",)


@dataclasses.dataclass(frozen=True)
class CurvePool:
    """The learning curves of one method on one workload.

    Attributes:
        space: the distribution of each searched parameter.
        configurations: the searched parameters of each configuration, without those that have no effect.
        accuracy: on validation data in percent, (configurations, seeds, rounds).
        samples: as in the module's table, (configurations, seeds).
        seconds: CPU time of the runs.
    """

    workload: str
    method: str
    space: dict[str, Any]
    configurations: list[dict[str, Any]]
    accuracy: np.ndarray
    samples: np.ndarray
    seconds: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.workload}/{self.method}"

    @cached_property
    def pinned(self) -> Config:
        workload = dataclasses.replace(WORKLOADS[self.workload], method=self.method)
        return with_params(workload.config, self.configurations[0])

    @cached_property
    def rounds(self) -> list[int]:
        return evaluations(self.workload)

    @cached_property
    def _declared(self) -> dict[str, Hyperparameter]:
        return searched(self.pinned, SEARCH)

    @property
    def conditions(self) -> dict[str, tuple[str, ...]]:
        """For each conditional parameter, the one that it depends on, and the choices that activate it."""
        conditions = {name: hyper.when for name, hyper in self._declared.items() if hyper.when}
        return {name: when for name, when in conditions.items() if when[0] in self._declared}

    def active(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """``params`` without the conditional ones that have no effect."""
        values = {**self.pinned.hyperparameters, **params}
        return {name: value for name, value in params.items() if self._declared[name].active(values)}

    @cached_property
    def final(self) -> np.ndarray:
        """The mean accuracy over the seeds after the last round, (configurations,)."""
        mean: np.ndarray = self.accuracy[:, :, -1].mean(axis=1)
        return mean

    @property
    def measured(self) -> np.ndarray:
        """Whether each configuration is measured, (configurations,)."""
        all_seeds: np.ndarray = np.all(self.samples > 0, axis=1)
        return all_seeds

    @classmethod
    def new(cls, workload: str, method: str, size: int = CONFIGURATIONS) -> CurvePool:
        """A pool without measurements.

        Raises:
            InvalidInput: the method does not accept the workload's schedule, or is in `LEFT_OUT`.
        """
        if method in LEFT_OUT:
            raise InvalidInput("method", method, "a method that differs from fedavg on the workload's model")
        config = dataclasses.replace(WORKLOADS[workload], method=method).config
        space = {name: distribution(method, name, hyper) for name, hyper in searched(config, SEARCH).items()}
        sobol = qmc.Sobol(len(space), seed=integer_seed(0, f"pool {workload}/{method}") % 2**32)
        configurations = [{name: pinned_value(config, name) for name in space}]
        for places in sobol.random(2 ** (size - 1).bit_length()).tolist()[: size - 1]:
            pairs = zip(space.items(), places, strict=True)
            configurations.append({name: _value(domain, place) for (name, domain), place in pairs})
        accuracy = np.zeros((size, len(SEEDS), len(evaluations(workload))))
        pool = cls(workload, method, space, configurations, accuracy, np.zeros((size, len(SEEDS)), np.int32))
        return dataclasses.replace(pool, configurations=list(map(pool.active, configurations)))

    def config(self, configuration: int) -> Config:
        """The configuration as it is run, with held-out validation data."""
        return on_validation(with_params(self.pinned, self.configurations[configuration]), SEARCH.validation)

    def groups(self) -> list[list[int]]:
        """The configurations that are not measured, in groups that can be simulated together."""
        groups: list[list[int]] = []
        for configuration in np.flatnonzero(~self.measured).tolist():
            for group in groups:
                pair = [self.config(group[0]), self.config(configuration)]
                if len(group) < TOGETHER and stackable(pair):
                    group.append(configuration)
                    break
            else:
                groups.append([configuration])
        return groups

    def measure(self, configurations: Sequence[int]) -> CurvePool:
        """This pool with the curves of configurations of one group."""
        work, began = WORKLOADS[self.workload], time.process_time()
        execution = Execution(
            device="cpu",
            backend="stacked" if len(configurations) > 1 else "loop",
            moments=(METHODS[self.method].headline,),
        )
        configs = [self.config(configuration) for configuration in configurations]
        results = simulate_configs(configs, work.data, work.split, SEEDS, execution)
        for configuration, of_seeds in zip(configurations, results, strict=True):
            self.accuracy[configuration] = [self._curve(result) for result in of_seeds]
            self.samples[configuration] = [max(result.measured.samples, 1) for result in of_seeds]
        return dataclasses.replace(self, seconds=self.seconds + time.process_time() - began)

    def _curve(self, result: Result) -> list[float]:
        metrics = result.metrics
        if metrics.diverged_at is not None:
            return [WORST] * len(self.rounds)
        reached = {entry.round: entry.moments[metrics.headline].pooled for entry in metrics.rounds}
        return [reached[number] for number in self.rounds]


def evaluations(workload: str) -> list[int]:
    """The rounds after which there is an evaluation."""
    work = WORKLOADS[workload]
    return [*range(work.eval_every, work.rounds + 1, work.eval_every)]


def _value(domain: BaseDistribution, place: float) -> Any:
    """The value at a position in a range or among choices; real numbers are rounded."""
    value = value_at(domain, place)
    return float(f"{value:.5g}") if isinstance(domain, FloatDistribution) else value


def save(file: Path, known: Sequence[CurvePool], evaluated: int) -> None:
    """Write the pools of a workload.

    Args:
        evaluated: validation samples of all clients.
    """
    widest = max(len(pool.space) for pool in known)
    parameters = np.full((len(known), len(known[0].samples), widest), np.nan, np.float32)
    for own, pool in zip(parameters, known, strict=True):
        for row, params in zip(own, pool.configurations, strict=True):
            for place, (name, domain) in enumerate(pool.space.items()):
                if name in params:
                    row[place] = _number(domain, params[name])
    spaces = [{name: distribution_to_json(domain) for name, domain in pool.space.items()} for pool in known]
    arrays = {
        "methods": np.array([pool.method for pool in known]),
        "seeds": np.array(SEEDS, np.int32),
        "rounds": np.array(known[0].rounds, np.int32),
        "evaluated": np.int32(evaluated),
        "correct": np.array([pool.accuracy * evaluated / 100 for pool in known]).round().astype(np.uint16),
        "samples": np.array([pool.samples for pool in known], np.int32),
        "seconds": np.array([pool.seconds for pool in known], np.float32),
        "spaces": np.array([json.dumps(space) for space in spaces]),
        "parameters": parameters,
    }
    # A fifth smaller than with np.savez_compressed.
    with replacing(file) as out, zipfile.ZipFile(out, "w", zipfile.ZIP_BZIP2) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as entry:
                np.lib.format.write_array(entry, np.asarray(array))


def _number(domain: BaseDistribution, value: Any) -> float:
    """A value as it is stored; a pinned one may be outside its range, where Optuna rejects it."""
    return float(domain.choices.index(value) if isinstance(domain, CategoricalDistribution) else value)


def read(file: Path) -> list[CurvePool]:
    """The pools in a file without `LEFT_OUT`, including incomplete ones; none if there is no file."""
    if not file.exists():
        return []
    with np.load(file) as archive:
        arrays = dict(archive)
    known = []
    for place, method in enumerate(arrays["methods"].tolist()):
        if method in LEFT_OUT:
            continue
        texts = json.loads(str(arrays["spaces"][place]))
        space = {name: json_to_distribution(text) for name, text in texts.items()}
        known.append(
            CurvePool(
                file.stem,
                method,
                space,
                [_params(space, row) for row in arrays["parameters"][place]],
                arrays["correct"][place] * (100 / float(arrays["evaluated"])),
                arrays["samples"][place],
                float(arrays["seconds"][place]),
            )
        )
    return known


def _params(space: Mapping[str, Any], row: np.ndarray) -> dict[str, Any]:
    pairs = zip(space.items(), row, strict=False)
    # The shortest decimal number that float32 rounds to this value is the one that was rounded to it.
    return {
        name: domain.to_external_repr(float(str(value)))
        for (name, domain), value in pairs
        if not math.isnan(value)
    }


def _by_method(file: Path) -> dict[str, CurvePool]:
    return {pool.method: pool for pool in read(file)}


def pools(folder: Path = CURVES, *, held_out: bool = False) -> list[CurvePool]:
    """The complete pools of a folder: those held out, or all others."""
    every = (pool for file in sorted(folder.glob("*.npz")) for pool in read(file))
    return [pool for pool in every if pool.measured.all() and (pool.method in HELD_OUT) == held_out]


def main(
    workload: Annotated[list[str] | None, typer.Option(help="One of the workloads; by default all.")] = None,
    method: Annotated[list[str] | None, typer.Option(help="One of the methods; by default all.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Begin no simulation after this time.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the pools.")] = CURVES,
) -> None:
    """Measure the missing curves, one pool after another."""
    end = time.monotonic() + 60 * minutes if minutes is not None else math.inf
    check_names("workload", workload or (), WORKLOADS)
    for name in workload or WORKLOADS:
        for line in make(name, method or [*METHODS], out / f"{name}.npz", end):
            print(line, flush=True)


def make(
    workload: str, methods: Sequence[str], file: Path, end: float, size: int = CONFIGURATIONS
) -> Iterator[str]:
    """Measure the missing curves of a workload until ``end`` (monotonic clock); a line per pool.

    Args:
        size: configurations of a new pool.
    """
    work = WORKLOADS[workload]
    validation = work.split.with_validation(SEARCH.validation, work.data.labels).test
    for method in methods:
        try:
            pool = _by_method(file).get(method) or CurvePool.new(workload, method, size)
            for group in pool.groups():
                if time.monotonic() < end:
                    pool = pool.measure(group)  # some methods reject the model only here
                    with folder_lock(file.parent):  # other processes may have saved their methods since
                        known = _by_method(file) | {method: pool}
                        save(file, [*known.values()], sum(map(len, validation)))
        except InvalidInput as error:
            yield f"{workload}/{method}: left out: {first_line(error)}"
        else:
            measured, seconds = pool.measured, pool.seconds
            yield f"{workload}/{method}: {measured.sum()} of {len(measured)} configurations, {seconds:.0f} s"


if __name__ == "__main__":
    run(main)
