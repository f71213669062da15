"""A simulation that is continued to more rounds is, bit for bit, the one that had as many from the start."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from pfl.core.config import Config, Execution
from pfl.core.errors import InvalidInput
from pfl.engine.seed_run import SeedRun
from pfl.methods import METHODS
from tests.conftest import interrupt, sampled, simulate

CONFIG = Config(model="cnn_digits", rounds=6, epochs=1, batch_size=8, lr=0.1, eval_every=2)


def above(first: int):
    """A callback that refuses rounds up to ``first``."""

    def on_round(round: int, *_: Any) -> None:
        assert round > first

    return on_round


@pytest.fixture
def continued(dataset, partition, tmp_path):
    """The results after fewer rounds and then all, from one folder, with those of one simulation."""

    def run(config: Config, first: int, seeds: tuple[int, ...] = (0,), **execution: Any):
        kept = Execution(checkpoint_dir=str(tmp_path), workers=1, **execution)
        whole = dataclasses.replace(kept, checkpoint_dir=None)
        simulate(dataclasses.replace(config, rounds=first), dataset, partition, seeds, kept)
        rest = simulate(config, dataset, partition, seeds, kept, above(first))
        direct = simulate(config, dataset, partition, seeds, whole)
        return [[run.metrics for run in runs] for runs in (rest, direct)]

    return run


@pytest.mark.parametrize("method", sampled(METHODS))
def test_a_method_goes_on_exactly_or_refuses_since_it_depends_on_the_rounds(method, continued):
    config = dataclasses.replace(CONFIG, method=method, rounds=4)
    if method in ("fedap", "fedcac", "fedphp", "pfedcs", "pfedsim"):
        said = f"rounds: 4 is not accepted; expected 2, as in the checkpoint: {method} depends on the total"
        with pytest.raises(InvalidInput, match=said):
            continued(config, 2)
    else:
        rest, whole = continued(config, 2)
        assert rest == whole


@pytest.mark.parametrize("first", [2, 3], ids=["with an evaluation", "between two evaluations"])
@pytest.mark.parametrize("moments", [(), ("post_aggregation",)], ids=["all moments", "one moment"])
def test_the_last_evaluation_becomes_what_it_is_amid_a_simulation(first, moments, continued):
    rest, whole = continued(CONFIG, first, seeds=(3, 1), moments=moments)
    assert rest == whole
    assert [entry.round for entry in rest[0].rounds] == [2, 4, 6]


def test_what_only_a_final_evaluation_computes_is_not_kept_after_more_rounds(dataset, partition, tmp_path):
    config = dataclasses.replace(CONFIG, unseen=0.3, metrics=("recall",), rounds=8)
    paused = Execution(checkpoint_dir=str(tmp_path / "paused"), until=6)
    (direct,) = simulate(config, dataset, partition, (0,), paused)
    kept = Execution(checkpoint_dir=str(tmp_path / "continued"))
    simulate(dataclasses.replace(config, rounds=4), dataset, partition, (0,), kept)
    (rest,) = simulate(config, dataset, partition, (0,), dataclasses.replace(kept, until=6))
    assert (rest.metrics.unseen, rest.metrics.client_metrics) == (None, {})
    assert rest.metrics == direct.metrics


def test_a_checkpoint_of_an_interruption_is_continued_to_more_rounds(dataset, partition, checkpointed):
    interrupt(5, dataclasses.replace(CONFIG, rounds=8), dataset, partition, (0,), checkpointed)
    longer = dataclasses.replace(CONFIG, rounds=10)
    (rest,) = simulate(longer, dataset, partition, (0,), checkpointed)
    assert rest.metrics == simulate(longer, dataset, partition)[0].metrics


def test_a_step_schedule_goes_on(continued):
    rest, whole = continued(dataclasses.replace(CONFIG, lr_schedule="step", lr_step=2, lr_warmup=1), 4)
    assert rest == whole


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"lr_schedule": "cosine"}, "as in the checkpoint: lr_schedule cosine depends on the total"),
        ({"observe": "similarities"}, "as in the checkpoint: observe similarities depends on"),
    ],
)
def test_an_option_that_depends_on_the_rounds_is_named(option, said, continued):
    with pytest.raises(InvalidInput, match=said):
        continued(dataclasses.replace(CONFIG, **option), 4)


def test_a_simulation_is_not_continued_to_fewer_rounds(dataset, partition, tmp_path):
    execution = Execution(checkpoint_dir=str(tmp_path))
    simulate(CONFIG, dataset, partition, (0,), execution)
    with pytest.raises(InvalidInput, match="rounds: 4 is not accepted; expected at least 6"):
        simulate(dataclasses.replace(CONFIG, rounds=4), dataset, partition, (0,), execution)


@pytest.mark.parametrize(
    ("broken", "first"), [(4, 4), (2, 3)], ids=["after its last step", "in its last round"]
)
def test_a_simulation_that_diverged_goes_on_to_where_it_ends_anyway(broken, first, continued, monkeypatch):
    evaluate = SeedRun.evaluate

    def breaking(run: SeedRun, chosen=()):
        if run.server.round == broken:  # as if the last step had broken the models
            for name, stack in run.server.store.stacks.items():
                run.server.store.share(name, torch.full_like(stack.values[0], torch.nan))
        evaluate(run, chosen)

    monkeypatch.setattr(SeedRun, "evaluate", breaking)
    rest, whole = continued(CONFIG, first)
    assert rest[0].diverged_at == broken + 1
    assert repr(rest) == repr(whole)  # NaN equals no NaN
