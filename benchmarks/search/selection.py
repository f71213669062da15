"""What the search selects: how often without reason, how often a gain is found, and from a poor start.

`python -m benchmarks.search.selection` simulates comparisons, draws others from the curves of
`benchmarks.search.pool`, and replays whole searches on those curves.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import numpy as np

from benchmarks.search.compare import Replay, final, pool
from benchmarks.search.pool import NOISE_SEEDS, POOR, SEARCH, SEEDS
from benchmarks.search.workload import FOLDER, METHODS, WORKLOADS
from pfl.core.files import write_text
from pfl.core.rng import generator
from pipeline.algorithms import Algorithm
from pipeline.spec.search_space import PINNED_TRIAL
from pipeline.sweep.budget import Account
from pipeline.sweep.halving import brackets, ranking
from pipeline.sweep.search import plan_of, selected

SIMULATED = 2000
DRAWS = 500
"""From the pool, for each method and number of seeds."""
REPLAYS = 20
TRIALS = (2, 5, 9)
GAINS = (0, 1, 2, 5)
NOISES = (0.5, 1.0, 2.0)
BUDGETS = (1, 3)
COMPARED_SEEDS = (2, 3, 5)
STARTS = (True, False)
"""Whether half of the first trials lie near the pinned configuration."""


def earlier(values: np.ndarray) -> bool:
    """Whether the earlier rule selects any of the two best of the first seed, by all seeds.

    Args:
        values: by configuration, the pinned one first, and by seed.
    """
    finalists = 1 + np.argsort(-values[1:, 0])[:2]
    gains = values[finalists] - values[0]
    return bool((gains.mean(axis=1) > gains.std(axis=1, ddof=1) / np.sqrt(values.shape[1])).any())


def chosen(values: np.ndarray) -> int:
    """What today's rule selects: the best with the first seed, if it is better with the others."""
    best = int(values[:, 0].argmax())
    if best == PINNED_TRIAL:
        return PINNED_TRIAL
    return selected(best, values[0, 1:].tolist(), values[best, 1:].tolist()).trial


def simulated(gain: float, noise: float, trials: int, seeds: int) -> tuple[float, float]:
    """The share of searches that select the one trial that is better by ``gain`` points, or any trial if all
    are equal; and the share that selects any trial by the earlier rule.

    Seeds act on a configuration with normal noise; what they do to all alike cancels and is left out.

    Args:
        noise: standard deviation in points.
        trials: number of trials that reach the last round, besides the pinned one.
    """
    rng = generator(trials, f"selection, {gain:g} points, noise {noise:g}, {seeds} seeds")
    values = rng.normal(0, noise, (SIMULATED, trials + 1, seeds + 1))
    values[:, 1] += gain
    choices = [chosen(search) for search in values]
    hits = np.array(choices) == 1 if gain else np.array(choices) != PINNED_TRIAL
    return float(hits.mean()), fmean(map(earlier, values[:, :, :seeds]))


def of_copies(method: str, trials: int, seeds: int) -> tuple[float, float]:
    """The share of draws in which a copy of the pinned configuration is selected, by today's and by the
    earlier rule; each run of a copy has a seed of its own."""
    workload = "digits-20"
    rounds, own = WORKLOADS[workload].pinned(method).rounds, (*SEEDS, *NOISE_SEEDS[workload])
    runs = np.array([pool(workload)[method, 0, seed].accuracies[rounds] for seed in own])
    rng = generator(seeds, f"copies of {method}, {trials} trials")
    draws = [
        rng.choice(runs, (trials + 1) * (seeds + 1), replace=True).reshape(trials + 1, seeds + 1)
        for _ in range(DRAWS)
    ]
    return fmean(chosen(draw) != PINNED_TRIAL for draw in draws), fmean(
        earlier(draw[:, :seeds]) for draw in draws
    )


def replayed(workload: str, method: str, sampler: int, budget: float, poor: bool, near: bool) -> int:
    """The configuration of the pool that a whole search selects.

    The pool has three seeds, so that the comparison uses that of the trials, too.

    Args:
        poor: the pinned learning rate is a hundred times too low.
        near: half of the first trials lie near the best so far; otherwise, eight are random.
    """
    replay = Replay(workload, method, sampler, poor)
    if not near:
        replay.study.algorithm = Algorithm({}, sampler)  # leaves all trials to the sampler
    plan = plan_of(
        WORKLOADS[workload].pinned(method),
        SEARCH.model_copy(update={"trials": None, "budget": budget}),
        SEEDS,
    )
    steps = brackets(replay, Account(plan))
    try:
        batch = next(steps)
        while True:
            batch = steps.send([replay.run(step) for step in batch])
    except StopIteration as end:
        best = ranking(end.value)[0]
    pins, values = (
        [pool(workload)[method, replay.chosen[trial], seed].accuracies[plan.rounds] for seed in SEEDS]
        for trial in (PINNED_TRIAL, best)
    )
    return replay.chosen[best if selected(best, pins, values).trial == best else PINNED_TRIAL]


