"""A method that breaks a rule of `check_method` is told so."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import pfl
from pfl.core.errors import InvalidInput
from pfl.core.hyper import hyper
from pfl.engine.method import Phase
from pfl.methods import METHODS
from pfl.testing import Violations, check_method
from pfl.testing.method_kit import KIT
from tests.testing.violating import violates


class Averaging(pfl.Method):
    """Whole models are averaged, as in FedAvg.

    Source: McMahan et al., 2017.
    State: none.
    Evaluated: the global model after aggregation.
    Differs from the authors: nothing.
    """

    def aggregate(self, server):
        return {"all": server.average()}


class WithoutState(Averaging):
    """A docstring without the field State.

    Source: none.
    Evaluated: none.
    Differs from the authors: nothing.
    """


@dataclass(frozen=True)
class PlainField(Averaging):
    mu: float = 0.1


@dataclass(frozen=True)
class WideRange(Averaging):
    mu: float = hyper(0.1, "weight", low=0.0, high=1.0, search=(0.0, 2.0))


class LongWarmUp(Averaging):
    def warm_up(self, rounds):
        return rounds + 1


class Unevaluated(Averaging):
    headline = "adapted"


def unmasked(client, batch):
    """A loss that counts the padding of a stacked batch."""
    return F.cross_entropy(client.net(batch.x), batch.y)


class Padded(Averaging):
    def loss(self, client, batch):
        return unmasked(client, batch)


class PaddedIfAllTakePart(Averaging):
    def phases(self, server):
        everybody = len(server.participants) == server.clients
        return (Phase(loss=unmasked if everybody else None),)


@dataclass(frozen=True)
class PaddedChoice(Averaging):
    form: str = hyper("masked", "the loss", choices=("masked", "unmasked"))

    def loss(self, client, batch):
        return unmasked(client, batch) if self.form == "unmasked" else super().loss(client, batch)


@dataclass(frozen=True)
class Compared(Averaging):
    """Whether a number is positive is not known where it is one of a stack's."""

    mu: float = hyper(0.1, "weight", low=0.0)

    def loss(self, client, batch):
        loss = super().loss(client, batch)
        return loss + self.mu * client.distance_squared() if self.mu > 0 else loss


@dataclass(frozen=True)
class AdaptedEarly(Averaging):
    """An option of the adaptation that training reads, too."""

    epochs: int = hyper(1, "epochs before the evaluation", low=1, adaptation=True)

    def phases(self, server):
        return (Phase(self.epochs),)

    def adaptation(self, server):
        return (Phase(self.epochs),)


class OnTheHost(Averaging):
    def aggregate(self, server):
        mean = server.uploads["head.bias"].detach().numpy().mean(0, keepdims=True)
        return {"head.bias": torch.from_numpy(mean)}


class Counted(Averaging):
    """A step that is replayed does not count."""

    steps = 0

    def loss(self, client, batch):
        Counted.steps += 1
        return super().loss(client, batch) * (1 + 0.01 * (Counted.steps % 7))


class Relative(Averaging):
    """A client's evaluated model depends on the clients that are evaluated with it."""

    personal_collects = True

    def personal(self, server, moment, clients=slice(None)):
        models = server.personal(moment, clients)
        return {**models, "head.bias": models["head.bias"] + 0.1 * len(models["head.bias"])}


class PaddedIfLocal(Averaging):
    def phases(self, server):
        return (Phase(loss=unmasked if server.config.bn_stats == "local" else None),)


class Drawn(Averaging):
    def aggregate(self, server):
        return {"all": server.average(), "head.bias": torch.rand(1, *server.store.shape("head.bias"))}


class Remembered(Averaging):
    """The momentum is not in ``server.state``, so that no checkpoint has it."""

    def aggregate(self, server):
        before = vars(self).get("bias", torch.zeros(server.store.shape("head.bias")))
        vars(self)["bias"] = before / 2 + server.uploads["head.bias"].mean(0)
        return {"all": server.average(), "head.bias": vars(self)["bias"][None]}


