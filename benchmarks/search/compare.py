"""Searches at equal cost: successive halving with TPE, TPE on whole runs, random search on whole runs.

`python -m benchmarks.search.compare` replays them on the learning curves of `benchmarks.search.pool`: a
proposal gets the curve of the nearest configuration that its search has not tried yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import groupby
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np

from benchmarks.search.pool import (
    CONFIGURATIONS,
    POOR,
    SEARCH,
    SEEDS,
    Curve,
    configurations,
    curves,
    params_of,
    position,
)
from benchmarks.search.workload import FOLDER, METHODS, WORKLOADS
from pfl.core.files import write_text
from pfl.core.rng import generator
from pfl.core.text import csv_text
from pfl.methods import METHODS as KNOWN
from pipeline.report.plots import COLOURS, STYLE, WIDTH
from pipeline.spec.search_space import PINNED_TRIAL, with_params
from pipeline.svg import svg_text
from pipeline.sweep.budget import Account, Outcome, SearchPlan, SearchStep
from pipeline.sweep.halving import brackets
from pipeline.sweep.search import Study, plan_of

SAMPLERS = 20
BUDGET = 9
"""Of a search, in runs of the pinned configuration."""
SHOWN = (5, 6, 7, 8, 9)

Progress = list[tuple[float, float]]
"""What has been spent, in runs of the pinned configuration, and the accuracy of the best configuration."""


@cache
def pool(workload: str) -> dict[tuple[str, int, int], Curve]:
    """The curves by method, configuration and seed."""
    return {(curve.method, curve.configuration, curve.seed): curve for curve in curves(workload)}


def final(workload: str, method: str, configuration: int) -> float:
    """The accuracy of a configuration of the pool after the last round, the mean over the seeds."""
    rounds = WORKLOADS[workload].pinned(method).rounds
    return fmean(pool(workload)[method, configuration, seed].accuracies[rounds] for seed in SEEDS)


class SearchCost(NamedTuple):
    """What a search has found at some cost.

    Attributes:
        runs: the cost in runs of the pinned configuration.
        accuracy: of the best configuration so far; 0 before the first.
    """

    workload: str
    method: str
    search: str
    sampler: int
    runs: int
    accuracy: float


class Replay:
    """Proposals of the search, whose configurations are those of the pool.

    Args:
        poor: the pinned learning rate is a hundred times too low.

    Attributes:
        chosen: the configuration of every trial in the pool; that of trial 0 is the pinned one.
        study: of Optuna, which proposes.
        progress: so far, without the pinned configuration; the best is by the accuracy with one seed, and its
            accuracy the mean over all.
    """

    def __init__(self, workload: str, method: str, sampler: int, poor: bool = False):
        self._workload, self._method = workload, method
        self._numbers = [POOR, *range(1, CONFIGURATIONS), 0] if poor else [*range(CONFIGURATIONS)]
        self._configurations = [params_of(workload, method, number) for number in self._numbers]
        self._pinned = with_params(WORKLOADS[workload].pinned(method), self._configurations[0])
        self._curves = pool(workload)
        self._seed = SEEDS[sampler % len(SEEDS)]
        self.study = Study(self._pinned, SEARCH.model_copy(update={"seed": sampler}))
        self._places = np.array([self._position(params) for params in self._configurations])
        self.chosen: list[int] = []
        self.progress: Progress = []
        self._spent, self._best = 0.0, -1.0

    def ask(self, count: int) -> list[int]:
        trials = self.study.ask(count)
        for trial in trials:
            away = np.abs(self._places - self._position(self.study.asked[trial])).sum(axis=1)
            away[np.isin(self._numbers, self.chosen)] = np.inf
            self.chosen.append(self._numbers[int(away.argmin())])
        return trials

    def warm_up(self, trial: int) -> int:
        config = with_params(self._pinned, params_of(self._workload, self._method, self.chosen[trial]))
        return KNOWN[config.method].from_dict(config.hyperparameters).warm_up(config.rounds)

    def tell(self, trial: int, until: int, outcome: Outcome, ended: bool) -> None:
        self.study.tell(trial, until, outcome, ended)

    def run(self, step: SearchStep) -> Outcome:
        """The outcome of a step, with `progress` brought up to date."""
        rounds = self._pinned.rounds
        curve = self._curves[self._method, self.chosen[step.trial], self._seed]
        whole = self._curves[self._method, 0, self._seed].samples
        self._spent += curve.samples / whole * (step.until - step.after) / rounds
        value = curve.accuracies[step.until]
        if step.trial != PINNED_TRIAL and step.until == rounds and value > self._best:
            self._best = value
            accuracy = final(self._workload, self._method, self.chosen[step.trial])
            self.progress.append((self._spent, accuracy))
        return Outcome(value, round(curve.samples * step.until / rounds))

    @property
    def is_over(self) -> bool:
        return self._spent >= BUDGET or len(self.chosen) == len(self._places)

    def _position(self, params: Mapping[str, Any]) -> list[float]:
        return position(self._workload, self._method, params)


def halving(workload: str, method: str, sampler: int) -> Progress:
    """The search of the pipeline, up to the comparison of its finalists."""
    replay, config = Replay(workload, method, sampler), WORKLOADS[workload].pinned(method)
    plan = SearchPlan(plan_of(config, SEARCH, SEEDS).rungs, (0,), BUDGET * config.rounds)
    steps = brackets(replay, Account(plan))
    try:
        batch = next(steps)
        while True:
            batch = steps.send([replay.run(step) for step in batch])
    except StopIteration:
        return replay.progress


def whole_runs(workload: str, method: str, sampler: int) -> Progress:
    """TPE whose every trial runs to the end."""
    replay, rounds = Replay(workload, method, sampler), WORKLOADS[workload].pinned(method).rounds
    while not replay.is_over:
        (trial,) = replay.ask(1)
        replay.tell(trial, rounds, replay.run(SearchStep(trial, 0, 0, rounds)), ended=True)
    return replay.progress


def random(workload: str, method: str, sampler: int) -> Progress:
    """Configurations of the pool in random order after the pinned one, each run to the end."""
    replay, rounds = Replay(workload, method, sampler), WORKLOADS[workload].pinned(method).rounds
    others = len(configurations(workload, method)) - 1
    order = 1 + generator(sampler, f"random search {method}").permutation(others)
    for trial, configuration in enumerate((0, *order.tolist())):
        if not replay.is_over:
            replay.chosen.append(configuration)
            replay.run(SearchStep(trial, 0, 0, rounds))
    return replay.progress


SEARCHES: dict[str, Callable[[str, str, int], Progress]] = {
    "successive halving": halving,
    "TPE on whole runs": whole_runs,
    "random search": random,
}


def at(progress: Progress, cost: float) -> float:
    """The accuracy of the best configuration after so much has been spent; 0 before the first."""
    return [0.0, *(accuracy for spent, accuracy in progress if spent <= cost + 1e-9)][-1]


def changes(rows: Sequence[SearchCost]) -> list[SearchCost]:
    """The first row of each search, and those at which its rounded accuracy changes."""
    rounded = (row._replace(accuracy=round(row.accuracy, 3)) for row in rows)
    return [next(same) for _, same in groupby(rounded, key=lambda row: row._replace(runs=0))]


def main() -> None:
    """Replay, and write the report with its rows."""
    rows = [
        SearchCost(workload, method, name, sampler, cost, at(progress, cost))
        for workload in WORKLOADS
        for method in METHODS
        for name, search in SEARCHES.items()
        for sampler in range(SAMPLERS)
        for progress in [search(workload, method, sampler)]
        for cost in range(1, BUDGET + 1)
    ]
    write_text(FOLDER / "compare.csv", csv_text(SearchCost._fields, changes(rows)))
    write_text(FOLDER / "compare.svg", plot(rows))
    write_text(FOLDER / "compare.md", report(rows))


def accuracies(rows: list[SearchCost], workload: str, method: str, search: str, cost: int) -> list[float]:
    """What each sampler seed has found at that cost; 0 before the first."""
    place = (workload, method, search)
    return [row.accuracy for row in rows if row[:3] == place and row.runs == cost]


def plot(rows: list[SearchCost]) -> str:
    """Accuracy against cost as SVG: the median over the samplers, and a band between the quartiles."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    costs = range(1, BUDGET + 1)
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 2.4 * len(WORKLOADS) + 0.4), layout="constrained")
        panels = figure.subplots(len(WORKLOADS), len(METHODS), sharex=True)
        for workload, line in zip(WORKLOADS, panels, strict=True):
            for method, axes in zip(METHODS, line, strict=True):
                for colour, name in zip(COLOURS[1:], SEARCHES, strict=False):
                    reached = [
                        [value or np.nan for value in accuracies(rows, workload, method, name, cost)]
                        for cost in costs
                    ]
                    low, middle, high = np.quantile(reached, (0.25, 0.5, 0.75), axis=1)
                    axes.plot(costs, middle, color=colour, label=name)
                    axes.fill_between(costs, low, high, color=colour, alpha=0.15, linewidth=0)
                axes.set_title(f"{workload}, {method}")
            line[0].set_ylabel("validation accuracy (%)")
        for axes in panels[-1]:
            axes.set_xlabel("cost (pinned runs)")
        figure.legend(
            *figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(SEARCHES)
        )
        return svg_text(figure)


