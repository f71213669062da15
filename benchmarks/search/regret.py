"""Searches at equal training samples: ours, and Optuna's TPE, GP, Hyperband and random search.

`python -m benchmarks.search.regret` replays them on the pools of `benchmarks.search.pools`: a proposal gets
the curve of the nearest configuration that its search has not tried yet. A fifth of the pools is left out
while the search is developed; ``--held-out`` replays on these alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, NamedTuple

import numpy as np
import optuna
import typer
from scipy.stats import rankdata, t

from benchmarks.search.pools import CURVES, SEARCH, SEEDS, CurvePool, pools
from benchmarks.search.workload import FOLDER
from benchmarks.workload import run
from pfl.core.errors import InvalidInput
from pfl.core.files import write_text
from pfl.core.text import csv_text
from pfl.methods import METHODS
from pipeline.algorithms._starts import place_of
from pipeline.report.plots import COLOURS, STYLE, WIDTH
from pipeline.spec.search_space import PINNED_TRIAL, with_params
from pipeline.svg import svg_text
from pipeline.sweep.budget import REDUCTION, Account, Outcome, SearchPlan, SearchStep
from pipeline.sweep.halving import brackets
from pipeline.sweep.search import Study, plan_of

REPLAYS = 20
"""Of each search on each pool, with a sampler seed of its own; the training seeds take turns."""
BUDGET = 27
"""Of a search, in runs of the pinned configuration, counted in training samples."""
COSTS = np.arange(1.0, BUDGET + 1)
SHOWN = (3.0, 9.0, 27.0)
"""Costs in the page's table; a cell with ``budget: 3`` and three seeds costs 9."""
INACTIVE = 0.5
"""The place of a conditional parameter without effect, in the distance between configurations."""


class Replay:
    """A search on one pool: what it has spent, and the best configuration that it knows.

    The incumbent is at first the pinned configuration; another one takes its place if it has a higher
    accuracy after the last round, with the seed of this replay.

    Args:
        number: of the replay; it determines the seeds.

    Attributes:
        seed: of the sampler.
        tried: the configuration of every trial, the pinned one (0) first.
    """

    def __init__(self, pool: CurvePool, number: int):
        self.pool, self.seed = pool, number
        self.tried: list[int] = []
        self._place = number % len(SEEDS)
        self._best = float(pool.accuracy[0, self._place, -1])
        self._progress = [(0.0, float(pool.final[0]))]
        self._spent = 0.0
        self._positions = np.array([self._position(params) for params in pool.configurations])

    @property
    def is_over(self) -> bool:
        return self._spent >= BUDGET or len(self.tried) == len(self.pool.configurations)

    def choose(self, params: Mapping[str, Any]) -> int:
        """The number of a new trial with ``params``, or with the nearest ones that are left in the pool."""
        away = np.abs(self._positions - self._position(params)).sum(axis=1)
        away[self.tried] = np.inf
        self.tried.append(int(away.argmin()) if self.tried else PINNED_TRIAL)
        return len(self.tried) - 1

    def train(self, trial: int, after: int, until: int) -> Outcome:
        """The outcome of a trial that is trained from one round to another."""
        configuration, rounds = self.tried[trial], self.pool.rounds
        samples, pinned = self.pool.samples[[configuration, PINNED_TRIAL], self._place].tolist()
        self._spent += samples / pinned * (until - after) / rounds[-1]
        value = float(self.pool.accuracy[configuration, self._place, rounds.index(until)])
        if until == rounds[-1] and value > self._best:
            self._best = value
            self._progress.append((self._spent, float(self.pool.final[configuration])))
        return Outcome(value, round(samples * until / rounds[-1]))

    @property
    def regrets(self) -> np.ndarray:
        """For each of `COSTS`, points between the incumbent and the best of the pool, as means over seeds."""
        known = [[final for spent, final in self._progress if spent <= cost + 1e-9][-1] for cost in COSTS]
        return float(self.pool.final.max()) - np.array(known)

    def _position(self, params: Mapping[str, Any]) -> list[float]:
        active = self.pool.active(params)
        return [
            place_of(one, active[name]) if name in active else INACTIVE
            for name, one in self.pool.space.items()
        ]


class Proposals:
    """Our proposals, whose configurations are those of the pool."""

    def __init__(self, replay: Replay):
        self._replay = replay
        self.study = Study(replay.pool.pinned, SEARCH.model_copy(update={"seed": replay.seed}))

    def ask(self, count: int) -> list[int]:
        left = len(self._replay.pool.configurations) - len(self._replay.tried)
        trials = self.study.ask(min(count, left))
        return [self._replay.choose(self.study.asked[trial]) for trial in trials]

    def warm_up(self, trial: int) -> int:
        params = self._replay.pool.configurations[self._replay.tried[trial]]
        config = with_params(self._replay.pool.pinned, params)
        return METHODS[config.method].from_dict(config.hyperparameters).warm_up(config.rounds)

    def tell(self, trial: int, until: int, outcome: Outcome, ended: bool) -> None:
        self.study.tell(trial, until, outcome, ended)


