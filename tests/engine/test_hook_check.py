"""A wrong return value of a method's hook is one line that names the method and the hook."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase as fnmatch

import pytest
import torch

import pfl
from pfl.core.config import Execution
from pfl.core.errors import InvalidInput
from pfl.core.hyper import hyper
from pfl.engine.method import Phase, Step
from pfl.engine.mixing import Average, Dense, Identity, Sent
from tests.refusal import refusal


def returning(hook, value):
    """A method whose ``hook`` returns ``value``, or calls it with the hook's arguments."""

    def answer(*arguments):
        return value(*arguments[1:]) if callable(value) else value

    answer.__qualname__ = f"Wrong.{hook}"
    return type("Wrong", (pfl.Method,), {"__doc__": "A wrong method.", "__module__": __name__, hook: answer})


def simulated(method, execution=Execution()):
    return pfl.simulate(method, clients=4, rounds=1, epochs=1, execution=execution, progress=False)


@pytest.mark.parametrize(
    ("hook", "value", "complaint"),
    [
        ("participants", [0, 1], "a return value of type list .* a tensor (K,) of distinct integers from 0"),
        ("participants", torch.tensor([True] * 4), "a tensor of shape (4,) and torch.bool is not accepted"),
        ("participants", torch.tensor([0.0]), "a tensor of shape (1,) and torch.float32 is not accepted"),
        ("participants", torch.tensor([], dtype=torch.int64), "a tensor of shape (0,) and torch.int64 is"),
        ("participants", torch.tensor([[1]]), "a tensor of shape (1, 1) and torch.int64 is not accepted"),
        ("participants", torch.tensor([0, 4]), "[0, 4] is not accepted; expected .* integers from 0 to 3"),
        ("participants", torch.tensor([-1]), "[-1] is not accepted"),
        ("participants", torch.tensor([2, 2]), "[2, 2] is not accepted"),
        ("phases", None, "a return value of type NoneType is not accepted; expected a tuple of Phase(...)"),
        ("phases", Phase(), "a return value of type Phase is not accepted"),
        ("phases", ("all",), "a value of type str is not accepted; expected a tuple of Phase(...)"),
        ("phases", (Phase(trains="head"),), "Phase(trains): 'head' is not accepted; expected a tuple of"),
        ("phases", (Phase(trains=("haed",)),), "Phase(trains): group: haed is not accepted; expected one of"),
        ("phases", (Phase(trains=()),), "Phase(trains): () is not accepted; expected at least one group"),
        ("phases", (Phase(trains=("bn_stats",)),), "Phase(trains): ('bn_stats',) is not accepted"),
        ("phases", (Phase(epochs=-1),), "Phase(epochs): -1 is not accepted; expected a non-negative number"),
        ("phases", (Phase(epochs=float("nan")),), "Phase(epochs): nan is not accepted"),
        ("phases", (Phase(steps=1.5),), "Phase(steps): 1.5 is not accepted; expected a non-negative integer"),
        ("phases", (Phase(batch_size=0),), "Phase(batch_size): 0 is not accepted; expected a positive"),
        ("phases", (Phase(repeat=None),), "Phase(repeat): None is not accepted; expected a positive integer"),
        ("phases", (Phase(loss=1.0),), "Phase(loss): 1.0 is not accepted; expected a function or None"),
        ("adaptation", Phase(), "a return value of type Phase is not accepted; expected a tuple of"),
        ("client_network", lambda *_: None, "expected a Network, optionally with"),
        ("client_network", lambda *_: torch.nn.Linear(64, 10), "expected a Network, optionally with"),
        ("warnings", "mu is 0", "expected a tuple of lines"),
        ("warnings", None, "expected a tuple of lines"),
        ("client_groups", ["new"], "a return value of type list is not accepted; expected a mapping from"),
        ("client_groups", {"new": [True] * 4}, "new: a value of type list .* a bool tensor of shape (4,)"),
        ("client_groups", {"new": torch.tensor([0, 1])}, "new: a tensor of shape (2,) and torch.int64 is"),
        ("scores", None, "a return value of type NoneType is not accepted; expected a tensor (images, cla"),
        ("scores", lambda *given: given[-1][:, 0], "tensor of shape .* expected a tensor (images, classes)"),
        (
            "logits",
            lambda client, x: torch.cat([client.net(x)] * 2, dim=1),
            "a tensor of shape .*, 20) is not accepted; expected a tensor (images, classes) of shape .*, 10)",
        ),
        (
            "aggregate",
            {"head.bias": Average(torch.tensor([0.5, 1.5]))},
            "head.bias: Average with a row of sum 2 and smallest weight 0.5 is not accepted; expected ro",
        ),
        ("aggregate", {"head.bias": Average([0.5, 0.5])}, "an Average with weights of type list is not"),
        (
            "dispatch",
            {"head.bias": Dense(torch.tensor([[1.5, -0.5, 0.0, 0.0]] * 2))},
            "head.bias: Dense with a row of sum 1 and smallest weight -0.5 is not accepted",
        ),
        (
            "aggregate",
            {"head.bias": 0.5 * Identity() + 0.25 * Identity()},
            "head.bias: a sum with weights [0.5, 0.25] is not accepted; expected non-negative weights that",
        ),
    ],
)
def test_it_is_refused(hook, value, complaint, backend):
    line = re.escape(complaint).replace(r"\.\*", ".*").replace(r"\ ", " ")
    with pytest.raises(InvalidInput, match=rf"^Wrong\.{hook}: .*{line}"):
        simulated(returning(hook, value), Execution(backend=backend))