class Forgetful(Averaging):
    def phases(self, server):
        server.state["calls"] = server.state.get("calls", torch.zeros(())) + 1
        return super().phases(server)


class Unseen(Averaging):
    """The server reads what the clients trained, which is not counted."""

    def aggregate(self, server):
        return {name: server.trained[name].mean(0, keepdim=True) for name in server.groups["model"]}


class Lottery(Averaging):
    def admit(self, server):
        return {"head.bias": torch.rand_like(server.store["head.bias"][:1])}


class OfTheOthers(Averaging):
    """Weights of the other clients, of which there may be none."""

    def aggregate(self, server):
        others = len(server.participants) - 1
        return {"head.bias": server.uploads["head.bias"].sum(0, keepdim=True) / others * 0}


class Unbiased(Averaging):
    """Weights by the inverse of one sample less than there are."""

    def aggregate(self, server):
        weights = 1 / (server.sizes[server.participants] - 1)
        return {"head.bias": (weights @ server.uploads["head.bias"])[None]}


class Diverse(Averaging):
    """The logarithm of the entropy of a client's labels, which is 0 for one class."""

    def initialise(self, server):
        shares = server.label_counts / server.label_counts.sum(1, keepdim=True)
        server.client_state["scale"] = -torch.special.xlogy(shares, shares).sum(1).log()

    def loss(self, client, batch):
        return super().loss(client, batch) * (1 + 0 * client.state["scale"])


BROKEN = {
    "docstring": (WithoutState, "no field State"),
    "hyperparameters": (PlainField, r"PlainField.mu: its declaration is not accepted; expected hyper\("),
    "search_space": (WideRange, r"mu: 2.0 is not accepted; expected a number in \[0, 1\]"),
    "warm_up": (LongWarmUp, r"warm_up\(1\) is 2; expected an integer in \[0, 1\]"),
    "simulation": (Unevaluated, "Unevaluated.headline: adapted is not accepted"),
    "backends": (Padded, r"stacked, train loss\[\d\] is"),
    "full_participation": (PaddedIfAllTakePart, r"stacked, train loss\[\d\] is"),
    "choices": (PaddedChoice, r"stacked with form=unmasked, train loss\[\d\] is"),
    "stack": (Compared, r"test_.*\.py:\d+: the stacked backend cannot run 'return .* if .*'"),
    "adaptation": (AdaptedEarly, r"trained once for another epochs, train loss\[0\] is .*; expected"),
    "device": (OnTheHost, "TypeError: a tensor on the device has no numpy view"),
    "graphs": (Counted, r"replayed, train loss\[\d\] is"),
    "local_batch_norm": (PaddedIfLocal, r"stacked, train loss\[\d\] is"),
    "determinism": (Drawn, "again, .* expected"),
    "resume": (Remembered, "resumed, .* expected"),
    "forked_workers": (Counted, r"two workers, train loss\[\d\] is"),
    "hooks": (Forgetful, r"state after the hooks, .*calls.* differs"),
    "traffic": (Unseen, "of a client depends on other clients, but no traffic up is counted"),
    "unseen_clients": (Lottery, "stacked, unseen .* expected"),
    "lone_client": (OfTheOthers, "the training losses are .*nan"),
    "small_clients": (Unbiased, "the training losses are .*nan"),
    "one_class": (Diverse, "the training losses are nan"),
}


@pytest.mark.parametrize("rule", KIT.rules)
def test_a_broken_method_is_told_so_in_one_line(rule):
    method, line = BROKEN[rule]
    with violates(rule, line):
        check_method(method, [rule])


def test_a_model_that_depends_on_the_clients_evaluated_with_it_is_seen():
    with violates("forked_workers", r"two workers, post_local loss\[\d\] is"):
        check_method(Relative, ["forked_workers"])


