"""SPFL's similarity, its refresh and its two mixtures, by hand."""

import math
from types import SimpleNamespace

import pytest
import torch

from pfl.core.errors import InvalidInput
from pfl.engine.client_store import ClientStore
from pfl.engine.mixing import Identity, check_rows
from pfl.methods.spfl import SPFL
from tests.methods.scripted import history, models, scripted
from tests.methods.toy import tensor


def refreshed(copies, **hyper):
    """The server after a refresh of two clients with two layers, whose copies train to ``copies``."""
    groups = SimpleNamespace(trainable=("base.weight", "head.weight"))
    server = SimpleNamespace(
        store=ClientStore(
            {"base.weight": tensor([[0, 0], [2, 2]]), "head.weight": tensor([[5, 5], [5, 5]])}, 2
        ),
        groups=groups,
        clients=2,
        client_ids=torch.arange(2),
        participants=torch.tensor([1]),
        count=lambda *_, **__: None,
        scalars=lambda *_: 0,
        round=1,
        state={},
        train=lambda *_: SimpleNamespace(tensors=copies),
    )
    method = SPFL(stages="layer", **hyper)
    method.initialise(server)
    method.dispatch(server)
    return server


# From the mean (1, 1) and (5, 5): changes (1, 0) and (1, 1) of the base, (1, 0) and none of the head.
COPIES = {"base.weight": tensor([[0, 1], [0, 0]]), "head.weight": tensor([[4, 5], [5, 5]])}


def test_a_stage_of_vectors_alone_is_compared_as_a_whole():
    vectors = {"norm.weight": tensor([[1, 0], [0, 1]]), "norm.bias": tensor([[0, 0], [0, 0]])}
    alike = SPFL(stages="layer", similarity="layers")._alike(vectors)
    assert alike.tolist() == [[1, 0], [0, 1]]


def row(own, other):
    """The softmax of two cosines."""
    total = math.exp(own) + math.exp(other)
    return [math.exp(own) / total, math.exp(other) / total]


def test_a_refresh_takes_the_softmax_of_the_cosines_stage_by_stage():
    base, head = refreshed(COPIES).state["similarity"]
    assert base[0].tolist() == pytest.approx(row(1, 1 / math.sqrt(2)))
    assert base[1].tolist() == pytest.approx(row(1, 1 / math.sqrt(2))[::-1])
    assert head[0].tolist() == pytest.approx(row(1, 0))  # no change has no direction


def test_the_temperature_sharpens_the_softmax():
    base, _ = refreshed(COPIES, temperature=0.1).state["similarity"]
    assert base[0].tolist() == pytest.approx(row(10, 10 / math.sqrt(2)))


def of_layers(count):
    """Changes of two clients in so many layers: alike in the first, apart in the others; biases opposed."""
    here, there = [[1.0, 0.0]], [[0.0, 1.0]]
    weights = {f"{k}.weight": tensor([here, there if k else here]) for k in range(count)}
    return {**weights, **{f"{k}.bias": tensor([[1.0], [-1.0]]) for k in range(count)}}


@pytest.mark.parametrize(("count", "first"), [(1, 1.0), (2, 1 / 2), (3, 0.5), (4, 0.4), (5, 1 / 5)])
def test_the_authors_similarity_is_a_weighted_mean_of_the_layers_cosines(count, first):
    alike = SPFL(similarity="layers")._alike(of_layers(count))
    assert alike[0].tolist() == pytest.approx([1, first])


def test_a_refresh_sets_everybody_to_the_mean():
    server = refreshed(COPIES)
    assert server.store["base.weight"].tolist() == [[1, 1], [1, 1]]


def run(rounds, **hyper):
    """Clients 0 and 1 add 1 and 2, client 2 subtracts 4; their sizes are 10, 20 and 10.

    Changes are the same in every element, so that S is the softmax of cosines of 1 and -1.
    """
    simulation = scripted("spfl", [1.0, 2.0, -4.0], [10, 20, 10], **hyper)
    return history(simulation, rounds)


ALIKE, OPPOSITE = math.e, math.exp(-1)
FIRST = (10 * ALIKE * 1 + 20 * ALIKE * 2 + 10 * OPPOSITE * -4) / (30 * ALIKE + 10 * OPPOSITE)
LAST = (10 * OPPOSITE * 1 + 20 * OPPOSITE * 2 + 10 * ALIKE * -4) / (30 * OPPOSITE + 10 * ALIKE)