@pytest.mark.parametrize(
    ("hook", "value", "complaint"),
    [
        ("loss", 0.5, ": a return value of type float is not accepted; expected a tensor of shape ()"),
        ("loss", lambda _, batch: batch.x.flatten(1).mean(1), ": a tensor of shape (*) is not accepted"),
        ("loss", torch.tensor(0.5), ": a constant is not accepted; expected a loss that depends on the"),
        ("logits", lambda client, x: client.net(x)[:, 0], ": a tensor of shape (*) is not accepted"),
        ("personal", [], ": a return value of type list is not accepted; expected a mapping from the name"),
        ("personal", {}, ": a mapping without '*' is not accepted"),
        (
            "personal",
            lambda server, moment, clients: {**server.personal(moment, clients), "new": torch.zeros(4)},
            ": a mapping with 'new' is not accepted",
        ),
        (
            "personal",
            lambda server, moment, clients: {
                **server.personal(moment, clients),
                "head.bias": torch.zeros(10),
            },
            ": head.bias: a tensor of shape (10,) is not accepted; expected a tensor of shape (4, 10)",
        ),
    ],
)
def test_what_a_client_computes_is_refused_before_a_round_ends(hook, value, complaint, backend):
    line = refusal(simulated, returning(hook, value), Execution(backend=backend))
    assert fnmatch(line.removeprefix("Wrong."), f"{hook}{complaint}*")


def test_a_loss_of_a_phase_is_refused_by_its_name(backend):
    def squared(client, batch):
        return client.net(batch.x).square()

    with pytest.raises(InvalidInput, match=r"^squared: a tensor of shape .* expected a tensor of shape \(\)"):
        simulated(returning("phases", (Phase(loss=squared),)), Execution(backend=backend))


@pytest.mark.parametrize(
    ("phase", "complaint"),
    [
        ({"gradient": lambda *_: torch.zeros(1)}, "gradient): a return value of type Tensor is"),
        (
            {"gradient": lambda *_: ({}, torch.zeros(()))},
            "gradient): a mapping without '*' is not accepted; expected a mapping from the parameters in",
        ),
        (
            {"gradient": lambda client, _: (dict(client.weights), torch.zeros(1))},
            "gradient): loss: a tensor of shape (1,) is not accepted; expected a tensor of shape ()",
        ),
        ({"step": lambda client, *_: client.weights}, "step): a return value of type dict is not"),
        (
            {"step": lambda *_: Step({"head.bias": torch.zeros(1)}, torch.zeros(()))},
            "step): head.bias: a tensor of shape (1,) is not accepted; expected a tensor of shape (10,)",
        ),
        (
            {"step": lambda *_: Step({"heads": torch.zeros(1)}, torch.zeros(()))},
            "step): params: 'heads' is not accepted; expected names of parameters in training",
        ),
    ],
)
def test_a_hook_of_a_phase_is_refused(phase, complaint, backend):
    line = refusal(simulated, returning("phases", (Phase(**phase),)), Execution(backend=backend))
    assert fnmatch(line, f"Wrong: Phase({complaint}*")


