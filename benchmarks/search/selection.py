"""What the search selects: how often without reason, how often it finds a gain, and from a poor start.

`python -m benchmarks.search.selection` simulates comparisons, draws others from repeated runs of pinned
configurations, and replays whole searches on the pools of `benchmarks.search.pools`.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from statistics import fmean

import numpy as np

from benchmarks.search.pools import CURVES, SEARCH, SEEDS, CurvePool, pools, read
from benchmarks.search.replay import Replay, ReplayedProposals, complete
from benchmarks.search.workload import FOLDER, WORKLOADS
from benchmarks.workload import markdown_table
from pfl.core.config import Execution
from pfl.core.files import write_text
from pfl.core.rng import generator
from pfl.run.simulate import simulate_configs
from pipeline.algorithms import Algorithm
from pipeline.spec.search_space import PINNED_TRIAL
from pipeline.sweep.halving import ranking
from pipeline.sweep.search import plan_of, selected

WORKLOAD = "digits"
METHODS = ("fedavg", "fedper", "fedrep", "pfedsim")
RUNS = range(43)
"""Seeds of the runs of each pinned configuration, which measure the noise of a comparison."""
SIMULATED = 2000
DRAWS = 500
"""Number of draws from the runs, for each method and number of seeds."""
REPLAYS = 20
TRIALS = (2, 5, 9)
GAINS = (0, 1, 2, 5)
NOISES = (0.5, 1.0, 1.5, 2.0)
BUDGETS = (1, 3)
COMPARED_SEEDS = (2, 3, 5)
STARTS = (True, False)
"""Whether half of the first trials lie near the pinned configuration."""


def chosen(values: np.ndarray) -> int:
    """What the search selects: the best with the first seed, if it is better with the others.

    Args:
        values: accuracies (configurations, seeds), the pinned configuration first.
    """
    best = int(values[:, 0].argmax())
    if best == PINNED_TRIAL:
        return PINNED_TRIAL
    return selected(best, values[0, 1:].tolist(), values[best, 1:].tolist()).trial


def simulated(gain: float, noise: float, trials: int, seeds: int) -> float:
    """The share of searches that select the one trial that is better by ``gain`` points, or any trial if all
    are equal.

    Seeds add normal noise to each configuration; effects common to all cancel and are left out.

    Args:
        noise: standard deviation in points.
        trials: number of trials that reach the last round, besides the pinned one.
    """
    rng = generator(trials, f"selection, {gain:g} points, noise {noise:g}, {seeds} seeds")
    values = rng.normal(0, noise, (SIMULATED, trials + 1, seeds + 1))
    values[:, 1] += gain
    choices = [chosen(search) for search in values]
    hits = np.array(choices) == 1 if gain else np.array(choices) != PINNED_TRIAL
    return float(hits.mean())


def repeated(method: str) -> np.ndarray:
    """The accuracies of the pinned configuration after the last round with each of `RUNS`."""
    config = CurvePool.new(WORKLOAD, method, 2).config(PINNED_TRIAL)
    work, execution = WORKLOADS[WORKLOAD], Execution(device="cpu", backend="stacked")
    (results,) = simulate_configs([config], work.data, work.split, RUNS, execution)
    return np.array([result.metrics.reached().last for result in results])


def of_copies(runs: np.ndarray, trials: int, seeds: int) -> float:
    """The share of draws in which a copy of the pinned configuration is selected; each run of a copy has
    its own seed."""
    rng = generator(seeds, f"copies, {trials} trials")
    draws = rng.choice(runs, (DRAWS, trials + 1, seeds + 1))
    return fmean(chosen(draw) != PINNED_TRIAL for draw in draws)


def noise(pool: CurvePool) -> float:
    """The standard deviation over seeds within the ten best configurations, without effects common to all."""
    best = pool.accuracy[np.argsort(-pool.final)[:10], :, -1]
    own = best - best.mean(axis=0) - best.mean(axis=1, keepdims=True) + best.mean()
    free = (best.shape[0] - 1) * (best.shape[1] - 1)
    return float(np.sqrt((own**2).sum() / free))


def poor(pool: CurvePool) -> CurvePool:
    """A pool whose pinned learning rate is a hundred times too low, with the good pinned one at its end."""
    good = pool.configurations[PINNED_TRIAL]
    start = dataclasses.replace(
        pool,
        configurations=[{**good, "lr": good["lr"] / 100}],
        accuracy=np.zeros_like(pool.accuracy[:1]),
        samples=np.zeros_like(pool.samples[:1]),
    ).measure([PINNED_TRIAL])
    return dataclasses.replace(
        pool,
        configurations=[*start.configurations, *pool.configurations[1:], good],
        accuracy=np.concatenate([start.accuracy, pool.accuracy[1:], pool.accuracy[:1]]),
        samples=np.concatenate([start.samples, pool.samples[1:], pool.samples[:1]]),
    )


def replayed(pool: CurvePool, sampler: int, budget: float, near: bool) -> int:
    """The configuration of the pool that a whole search selects.

    The pool has only three seeds, so the comparison also uses that of the trials.

    Args:
        near: whether half of the first trials lie near the best so far; otherwise, eight are random.
    """
    replay = Replay(pool, sampler)
    proposals = ReplayedProposals(replay)
    if not near:
        proposals.proposer.algorithm = Algorithm({}, sampler)  # leaves all trials to the sampler
    plan = plan_of(pool.pinned, SEARCH.model_copy(update={"trials": None, "budget": budget}), SEEDS)
    best = ranking(complete(replay, proposals, plan))[0]
    pins, values = (pool.accuracy[replay.tried[trial], :, -1].tolist() for trial in (PINNED_TRIAL, best))
    return replay.tried[selected(best, pins, values).trial]


def gains(pool: CurvePool, budget: float, near: bool) -> list[float]:
    """What each replay gains over the pinned configuration in points, on the mean of the pool's seeds."""
    ends = [replayed(pool, sampler, budget, near) for sampler in range(REPLAYS)]
    return [float(pool.final[end] - pool.final[PINNED_TRIAL]) for end in ends]


