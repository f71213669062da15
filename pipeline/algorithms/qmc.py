"""Scrambled Sobol sequence, which covers the space more evenly than random draws."""

from __future__ import annotations

import logging
import warnings

from pipeline.algorithms import Algorithm, Sampler


class QMC(Algorithm):
    """Categorical parameters, and parameters that only some trials have, are drawn at random."""

    def sampler(self) -> Sampler:
        from optuna.exceptions import ExperimentalWarning
        from optuna.samplers import QMCSampler

        # Optuna warns of conditional parameters in every trial, although it draws them as documented above.
        logging.getLogger("optuna.samplers._qmc").setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            return QMCSampler(scramble=True, seed=self.seed, warn_independent_sampling=False)