@pytest.mark.parametrize(
    ("hook", "value", "complaint"),
    [
        (
            "initialise",
            lambda server: server.state.update(step=0.5),
            "state['step']: a value of type float is not accepted; expected a tensor",
        ),
        (
            "initialise",
            lambda server: server.client_state.update(variate={"head.bias": torch.zeros(3, 10)}),
            "client_state['variate']['head.bias']: a tensor of shape (3, 10) is not accepted; "
            "expected a tensor (4, ...)",
        ),
        (
            "initialise",
            lambda server: server.client_state.update(rate=torch.tensor(0.5)),
            "client_state['rate']: a tensor of shape () is not accepted; expected a tensor (4, ...)",
        ),
        (
            "initialise",
            {"step": torch.zeros(1)},
            "a return value of type dict is not accepted; "
            "expected None; tensors belong in server.state and server.client_state",
        ),
        (
            "initialise",
            lambda server: server.state.update(net=torch.zeros(1, requires_grad=True)),
            "state['net']: a tensor that requires a gradient is not accepted; "
            "expected a dense tensor without gradient; use detach() or to_dense()",
        ),
        (
            "initialise",
            lambda server: server.client_state.update(mask=torch.zeros(4, 2).to_sparse()),
            "client_state['mask']: a sparse tensor is not accepted; "
            "expected a dense tensor without gradient; use detach() or to_dense()",
        ),
        (
            "dispatch",
            {"drift": Sent(0.5)},
            "drift: Sent: a value of type float is not accepted; expected a tensor (1 or 4, ...)",
        ),
        (
            "dispatch",
            {"drift": Sent({"head.bias": torch.zeros(3, 10)})},
            "drift: Sent['head.bias']: a tensor of shape (3, 10) is not accepted; "
            "expected a tensor (1 or 4, ...)",
        ),
    ],
)
def test_what_a_method_stores_or_sends_has_a_row_per_client(hook, value, complaint):
    wrong = returning(hook, value)
    line = refusal(pfl.simulate, wrong, clients=4, participation=1.0, rounds=1, progress=False)
    assert line == f"Wrong.{hook}: {complaint}"


@pytest.mark.parametrize("since", [1, 2])
def test_state_that_is_not_a_tensor_is_refused_after_one_round_and_before_a_checkpoint(since, tmp_path):
    class Wrong(pfl.Method):
        """A wrong method."""

        def aggregate(self, server):
            if server.round == since:
                server.state["progress"] = {"round": float(server.round)}
            return {}

    execution = Execution(checkpoint_dir=str(tmp_path), code="1") if since > 1 else Execution()
    line = refusal(
        pfl.simulate, Wrong, clients=4, rounds=since, epochs=1, execution=execution, progress=False
    )
    assert (
        line == "Wrong: state['progress']['round']: a value of type float is not accepted; expected a tensor"
    )


@pytest.mark.parametrize("headline", ["adapted", "post_training"])
def test_a_headline_that_is_never_evaluated_is_refused_after_one_round(headline):
    class Wrong(pfl.Method):
        """A wrong method."""

        def aggregate(self, server):
            assert server.round == 1
            return {}

    Wrong.headline = headline
    assert refusal(pfl.simulate, Wrong, clients=4, rounds=5, epochs=1, progress=False) == (
        f"Wrong.headline: {headline} is not accepted; expected post_aggregation or post_local; "
        "adapted requires phases from the hook adaptation"
    )


def test_a_hyperparameter_outside_of_a_dataclass_is_refused():
    class Wrong(pfl.Method):
        """A wrong method."""

        mu: float = hyper(0.1, "weight of the term")

    assert refusal(simulated, Wrong) == (
        "Wrong.mu: a field of a class that is not a dataclass is not accepted; "
        "expected @dataclass(frozen=True) before the class"
    )


