"""Searches at equal training samples: ours, and Optuna's TPE, GP, Hyperband and random search.

`python -m benchmarks.search.regret` replays them on the pools of `benchmarks.search.pools`: a proposal gets
the curve of the nearest configuration that its search has not tried yet. A fifth of the pools is held out
from the development of the search; ``--held-out`` replays on these alone.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import optuna
import typer
from scipy.stats import rankdata, t
from tqdm import tqdm

from benchmarks.search.pools import CURVES, HELD_OUT, LEFT_OUT, SEARCH, SEEDS, CurvePool, pools
from benchmarks.search.workload import FOLDER, WORKLOADS
from benchmarks.workload import run
from pfl.core.errors import InvalidInput
from pfl.core.files import write_text
from pfl.core.text import csv_text
from pfl.methods import METHODS
from pipeline.algorithms._starts import place_of
from pipeline.report.plots import COLOURS, as_svg, wide_figure
from pipeline.spec.search_space import PINNED_TRIAL, with_params
from pipeline.sweep.budget import REDUCTION, Account, Outcome, SearchPlan, SearchStep
from pipeline.sweep.halving import brackets
from pipeline.sweep.search import Study, plan_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REPLAYS = 20
"""Of each search on each pool, with a sampler seed of its own; the training seeds take turns."""
BUDGET = 18
"""Of a search, in runs of the pinned configuration, counted in training samples."""
COSTS = np.arange(1.0, BUDGET + 1)
SHOWN = {"3 to 10": range(3, 11), "3": (3,), "9": (9,), "18": (18,)}
"""Costs in tables, several as their mean; a cell with ``budget: 3`` and three seeds costs 9."""
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
            place_of(domain, active[name]) if name in active else INACTIVE
            for name, domain in self.pool.space.items()
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


def complete(replay: Replay, proposals: Proposals, plan: SearchPlan) -> dict[int, float]:
    """Replay our search to its end; the values of the trials that reached the last round."""
    steps = brackets(proposals, Account(plan))

    def trained(step: SearchStep) -> Outcome:
        return replay.train(step.trial, step.after, step.until)

    try:
        batch = next(steps)
        while True:
            batch = steps.send(list(map(trained, batch)))
    except StopIteration as end:
        values: dict[int, float] = end.value
        return values


def ours(pool: CurvePool, number: int) -> np.ndarray:
    """The pipeline's search without its final comparison; the `Replay.regrets`."""
    replay = Replay(pool, number)
    plan = plan_of(pool.pinned, SEARCH, SEEDS)
    complete(replay, Proposals(replay), SearchPlan(plan.rungs, (0,), BUDGET * plan.rounds))
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


def holds(domain: Any, value: Any) -> bool:
    """Whether a distribution has a value, which a pinned one may be outside."""
    if isinstance(domain, optuna.distributions.CategoricalDistribution):
        return value in domain.choices
    return bool(domain.low <= value <= domain.high)


SEARCHES: dict[str, Callable[[CurvePool, int], np.ndarray]] = {
    "ours": ours,
    "TPE": optuna_search(lambda seed: optuna.samplers.TPESampler(seed=seed)),
    "GP": optuna_search(lambda seed: optuna.samplers.GPSampler(seed=seed)),
    "Hyperband": optuna_search(lambda seed: optuna.samplers.TPESampler(seed=seed), hyperband=True),
    "random": optuna_search(lambda seed: optuna.samplers.RandomSampler(seed=seed)),
}


class RegretRow(NamedTuple):
    """The outcome of a search on a pool at some costs: means over the replays.

    Attributes:
        search: its name, or the names of all that have the same regrets on every pool.
        runs: the costs, one of `SHOWN`.
        regret: in points.
        interval: half of a 95 % interval of ``regret`` over the replays.
        rank: from 1 for the lowest regret; searches in one row count once.
        best_or_tied: the regret is the lowest, or the mean difference from the lowest over the replays is not
            significant (two-sided paired t-test at 5 %, given the training seeds of the pools).
    """

    workload: str
    method: str
    search: str
    runs: str
    regret: float
    interval: float
    rank: float
    best_or_tied: bool


