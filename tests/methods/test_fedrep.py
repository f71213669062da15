"""How FedRep divides the epochs, and the last training of all heads."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from pfl.core.config import Config
from pfl.methods.fedrep import FedRep
from pfl.run.validation import validated, warnings_of
from tests.methods.toy import after_rounds


def split_of(epochs, **hyper):
    """Epochs of the head and of the extractor, and whether the user is warned."""
    config = validated(Config(method="fedrep", hyperparameters=hyper, epochs=epochs))
    method = FedRep(**config.hyperparameters)
    phases = method.phases(SimpleNamespace(config=config))
    return [phase.epochs for phase in phases], bool(warnings_of(config))


@pytest.mark.parametrize(
    ("epochs", "hyper", "expected"),
    [
        (5, {}, ([4, 1], False)),
        (5, {"extractor_epochs": 3}, ([2, 3], False)),
        (5, {"head_epochs": 2, "extractor_epochs": 3}, ([2, 3], False)),
        (1, {}, ([1, 1], True)),  # each of both trains
        (5, {"head_epochs": 10}, ([10, 1], True)),
    ],
)
def test_the_head_has_what_the_extractor_leaves_and_another_total_is_a_warning(epochs, hyper, expected):
    assert split_of(epochs, **hyper) == expected


def test_the_last_training_tunes_a_copy_of_every_head(dataset, partition):
    tuned, server = after_rounds(
        "fedrep", dataset, partition, 2, hyperparameters={"final_head_epochs": 3}, eval_every=1
    )
    plain, other = after_rounds("fedrep", dataset, partition, 2, eval_every=1)
    for name, stack in server.store.tensors.items():
        assert torch.equal(stack, other.store.tensors[name])
    (phase,) = tuned.program.method.adaptation(server)
    assert (phase.epochs, phase.trains) == (3, ("head",))
    ours, theirs = (simulation.runs[0].history[-1].moments for simulation in (tuned, plain))
    assert ours["post_aggregation"] == theirs["post_aggregation"]
    assert ours["adapted"].loss != pytest.approx(ours["post_aggregation"].loss, abs=1e-6)
    assert "adapted" not in theirs
