"""SMAC3's hyperparameter optimisation, replayed on a pool. It needs the package `smac` (tested: 2.4.1).

This command runs it in a separate environment on top of the project's:
`UV_CONSTRAINT=requirements.lock .venv/bin/uv run --no-sync --with smac \
python -m benchmarks.search.regret --smac`.
"""

from __future__ import annotations

import logging
import tempfile
import warnings
from typing import Any

import numpy as np

from benchmarks.search.pools import CurvePool
from benchmarks.search.replay import BUDGET, Replay, holds


def smac3(pool: CurvePool, number: int) -> np.ndarray:
    """The `Replay.regrets` of a random forest with expected improvement, with SMAC3's defaults for as many
    trials as the budget has runs; the pinned configuration is the first."""
    from ConfigSpace import Configuration
    from smac import HyperparameterOptimizationFacade, Scenario
    from smac.runhistory.dataclasses import TrialInfo, TrialValue

    replay, last = Replay(pool, number), pool.rounds[-1]
    space = _space(pool, number)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scenario = Scenario(space, deterministic=True, n_trials=BUDGET, seed=number, output_directory=folder)
        smac = HyperparameterOptimizationFacade(
            scenario, _unused, overwrite=True, logging_level=logging.ERROR
        )

        def cost(params: dict[str, Any]) -> TrialValue:
            return TrialValue(cost=-(replay.train(replay.choose(params), 0, last).value or 0.0))

        pinned = pool.configurations[0]
        value = cost(pinned)
        if all(holds(pool.space[name], own) for name, own in pinned.items()):
            smac.tell(TrialInfo(Configuration(space, values=pinned), seed=0), value, save=False)
        while not replay.is_over:
            proposal = smac.ask()
            smac.tell(proposal, cost(dict(proposal.config)), save=False)
    return replay.regrets


def _unused(config: Any, seed: int = 0) -> float:
    """The objective that SMAC3 requires; `ask` and `tell` replace it."""
    raise NotImplementedError


def _space(pool: CurvePool, seed: int) -> Any:
    """The search space in ConfigSpace's terms."""
    from ConfigSpace import Categorical, ConfigurationSpace, Float, InCondition, Integer
    from optuna.distributions import CategoricalDistribution, IntDistribution

    space = ConfigurationSpace(seed=seed)
    for name, domain in pool.space.items():
        if isinstance(domain, CategoricalDistribution):
            space.add(Categorical(name, list(domain.choices)))
        elif isinstance(domain, IntDistribution):
            space.add(Integer(name, (domain.low, domain.high), log=domain.log))
        else:
            space.add(Float(name, (domain.low, domain.high), log=domain.log))
    for name, (parent, *choices) in pool.conditions.items():
        space.add(InCondition(space[name], space[parent], choices))
    return space