def ours(pool: CurvePool, number: int) -> np.ndarray:
    """The pipeline's search without its final comparison; the `Replay.regrets`."""
    replay = Replay(pool, number)
    plan = plan_of(pool.pinned, SEARCH, SEEDS)
    plan = SearchPlan(plan.rungs, (0,), BUDGET * plan.rounds)
    steps = brackets(Proposals(replay), Account(plan))

    def trained(step: SearchStep) -> Outcome:
        return replay.train(step.trial, step.after, step.until)

    try:
        batch = next(steps)
        while True:
            batch = steps.send(list(map(trained, batch)))
    except StopIteration:
        return replay.regrets


def optuna_search(
    sampler: Callable[[int], optuna.samplers.BaseSampler], *, hyperband: bool = False
) -> Callable[[CurvePool, int], np.ndarray]:
    """A sampler of Optuna with its defaults, one trial after another; the pinned configuration is the first.

    Args:
        hyperband: stop trials by Optuna's Hyperband at any evaluation; by default all run to the end.
    """

    def search(pool: CurvePool, number: int) -> np.ndarray:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        replay, last = Replay(pool, number), pool.rounds[-1]
        pruner = optuna.pruners.HyperbandPruner(pool.rounds[0], last, REDUCTION) if hyperband else None
        study = optuna.create_study(
            direction="maximize",
            sampler=sampler(number),
            pruner=pruner or optuna.pruners.NopPruner(),
            study_name=f"replay {number}",  # which Hyperband's brackets depend on
        )
        pinned = pool.configurations[0]
        study.enqueue_trial({name: value for name, value in pinned.items() if holds(pool.space[name], value)})
        while not replay.is_over:
            proposal = study.ask(pool.space)
            trial, after, state = replay.choose(proposal.params), 0, optuna.trial.TrialState.COMPLETE
            value = -math.inf
            for until in pool.rounds:
                value = replay.train(trial, after, until).value or 0.0
                after = until
                proposal.report(value, until)
                if proposal.should_prune():
                    state = optuna.trial.TrialState.PRUNED
                    break
            study.tell(proposal, value if state == optuna.trial.TrialState.COMPLETE else None, state=state)
        return replay.regrets

    return search


def holds(one: Any, value: Any) -> bool:
    """Whether a distribution has a value, which a pinned one may be outside."""
    return bool(one._contains(one.to_internal_repr(value)))


SEARCHES: dict[str, Callable[[CurvePool, int], np.ndarray]] = {
    "ours": ours,
    "TPE": optuna_search(lambda seed: optuna.samplers.TPESampler(seed=seed)),
    "GP": optuna_search(lambda seed: optuna.samplers.GPSampler(seed=seed)),
    "Hyperband": optuna_search(lambda seed: optuna.samplers.TPESampler(seed=seed), hyperband=True),
    "random": optuna_search(lambda seed: optuna.samplers.RandomSampler(seed=seed)),
}


class RegretRow(NamedTuple):
    """The outcome of a search on a pool at a cost: means over the replays, and the half width of a 95 %
    interval of the mean regret over the replays."""

    workload: str
    method: str
    search: str
    runs: float
    regret: float
    interval: float
    rank: float


def replayed(pool: CurvePool) -> list[RegretRow]:
    """All searches on one pool."""
    regrets = np.array([[search(pool, number) for number in range(REPLAYS)] for search in SEARCHES.values()])
    ranks = rankdata(regrets.round(6), axis=0).mean(axis=1)
    means, halves = regrets.mean(axis=1), half_width(regrets, axis=1)
    return [
        RegretRow(
            *(pool.workload, pool.method, name, float(cost)),
            *(float(values[place, at]) for values in (means, halves, ranks)),
        )
        for place, name in enumerate(SEARCHES)
        for at, cost in enumerate(COSTS)
    ]


def half_width(values: np.ndarray, axis: int) -> np.ndarray:
    """Half of a 95 % interval of the mean, by the t-distribution; 0 for a single value."""
    count = values.shape[axis]
    if count < 2:
        return np.zeros(np.delete(values.shape, axis))
    half: np.ndarray = t.ppf(0.975, count - 1) * values.std(axis=axis, ddof=1) / math.sqrt(count)
    return half