@pytest.mark.slow
def test_a_method_that_averages_meets_all_rules():
    check_method(Averaging)


def test_all_violated_rules_are_reported_and_none_after_a_simulation_that_fails():
    class Failing(pfl.Method):
        def warm_up(self, rounds):
            return -1

        def aggregate(self, server):
            raise ArithmeticError("no weights\nat all")

    with pytest.raises(Violations) as caught:
        check_method(Failing)
    assert str(caught.value).splitlines() == [
        "failing violates 3 rules:",
        "  docstring: no field Source, State, Evaluated, Differs from the authors",
        "  warm_up: warm_up(1) is -1; expected an integer in [0, 1]",
        "  simulation: ArithmeticError: no weights",
    ]
    assert isinstance(caught.value.__cause__, ArithmeticError)


@pytest.mark.parametrize(
    ("declared", "line"),
    [
        (hyper(0.1, "weight", low=0.0, search=(0.5, 0.1)), r"search=\(0.5, 0.1\) is not increasing"),
        (hyper(0.1, "weight", low=0.0, search=(0.0, 0.1), log=True), "is not positive, as log=True needs"),
        (hyper(3, "steps", low=1, search=(1.5, 2.5)), "is not two numbers of the default's type"),
        (hyper("a", "form", choices=("a", "b"), search=("a", "c")), "expected one of a, b"),
        (hyper(0.1, "weight", when=("form", "a")), "does not name choices of another option"),
    ],
)
def test_an_unsound_search_range_is_named(declared, line):
    method = dataclass(frozen=True)(
        type("Searched", (Averaging,), {"__annotations__": {"x": type(declared.default)}, "x": declared})
    )
    with pytest.raises(Violations, match=f"search_space: .*{line}"):
        check_method(method, ["search_space"])


def test_a_phase_may_capture_tensors_arrays_and_recursive_functions():
    class Weighted(Averaging):
        def phases(self, server):
            weights, factors = torch.ones(server.clients, dtype=torch.float64), np.ones(3)

            def scaled(loss, times):
                return scaled(factors[0] * loss, times - 1) if times else weights.mean() * loss

            def loss(client, batch):
                return scaled(batch.cross_entropy(client.net(batch.x)), 2)

            return (Phase(loss=loss),)

    check_method(Weighted, ["hooks"])


@pytest.mark.parametrize("draw", [np.random.random, lambda: torch.rand(())])
def test_a_method_that_draws_from_a_global_random_state_in_vain_is_reported(draw):
    class Wasteful(Averaging):
        def aggregate(self, server):
            draw()
            return super().aggregate(server)

    with violates("determinism", "a run draws from the global random state of NumPy or torch"):
        check_method(Wasteful, ["determinism"])


@pytest.mark.parametrize("rule", ["backends", "determinism", "resume", "unseen_clients"])
def test_a_simulation_that_diverges_is_reported_as_such(rule):
    class Diverging(Averaging):
        def loss(self, client, batch):
            return super().loss(client, batch) * 1e30

    with violates(rule, "the training losses are .*nan"):
        check_method(Diverging, [rule])


def test_a_negative_count_of_traffic_is_told():
    class Refunded(Averaging):
        def aggregate(self, server):
            server.count("refund", up=-(10**9))
            return super().aggregate(server)

    with pytest.raises(Violations, match=r"bytes up over the rounds are \[-.*expected growing integers"):
        check_method(Refunded, ["traffic"])


def test_a_check_leaves_the_random_states_as_they_were():
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()  # noqa: NPY002
    check_method("fedavg", ["determinism"])
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]  # noqa: NPY002


def test_an_unknown_rule_or_method_is_no_violation():
    with pytest.raises(InvalidInput, match=r"rule: resumes is not accepted; .*did you mean 'resume'"):
        check_method("fedavg", ["resumes"])
    with pytest.raises(InvalidInput, match="did you mean 'fedavg'"):
        check_method("fedavgg")
    assert "fedavgg" not in METHODS