def test_what_a_training_of_its_own_gets_names_its_purpose():
    def trained(server):
        server.train("warm up", server.client_ids, server.store.tensors, [None])

    with pytest.raises(InvalidInput, match=r"^Wrong\.train\('warm up'\): a value of type NoneType is not"):
        simulated(returning("aggregate", trained))


def test_participants_may_be_any_integers_and_phases_a_list():
    for hook, value in (("participants", torch.tensor([3, 1], dtype=torch.int32)), ("phases", [Phase()])):
        (run,) = simulated(returning(hook, value))
        assert len(run.metrics.rounds) == 1


@pytest.mark.parametrize("hook", ["dispatch", "aggregate"])
def test_a_value_of_another_precision_is_stored_in_that_of_the_network(hook, backend):
    method = returning(hook, {"head.bias": torch.zeros(1, 10, dtype=torch.float64)})
    (run,) = simulated(method, Execution(backend=backend))
    assert run.metrics.diverged_at is None


@pytest.mark.parametrize(
    ("name", "hook"),
    [
        ("initialize", "initialise"),
        ("aggregat", "aggregate"),
        ("score", "scores"),
        ("adaption", "adaptation"),
    ],
)
def test_a_function_that_is_almost_a_hook_is_rejected(name, hook):
    def own(_, server):
        return server

    with pytest.raises(InvalidInput, match=f"Almost.{name}: .* expected the hook '{hook}', or a name that"):
        type("Almost", (pfl.Method,), {name: own})
    type("Almost", (pfl.Method,), {name: own, hook: own})  # a helper of the hook
    type("Almost", (pfl.Method,), {f"_{name}": own})


def test_helpers_with_names_like_those_of_hooks_are_accepted():
    helpers = ("aggregation", "aggregate_all", "adapted", "losses", "personalised", "phases_of")
    type("Helpers", (pfl.Method,), {name: lambda _, server: server for name in helpers})


def test_an_attribute_set_on_a_method_is_rejected():
    class Own(pfl.Method):
        def __init__(self, mu=0.1):
            self.mu = mu

    class Counting(pfl.Method):
        def aggregate(self, server):
            self.rounds = 1
            return {}

    accepted = "an attribute set on a method is not accepted; expected hyper"
    with pytest.raises(InvalidInput, match=f"Own.mu: {accepted}"):
        Own(mu=0.3)
    with pytest.raises(InvalidInput, match=f"Counting.rounds: {accepted}"):
        simulated(Counting)


@pytest.mark.parametrize("backend", ["loop", "stacked"])
@pytest.mark.parametrize(
    ("returned", "complaint"),
    [
        (lambda batch: batch.x.mean(), "means: a return value of type Tensor .* a mapping from names to"),
        (lambda batch: {"n": len(batch.y)}, r"means: n: a value of type int .* a tensor, as batch\.sum"),
    ],
)
def test_a_statistic_that_is_no_mapping_to_tensors_is_rejected(returned, complaint, backend):
    def means(_, batch):
        return returned(batch)

    def aggregate(server):
        server.collect(means, server.participants, server.trained)

    with pytest.raises(InvalidInput, match=f"^{complaint}"):
        simulated(returning("aggregate", aggregate), Execution(backend=backend))


@pytest.mark.parametrize(
    ("ids", "complaint"),
    [
        ({"rows": [0, 1]}, "rows of type list .* expected a tensor of distinct integers from 0 to 3"),
        ({"rows": torch.tensor([0, 4])}, r"rows \[0, 4\] is not accepted"),
        ({"rows": torch.tensor([1, 1])}, r"rows \[1, 1\] is not accepted; expected a tensor of distinct"),
        ({"rows": torch.tensor([True, False])}, r"rows of shape \(2,\) and torch.bool is not accepted"),
        ({"rows": torch.tensor([0, 1]), "sources": torch.tensor([-1, 0])}, r"sources \[-1, 0\] is not"),
        ({"rows": torch.tensor([0, 1]), "sources": (0, 1)}, "sources of type tuple is not accepted"),
    ],
)
def test_the_clients_of_a_matrix_are_checked(ids, complaint):
    with pytest.raises(InvalidInput, match=rf"^Wrong\.aggregate: .*: a Dense with {complaint}"):
        simulated(returning("aggregate", {"all": Dense(torch.eye(2), **ids)}))