def main(
    folder: Annotated[Path, typer.Option("--pools", help="Folder of the pools.")] = CURVES,
    out: Annotated[Path, typer.Option(help="Folder of the page.")] = FOLDER,
    held_out: Annotated[bool, typer.Option("--held-out", help="Use the pools that are kept apart.")] = False,
    smac: Annotated[bool, typer.Option("--smac", help="Also SMAC3; see benchmarks/search/smac3.py.")] = False,
) -> None:
    """Replay on all complete pools, and write the page with its rows and plot."""
    if smac:
        from benchmarks.search.smac3 import smac3

        SEARCHES["SMAC3"] = smac3
    if not (known := pools(folder, kept_apart=held_out)):
        raise InvalidInput("--pools", str(folder), "a folder with complete pools")
    rows = [row for pool in known for row in replayed(pool)]
    name = "regret-held-out" if held_out else "regret"
    write_text(out / f"{name}.csv", csv_text(RegretRow._fields, (_rounded(row) for row in rows)))
    write_text(out / f"{name}.svg", plot(rows))
    write_text(out / f"{name}.md", page(rows, name, held_out))


def _rounded(row: RegretRow) -> list[Any]:
    return [round(value, 4) if isinstance(value, float) else value for value in row]


def over_pools(rows: Sequence[RegretRow], search: str, cost: float) -> tuple[np.ndarray, np.ndarray]:
    """The mean regrets and the mean ranks of a search at a cost, one per pool."""
    own = [row for row in rows if row.search == search and row.runs == cost]
    return np.array([row.regret for row in own]), np.array([row.rank for row in own])


def plot(rows: Sequence[RegretRow]) -> str:
    """Regret and rank by cost as SVG: the mean over the pools, and a band of its 95 % interval."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 3.6), layout="constrained")
        panels = figure.subplots(1, 2)
        for colour, name in zip(COLOURS[1:], SEARCHES, strict=False):
            by_cost = [over_pools(rows, name, cost) for cost in COSTS.tolist()]
            for place, axes in enumerate(panels):
                values = np.array([of_pools[place] for of_pools in by_cost])
                mean, half = values.mean(axis=1), half_width(values, axis=1)
                axes.plot(COSTS, mean, color=colour, label=name)
                axes.fill_between(COSTS, mean - half, mean + half, color=colour, alpha=0.12, linewidth=0)
        for axes, label in zip(panels, ("regret (points)", "mean rank"), strict=True):
            axes.set_xlabel("cost (pinned runs)")
            axes.set_ylabel(label)
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper left", ncols=len(SEARCHES))
        return svg_text(figure)


def page(rows: Sequence[RegretRow], name: str, held_out: bool) -> str:
    """The page as Markdown."""
    count = len({(row.workload, row.method) for row in rows})
    which = "the pools that were kept apart" if held_out else "the pools that are not kept apart"
    lines = [
        "| Search | "
        + " | ".join(f"Regret, {cost:g} runs | Rank, {cost:g} runs" for cost in SHOWN)
        + " |\n| --- |"
        + " ---: | ---: |" * len(SHOWN)
    ]
    for search in SEARCHES:
        numbers = []
        for cost in SHOWN:
            regrets, ranks = over_pools(rows, search, cost)
            numbers += [_interval(regrets), _interval(ranks)]
        lines.append(f"| {search} | " + " | ".join(numbers) + " |")
    table = "\n".join(lines)
    return f"""# Searches replayed on learning curves

{count} pools, {which} (`benchmarks/search/pools.py` describes them).
Every search begins with the pinned configuration and gets the same number of training samples, counted in
runs of the pinned configuration. It has found the configuration with the highest accuracy with one seed; its
regret is the mean accuracy of this configuration over {len(SEEDS)} seeds, in points below the best of the
pool. Ranks are among the {len(SEARCHES)} searches, from 1 for the lowest regret. Means over {REPLAYS} replays
and all pools, ± half of a 95 % interval over the pools; [{name}.csv]({name}.csv) has each pool with its
interval over the replays.

"ours" is the pipeline's search without its final comparison. The others are Optuna's samplers with their
defaults, one trial after another; TPE and GP draw their first ten trials at random. Hyperband is Optuna's
pruner with its TPE sampler.
`python -m benchmarks.search.regret{" --held-out" if held_out else ""}` writes this page.

{table}

![Regret and rank by cost]({name}.svg)
"""


def _interval(values: np.ndarray) -> str:
    return f"{fmean(values.tolist()):.2f} ± {float(half_width(values, axis=0)):.2f}"


if __name__ == "__main__":
    run(main)