def replayed(pool: CurvePool) -> np.ndarray:
    """The regrets of all searches on one pool, (searches, replays, costs)."""
    return np.array([[search(pool, number) for number in range(REPLAYS)] for search in SEARCHES.values()])


def rows_of(known: Sequence[CurvePool], regrets: np.ndarray) -> list[RegretRow]:
    """A row per entry of `SHOWN`, pool and search, of which those with the same regrets are one.

    Args:
        regrets: (pools, searches, replays, costs).
    """
    rows = []
    for runs, costs in SHOWN.items():
        shown = regrets[..., np.isin(COSTS, costs)]
        searches = distinct(shown)
        for pool, values in zip(known, shown[:, [*searches]].mean(axis=3), strict=True):
            means, ranks = values.mean(axis=1), ranked(values).mean(axis=1)
            behind = values - values[means.argmin()]
            tied = behind.mean(axis=1) <= half_width(behind, axis=1) + 1e-9
            columns = (column.tolist() for column in (means, half_width(values, axis=1), ranks, tied))
            rows += [
                RegretRow(pool.workload, pool.method, name, runs, *numbers)
                for name, *numbers in zip(searches.values(), *columns, strict=True)
            ]
    return rows


def distinct(regrets: np.ndarray) -> dict[int, str]:
    """The place and name of each search; those with the same regrets on every pool have one name."""
    equal: dict[int, list[str]] = {}
    for place, name in enumerate(SEARCHES):
        same = (first for first in equal if (regrets[:, first] == regrets[:, place]).all())
        equal.setdefault(next(same, place), []).append(name)
    return {
        place: f"random start ({', '.join(names)})" if len(names) > 1 else names[0]
        for place, names in equal.items()
    }


def ranked(regrets: np.ndarray) -> np.ndarray:
    """The ranks of the searches, which are the first axis."""
    ranks: np.ndarray = rankdata(regrets.round(6), axis=0)
    return ranks


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
    held_out: Annotated[bool, typer.Option("--held-out", help="Use the pools that are held out.")] = False,
    smac: Annotated[bool, typer.Option("--smac", help="Also SMAC3; see benchmarks/search/smac3.py.")] = False,
) -> None:
    """Replay on all complete pools, and write the page with its rows and plot."""
    if smac:
        from benchmarks.search.smac3 import smac3

        SEARCHES["SMAC3"] = smac3
    if not (known := pools(folder, held_out=held_out)):
        raise InvalidInput("--pools", str(folder), "a folder with complete pools")
    regrets = np.array([replayed(pool) for pool in tqdm(known, disable=None)])
    rows = rows_of(known, regrets)
    name = "regret-held-out" if held_out else "regret"
    write_text(out / f"{name}.csv", csv_text(RegretRow._fields, map(_cells, rows)))
    write_text(out / f"{name}.svg", plot(regrets))
    write_text(out / f"{name}.md", page(known, rows, name, held_out))


def _cells(row: RegretRow) -> list[Any]:
    return [f"{value:.3f}" if isinstance(value, float) else value for value in row]


@as_svg
def plot(regrets: np.ndarray) -> Figure:
    """Regret and rank by cost: the mean over the pools, and a band of its 95 % interval.

    Args:
        regrets: (pools, searches, replays, costs).
    """
    figure = wide_figure(3.6)
    panels = figure.subplots(1, 2)
    ranks = np.array([ranked(own) for own in regrets])
    for axes, values, label in zip(panels, (regrets, ranks), ("regret (points)", "mean rank"), strict=True):
        of_pools = values.mean(axis=2)
        means, halves = of_pools.mean(axis=0), half_width(of_pools, axis=0)
        for colour, name, mean, half in zip(COLOURS[1:], SEARCHES, means, halves, strict=False):
            axes.plot(COSTS, mean, color=colour, label=name)
            axes.fill_between(COSTS, mean - half, mean + half, color=colour, alpha=0.12, linewidth=0)
        axes.set_xticks(COSTS[2::3])
        axes.set_xlabel("cost (pinned runs)")
        axes.set_ylabel(label)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper left", ncols=len(SEARCHES))
    return figure


