"""The learning rate over the rounds."""

from __future__ import annotations

import dataclasses

import pytest

from pfl.core.config import Config, Execution
from pfl.run.validation import validated
from tests.conftest import CONFIG, simulate


@pytest.mark.parametrize(
    ("options", "rates"),
    [
        ({}, [1, 1, 1, 1, 1]),
        ({"lr_warmup": 3}, [0.25, 0.5, 0.75, 1, 1]),
        ({"lr_schedule": "step", "lr_step": 2}, [1, 1, 0.1, 0.1, 0.01]),
        ({"lr_schedule": "step", "lr_step": 1, "lr_gamma": 0.5, "lr_warmup": 1}, [0.5, 1, 0.5, 0.25, 0.125]),
        ({"lr_schedule": "cosine", "lr_warmup": 1}, [0.5, 1, 0.8535533905932737, 0.5, 0.14644660940672627]),
        ({"lr_schedule": "cosine", "lr_warmup": 9}, [0.1, 0.2, 0.3, 0.4, 0.5]),
    ],
)
def test_the_rate_of_each_round_follows_from_the_schedule(options, rates):
    config = validated(Config(lr=1.0, rounds=5, **options))
    assert [config.lr_in(round) for round in range(1, 6)] == pytest.approx(rates, abs=1e-15)


def test_clients_of_a_round_train_at_its_rate(backend, dataset, partition):
    # At a rate this small, rounds after the first move nothing that float64 can tell.
    config = dataclasses.replace(
        CONFIG, method="local", participation=1.0, rounds=1, lr_schedule="step", lr_step=1, lr_gamma=1e-18
    )

    def weights(rounds):
        def last(server, _network):
            return server.store["head.weight"].tolist() if server.round == rounds else None

        chosen = dataclasses.replace(config, rounds=rounds)
        (result,) = simulate(chosen, dataset, partition, (0,), Execution(backend=backend), measure=last)
        return result.measurements

    assert weights(2) == weights(1)


def test_an_adaptation_has_the_configured_rate_in_every_round(dataset, partition):
    # The rate of a round after the first is 0 to rounding, at which nothing would be adapted.
    config = dataclasses.replace(
        CONFIG, method="fedbabu", rounds=2, lr_schedule="step", lr_step=1, lr_gamma=1e-18
    )
    (result,) = simulate(config, dataset, partition)
    moments = result.metrics.rounds[-1].moments
    assert moments["adapted"].loss != pytest.approx(moments["post_aggregation"].loss, abs=1e-6)
