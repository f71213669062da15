"""What a simulation measures of itself."""

from __future__ import annotations

import time

from pfl.core.config import Config
from pfl.methods.fedfomo import FedFomo
from pfl.run.simulate import simulate

EVALUATION = 1e6


def test_train_seconds_are_those_of_all_that_clients_compute_for_the_method(dataset, partition, monkeypatch):
    """On a clock that only a validation and an evaluation move on: FedFomo's time includes its validation."""
    now, validations = [0.0], [0]
    validated, scored = FedFomo._validation_loss, FedFomo.scores

    def validation_loss(self, client, batch):
        now[0] += 1
        validations[0] += 1
        return validated(self, client, batch)

    def scores(self, client, x, logits):
        now[0] += EVALUATION
        return scored(self, client, x, logits)

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(FedFomo, "_validation_loss", validation_loss)
    monkeypatch.setattr(FedFomo, "scores", scores)
    config = Config(method="fedfomo", rounds=2, epochs=1, eval_every=1, participation=1.0)
    measured = simulate(config, dataset, partition)[0].measured
    assert validations[0] > 0
    assert measured.train_seconds == validations[0]
    assert measured.wall_seconds > EVALUATION