def test_deltas_are_mixed_on_top_of_the_clients_own_models():
    first, second = run(2)
    assert first == pytest.approx([FIRST, FIRST, LAST])
    assert second == pytest.approx([2 * FIRST, 2 * FIRST, 2 * LAST])


def test_in_spfl_w_weights_are_mixed():
    first, second = run(2, mix="weights")
    assert first == pytest.approx([FIRST, FIRST, LAST])
    shares = 30 * ALIKE / (30 * ALIKE + 10 * OPPOSITE)
    assert second[0] == pytest.approx(shares * FIRST + (1 - shares) * LAST + FIRST)


def test_the_refresh_comes_before_the_round_after_gamma_rounds():
    _, second, third = run(3, refresh=2)
    mean = sum(second) / 3
    assert third == pytest.approx([mean + FIRST, mean + FIRST, mean + LAST])


def test_the_similarity_stays_until_the_next_refresh():
    directions = {1: [1, 1, 1], 3: [1, 1, -1]}  # of the copies, in rounds with a refresh
    simulation = scripted(
        "spfl",
        lambda purpose, round, client: directions[round][client] if purpose == "refresh" else 1.0,
        [12] * 3,
        refresh=2,
    )
    observed = []
    for _ in range(4):
        simulation.advance()
        observed.append(simulation.runs[0].server.state["similarity"][0].clone())
    assert observed[0].equal(observed[1])
    assert observed[0].flatten().tolist() == pytest.approx([1 / 3] * 9)
    assert observed[2].equal(observed[3])
    assert observed[2][0, 2] == pytest.approx(OPPOSITE / (2 * ALIKE + OPPOSITE))


def test_a_local_head_keeps_the_clients_own_change():
    simulation = scripted("spfl", [1.0, -1.0], [12] * 2, head_stage="local")
    simulation.advance()
    server = simulation.runs[0].server
    moved = server.store["head.bias"] - simulation.backend.initial["head.bias"]
    assert moved[:, 0].tolist() == pytest.approx([1, -1])
    mixing = simulation.program.method.aggregate(server)
    assert isinstance(mixing["head"], Identity)
    for matrix in mixing.values():
        check_rows(matrix)


@pytest.mark.parametrize("mix", ["deltas", "weights"])
def test_an_averaged_head_is_the_plain_mean(mix):
    simulation = scripted("spfl", [1.0, -1.0], [12] * 2, head_stage="average", mix=mix)
    simulation.advance()
    server, initial = simulation.runs[0].server, simulation.backend.initial
    moved = {name: (server.store[name] - initial[name]).flatten(1)[:, 0] for name in initial}
    assert moved["head.bias"].tolist() == moved["head.weight"].tolist() == pytest.approx([0, 0])
    own = (ALIKE - OPPOSITE) / (ALIKE + OPPOSITE)
    assert moved[next(iter(initial))].tolist() == pytest.approx([own, -own])


def test_fine_tuning_may_have_another_batch_size():
    def phases(**hyper):
        return SPFL(**hyper).adaptation(SimpleNamespace())

    assert phases() == ()
    assert phases(finetune_steps=10)[0].batch_size is None
    (phase,) = phases(finetune_steps=10, finetune_batch_size=64)
    assert (phase.steps, phase.batch_size) == (10, 64)


def test_equation_7_as_printed_hardly_moves():
    printed, ours = run(1, literal=True, alpha=0.01)[0], run(1)[0]
    total = 2 * ALIKE + OPPOSITE
    assert printed[0] == pytest.approx(0.01 * (30 * ALIKE + 10 * OPPOSITE) / total / 40 * ours[0])


def test_weights_cannot_be_mixed_as_printed():
    with pytest.raises(InvalidInput, match="literal"):
        SPFL(literal=True, mix="weights")


def test_absent_clients_keep_their_models_between_refreshes():
    simulation = scripted("spfl", lambda *_: 1.0, [12] * 6, participation=0.5)
    simulation.advance()
    present = simulation.runs[0].server.participants.tolist()
    assert models(simulation) == pytest.approx([float(k in present) for k in range(6)])


def test_a_refresh_costs_everybody_one_more_model_each_way():
    simulation = scripted("spfl", lambda *_: 1.0, [12] * 6, participation=0.5)
    run, sent = simulation.runs[0], []
    for _ in range(2):
        simulation.advance()
        sent.append((run.bytes_down, run.bytes_up))
    model = 4 * run.server.scalars("all")
    assert sent == [(9 * model, 9 * model), (12 * model, 12 * model)]