def gains(workload: str, method: str, budget: float, poor: bool, near: bool) -> list[float]:
    """What each replay gains over the pinned configuration in points, on the mean of the pool's seeds."""
    ends = [replayed(workload, method, sampler, budget, poor, near) for sampler in range(REPLAYS)]
    return [final(workload, method, end) - final(workload, method, POOR if poor else 0) for end in ends]


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], text: int) -> str:
    """A table in Markdown whose first ``text`` columns are text, and the others numbers."""
    rule = [" --- " if place < text else " ---: " for place in range(len(columns))]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(["| " + " | ".join(columns) + " |", "|" + "|".join(rule) + "|", *lines])


def null_section() -> str:
    """How often a configuration is selected that is no better."""
    rows = [
        ["simulated", str(seeds), str(trials), f"{today:.1%}", f"{before:.1%}"]
        for seeds in COMPARED_SEEDS
        for trials in TRIALS
        for today, before in [simulated(0, 1, trials, seeds)]
    ] + [
        [method, str(seeds), str(trials), f"{today:.1%}", f"{before:.1%}"]
        for method in METHODS
        for seeds in COMPARED_SEEDS
        for trials in TRIALS
        for today, before in [of_copies(method, trials, seeds)]
    ]
    return table(("Accuracies", "Seeds", "Trials", "Selected", "Earlier rule"), rows, 1)


def power_section() -> str:
    """How often a gain is found."""
    rows = [
        [
            f"{noise:g}",
            str(seeds),
            *(f"{simulated(gain, noise, 5, seeds)[0]:.0%}" for gain in GAINS),
        ]
        for noise in NOISES
        for seeds in COMPARED_SEEDS
    ]
    return table(("Noise", "Seeds", *(f"Gain of {gain}" for gain in GAINS)), rows, 0)


def start_section() -> str:
    """What searches find from a good and from a poor pinned configuration."""
    rows = []
    for workload in ("digits-20", "digits-54"):
        for method in METHODS:
            loss = final(workload, method, 0) - final(workload, method, POOR)
            for budget in BUDGETS:
                good, poor = (
                    [gains(workload, method, budget, bad, near) for near in STARTS] for bad in (False, True)
                )
                rows.append(
                    [workload, method, str(budget)]
                    + [f"{fmean(one):+.2f}" for one in good]
                    + [f"{loss:.1f}"]
                    + [f"{fmean(one) / loss:.1%}" for one in poor]
                )
    columns = ("Workload", "Method", "Budget", "Near", "Random", "Loss", "Near", "Random")
    return table(columns, rows, 2)


def main() -> None:
    """Simulate, draw and replay, and write the page."""
    runs = len(SEEDS) + len(NOISE_SEEDS["digits-20"])
    page = f"""# What the search selects

The search chooses its best trial by one seed, and compares it with the pinned configuration on other seeds,
which the table does not report. It is selected if a one-sided paired t-test at 5 % is significant. The
earlier search compared its two best trials on seeds of which one had chosen them, and selected any gain above
one standard error. `python -m benchmarks.search.selection` writes this page from the pools' curves.

## Selection without a reason

All configurations are equal, so that any other than the pinned one is selected without a reason. "Trials"
reach the last round besides the pinned one; "seeds" are those of the comparison. Simulated: {SIMULATED}
searches with normal noise. By method: {DRAWS} draws from {runs} runs of the pinned configuration on
`digits-20`, each with a seed of its own, so that pairing removes nothing; a share of so many draws has a
standard error of 1 point.

{null_section()}

## Gains that are found

The share of {SIMULATED} simulated searches that select the one trial of five that is better by so many
points; for a gain of 0, that select any trial. "Noise" is the standard deviation in points that a seed causes
in one configuration and not in all alike. A comparison costs two runs per seed.

{power_section()}

Over the ten best configurations of a method in the pools, this noise is 0.3 to 1 points in nine of twelve
cases, and 2.2 to 2.8 in the others (FedAvg on `digits-20` and `mnist-27`, pFedSim on `digits-20`). Pairing
matters where a seed is good or bad for all configurations: FedAvg's accuracies on `digits-54` have a standard
deviation of 2.3 points over the seeds, of which pairing leaves 0.7.

## Starting from what is known

Mean over {REPLAYS} replays of whole searches on the pools, with three seeds. "Near": five of the first nine
trials lie anywhere in the space, and four near the best so far, which at first is the pinned configuration.
"Random": the first eight are random. The first two columns are the gain in points over a good pinned
configuration. Then the pinned learning rate is a hundred times too low: the loss in points, and the share of
it that the search recovers. More than 100 % is better than the good pinned configuration. The pools have
three seeds, so that the comparison here uses that of the trials, too.

{start_section()}
"""
    write_text(FOLDER / "selection.md", page)


if __name__ == "__main__":
    main()