def page(known: Sequence[CurvePool], rows: Sequence[RegretRow], name: str, held_out: bool) -> str:
    """The page as Markdown."""
    which = "held out from the development of the search" if held_out else "for developing the search"
    options = " --held-out" * held_out + " --smac" * ("SMAC3" in SEARCHES)
    smac = "SMAC3 is not among the searches here."
    if "SMAC3" in SEARCHES:
        smac = "SMAC3 is its facade for hyperparameters: a random forest with expected improvement."
    table = "\n\n".join(section(rows, runs) for runs in SHOWN)
    return f"""# Searches replayed on learning curves

Pools of {len(known[0].configurations)} configurations, {which}.
`benchmarks/search/pools.py` describes them.

{measured(known, held_out)}

Every search begins with the pinned configuration and gets the same number of training samples, counted in
runs of the pinned configuration. It has found the configuration with the highest accuracy with one seed; its
regret is the mean accuracy of this configuration over {len(SEEDS)} seeds, in points below the best of the
pool. Ranks are among the rows of a table, from 1 for the lowest regret. Means over {REPLAYS} replays and all
pools, ± half of a 95 % interval over the pools. "Best or tied" is the share of pools on which the search has
the lowest mean regret, or one that does not differ significantly from it (paired t-test over the replays at
5 %). The test holds given these {len(SEEDS)} training seeds, not for others.
[{name}.csv]({name}.csv) has each pool with its interval over the replays.

"ours" is the pipeline's search without its final comparison. The others use their packages' defaults and
propose one trial after another. TPE and GP draw the nine trials after the pinned one at random, the same ones
as random search. These three are therefore one search up to ten runs, and one row, "random start", in the
tables that end there. Hyperband is Optuna's pruner with its TPE sampler; all others run every trial to the
last round. {smac}

`python -m benchmarks.search.regret{options}` writes this page.

{table}

![Regret and rank by cost]({name}.svg)

The ranks in the plot are among all {len(SEARCHES)} searches. Where two are the same, one line hides another.
"""


def measured(known: Sequence[CurvePool], held_out: bool) -> str:
    """A list in Markdown of the pools of each workload, and of those that are missing or incomplete."""
    lines = []
    for workload in WORKLOADS:
        methods = sorted(pool.method for pool in known if pool.workload == workload)
        missing = sorted(
            name for name in {*METHODS} - {*methods, *LEFT_OUT} if (name in HELD_OUT) == held_out
        )
        line = f"* `{workload}`, {len(methods)} methods: {', '.join(methods)}."
        if missing:
            line += f" Missing or incomplete: {', '.join(missing)}."
        lines += textwrap.wrap(line if methods else f"* `{workload}`: not measured.", 110)
    return "\n".join(lines)


def section(rows: Sequence[RegretRow], runs: str) -> str:
    """All searches at some costs, as a table in Markdown."""
    lines = [
        f"## After {runs} runs",
        "",
        "| Search | Regret | Rank | Best or tied |",
        "| --- | ---: | ---: | ---: |",
    ]
    shown = [row for row in rows if row.runs == runs]
    for search in dict.fromkeys(row.search for row in shown):
        own = [row for row in shown if row.search == search]
        regret, rank = (
            _interval(np.array(values)) for values in zip(*((r.regret, r.rank) for r in own), strict=True)
        )
        share = fmean(row.best_or_tied for row in own)
        lines.append(f"| {search} | {regret} | {rank} | {share:.0%} |")
    return "\n".join(lines)


def _interval(values: np.ndarray) -> str:
    return f"{fmean(values.tolist()):.2f} ± {float(half_width(values, axis=0)):.2f}"


if __name__ == "__main__":
    run(main)
