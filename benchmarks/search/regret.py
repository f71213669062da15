"""How far searches are from the best configuration at equal training samples.

`python -m benchmarks.search.regret` replays the searches of `benchmarks.search.replay` on the pools of
`benchmarks.search.pools`. A fifth of the pools is held out from the development of the search; ``--held-out``
replays on these alone.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated, NamedTuple

import numpy as np
import typer
from scipy.stats import rankdata, t
from tqdm import tqdm

from benchmarks.search.pools import CURVES, HELD_OUT, LEFT_OUT, SEEDS, CurvePool, pools
from benchmarks.search.replay import COSTS, SEARCHES
from benchmarks.search.workload import FOLDER, WORKLOADS
from benchmarks.workload import markdown_table, run
from pfl.core.errors import InvalidInput
from pfl.core.files import write_text
from pfl.methods import METHODS
from pipeline.formatting import csv_text
from pipeline.report.plots import COLOURS, as_svg, wide_figure
from pipeline.svg import Canvas

REPLAYS = 20
"""Number per search and pool, each with its own sampler seed; the training seeds take turns."""
SHOWN = {"3 to 10": range(3, 11), "3": (3,), "9": (9,), "18": (18,)}
"""Costs in tables, several as their mean; a cell with ``budget: 3`` and three seeds costs 9."""


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
    """A row per entry of `SHOWN`, pool and search; searches with the same regrets share a row.

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
    """The index and name of each search; those with the same regrets on every pool share a name."""
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
    cells = ([f"{cell:.3f}" if isinstance(cell, float) else cell for cell in row] for row in rows)
    write_text(out / f"{name}.csv", csv_text(RegretRow._fields, cells))
    write_text(out / f"{name}.svg", plot(regrets))
    write_text(out / f"{name}.md", page(known, rows, name, held_out))


@as_svg
def plot(regrets: np.ndarray) -> Canvas:
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
    lines = []
    shown = [row for row in rows if row.runs == runs]
    for search in dict.fromkeys(row.search for row in shown):
        own = [row for row in shown if row.search == search]
        regret, rank = (
            _interval(np.array(values)) for values in zip(*((r.regret, r.rank) for r in own), strict=True)
        )
        share = fmean(row.best_or_tied for row in own)
        lines.append((search, regret, rank, f"{share:.0%}"))
    table = markdown_table(("Search", "Regret", "Rank", "Best or tied"), lines)
    return f"## After {runs} runs\n\n{table}"


def _interval(values: np.ndarray) -> str:
    return f"{fmean(values.tolist()):.2f} ± {float(half_width(values, axis=0)):.2f}"


if __name__ == "__main__":
    run(main)
