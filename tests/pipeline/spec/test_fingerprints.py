"""Whether a record is of today's code."""

from __future__ import annotations

from pfl.core.config import Config
from pfl.run.fingerprint import name_of
from pfl.run.validation import validated
from pipeline.spec.fingerprints import images, is_current


def test_a_record_is_current_if_the_code_does_for_it_what_its_name_stands_for():
    config = validated(Config(method="fedavg"))
    name = name_of(config, *images("digits"))
    assert is_current(config.to_dict(), "digits", name)
    assert not is_current(config.to_dict(), "digits", "fedavg-0123456789ab")


def test_a_record_of_a_removed_hyperparameter_is_current_if_its_name_is():
    config = validated(Config(method="fedprox"))
    name = name_of(config, *images("digits"))
    former = {**config.to_dict(), "hyperparameters": {**config.hyperparameters, "forgotten": 1}}
    assert is_current(former, "digits", name)
    assert not is_current(former, "digits", "fedprox-0123456789ab")  # as with another choice


def test_a_record_of_an_option_that_no_longer_exists_is_not_current():
    config = validated(Config(method="fedavg"))
    name = name_of(config, *images("digits"))
    assert not is_current({**config.to_dict(), "forgotten": 1}, "digits", name)