def report(rows: list[SearchCost]) -> str:
    """The page as Markdown: a table per workload, then the range of the learning rate."""
    heading = f"""# Searches at equal cost

Median over {SAMPLERS} sampler seeds of the validation accuracy of the best configuration that a search has
found, after {", ".join(map(str, SHOWN))} runs of the pinned configuration, counted in training samples. Every
search begins with a run of the pinned configuration, which is not counted as found. The best is the one with
the highest accuracy with one seed; its accuracy is the mean over {len(SEEDS)} seeds.

The searches are replayed on a pool of {CONFIGURATIONS} configurations of each method and workload, whose
learning curves are measured (`pool-<workload>.csv`): a proposal gets the curve of the nearest configuration
that the search has not tried yet. [compare.csv](compare.csv) has every search,
with a line per change of its accuracy;
`python -m benchmarks.search.compare` replays them. Before the end of its first bracket, successive halving
has found nothing ("–").

![Accuracy of the best configuration by cost](compare.svg)
"""
    sections = [section(rows, workload) for workload in WORKLOADS]
    return "\n".join([heading, *sections, learning_rates()])


def section(rows: list[SearchCost], workload: str) -> str:
    """The medians over the samplers on one workload as Markdown, with the best configuration of the pool."""
    one, config = WORKLOADS[workload], WORKLOADS[workload].pinned(METHODS[0])
    rungs = ", ".join(map(str, plan_of(config, SEARCH, SEEDS).rungs))
    costs = " | ".join(f"{cost} runs" for cost in SHOWN)
    lines = [
        f"""## {workload}

{one.dataset}, `{one.partition}`, {one.clients} clients, `{config.model}`. Rungs after rounds {rungs}.

| Method | Search | Pinned | {costs} | Best of the pool |
| --- | --- | ---: |{" ---: |" * len(SHOWN)} ---: |"""
    ]
    for method in METHODS:
        finals = [final(workload, method, number) for number in range(CONFIGURATIONS)]
        for name in SEARCHES:
            medians = [median(accuracies(rows, workload, method, name, cost)) for cost in SHOWN]
            shown = " | ".join(f"{value:.2f}" if value else "–" for value in medians)
            lines.append(f"| {method} | {name} | {finals[0]:.2f} | {shown} | {max(finals):.2f} |")
    return "\n".join(lines) + "\n"


def learning_rates() -> str:
    """Where the best quarter of the pool lies in the range of the learning rate, as Markdown."""
    lines = [
        """## The range of the learning rate

The default range is 0.001 to 0.3.

| Workload | Method | Learning rates of the best quarter | Best accuracy below 0.01 |
| --- | --- | ---: | ---: |"""
    ]
    for workload in WORKLOADS:
        for method in METHODS:
            tried = configurations(workload, method)
            finals = [final(workload, method, number) for number in range(len(tried))]
            ranked = sorted(range(len(tried)), key=finals.__getitem__, reverse=True)
            best = [tried[number]["lr"] for number in ranked[: len(tried) // 4]]
            low = max(finals[number] for number in ranked if tried[number]["lr"] < 0.01)
            lines.append(f"| {workload} | {method} | {min(best):.3f} to {max(best):.3f} | {low:.2f} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