def null_section() -> str:
    """How often a configuration that is no better is selected."""
    shares = {"simulated": partial(simulated, 0, 1)}
    shares |= {method: partial(of_copies, repeated(method)) for method in METHODS}
    rows = [
        [name, str(seeds), str(trials), f"{share(trials, seeds):.1%}"]
        for name, share in shares.items()
        for seeds in COMPARED_SEEDS
        for trials in TRIALS
    ]
    return markdown_table(("Accuracies", "Seeds", "Trials", "Selected"), rows, 1)


def power_section() -> str:
    """How often a gain is found."""
    rows = [
        [f"{noise:g}", str(seeds), *(f"{simulated(gain, noise, 5, seeds):.0%}" for gain in GAINS)]
        for noise in NOISES
        for seeds in COMPARED_SEEDS
    ]
    return markdown_table(("Noise", "Seeds", *(f"Gain of {gain}" for gain in GAINS)), rows, 0)


def start_section() -> str:
    """What searches find from a good and from a poor pinned configuration."""
    rows = []
    for good in (pool for pool in read(CURVES / f"{WORKLOAD}.npz") if pool.method in METHODS):
        bad = poor(good)
        loss = float(good.final[PINNED_TRIAL] - bad.final[PINNED_TRIAL])
        for budget in BUDGETS:
            from_good, from_bad = ([gains(pool, budget, near) for near in STARTS] for pool in (good, bad))
            rows.append(
                [good.method, str(budget)]
                + [f"{fmean(gained):+.2f}" for gained in from_good]
                + [f"{loss:.1f}"]
                + [f"{fmean(gained) / loss:.1%}" for gained in from_bad]
            )
    return markdown_table(("Method", "Budget", "Near", "Random", "Loss", "Near", "Random"), rows, 1)


def main() -> None:
    """Simulate, draw and replay, and write the page."""
    noises = list(map(noise, pools()))
    low, high = np.quantile(noises, (0.05, 0.95))
    page = f"""# What the search selects

The search chooses its best trial by one seed, and compares it with the pinned configuration on other seeds,
which the table does not report. It is selected if a one-sided paired t-test at 5 % is significant.
`python -m benchmarks.search.selection` writes this page from the pools' curves.

## False selections

All configurations are equal, so selecting any but the pinned one is a false selection. "Trials"
reach the last round besides the pinned one; "seeds" are those of the comparison. Simulated: {SIMULATED}
searches with normal noise. By method: {DRAWS} draws from {len(RUNS)} runs of the pinned configuration on
`{WORKLOAD}`, each with its own seed, so pairing removes nothing; a share of that many draws has a standard
error of 1 point.

{null_section()}

## Power

The share of {SIMULATED} simulated searches that select the one trial of five that is better by the gain
(in points); for a gain of 0, that select any trial. "Noise" is the standard deviation over seeds in points,
without effects that are common to all configurations. A comparison costs two runs per seed.

{power_section()}

On the {len(noises)} pools that are not held out, this noise is {np.median(noises):.1f} points in the
median, and {low:.1f} to {high:.1f} in nine of ten.

## Effect of the first trials

Mean over {REPLAYS} replays of whole searches on the pools of `{WORKLOAD}`, with three seeds. "Near": five of
the first nine trials lie anywhere in the space, and four near the best so far, which at first is the pinned
configuration. "Random": the first eight are random. The first two columns are the gain in points over a good
pinned configuration. In the other three, the pinned learning rate is a hundred times too low: the loss in
points, and the share of it that the search recovers. More than 100 % is better than the good pinned
configuration. The pools have only three seeds, so the comparison here also uses the seed of the trials.

{start_section()}
"""
    write_text(FOLDER / "selection.md", page)


if __name__ == "__main__":
    main()
