"""Mixing matrices and the store that they act on."""

import copy
import dataclasses
import re

import pytest
import torch

import pfl
from pfl.core.errors import InvalidInput
from pfl.engine.client_store import ClientStore
from pfl.engine.mixing import Average, DeltaMix, Dense, Identity, Masked, Sum, check_rows, mix, mixed
from pfl.engine.round import aggregate, dispatch
from pfl.testing.emulated import DEVICE, emulated
from tests.methods.toy import after_rounds
from tests.refusal import refusal


def test_dense_rows_read_a_snapshot():
    store = ClientStore({"w": torch.tensor([[1.0], [2.0], [4.0]])}, clients=3)
    shift = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    mix(store, "w", Dense(shift))
    assert store["w"].flatten().tolist() == [2.0, 4.0, 1.0]


def test_dense_with_own_weight_changes_only_its_rows():
    store = ClientStore({"w": torch.tensor([[1.0], [2.0], [4.0]])}, clients=3)
    matrix = Dense(
        torch.tensor([[0.25, 0.25]]),
        rows=torch.tensor([2]),
        sources=torch.tensor([0, 1]),
        own=torch.tensor([0.5]),
    )
    mix(store, "w", matrix)
    assert store["w"].flatten().tolist() == [1.0, 2.0, 0.25 * 1 + 0.25 * 2 + 0.5 * 4]


CLIENTS, PRESENT = 6, torch.tensor([1, 4])
MEAN = Average(torch.tensor([0.25, 0.75]))
DELTA = DeltaMix(torch.eye(2), torch.ones(2))
BLENDED = Average(torch.tensor([0.2, 0.3]), own=torch.tensor(0.5))


@pytest.fixture
def server(dataset, partition):
    """Client i has stored i in its head's bias; clients 1 and 4 have trained it to 11 and 14."""
    _, server = after_rounds("local", dataset, partition, 0)
    server.round, server.participants = 1, PRESENT
    server.store.write(
        server.store.client_ids, {"head.bias": torch.arange(6.0).double()[:, None].expand(6, 4)}
    )
    dispatch(server, {})
    server.trained = {**server.received, "head.bias": server.received["head.bias"] + 10}
    return server


@pytest.mark.parametrize("kept", ["state", "client_state"])
def test_a_value_that_is_a_method_s_state_is_that_of_the_moment(kept, server):
    state = torch.ones(CLIENTS, 4, dtype=torch.float64)
    getattr(server, kept)["biases"] = {"head": state}
    dispatch(server, {"head.bias": state[:2]})
    aggregate(server, {"head.bias": state[2:3]})
    state.zero_()
    assert server.received["head.bias"].unique().tolist() == [1.0]
    assert server.store["head.bias"].unique().tolist() == [1.0]


def test_a_state_that_begins_as_the_initial_model_is_not_the_stored_one():
    class Halving(pfl.Method):
        """Halves its state in every round."""

        def initialise(self, server):
            server.state["model"] = dict(server.initial)

        def dispatch(self, server):
            for tensor in server.state["model"].values():
                tensor.mul_(0.5)
            return {}

    def measured(server, _):
        return torch.equal(server.state["model"]["head.weight"], 0.5 * server.initial["head.weight"])

    (run,) = pfl.simulate(Halving, clients=4, rounds=1, epochs=1, measure=measured, progress=False)
    assert run.measurements == [True]


def biases(server, matrix):
    aggregate(server, {"head.bias": matrix})
    return server.store["head.bias"][:, 0].tolist()


def test_a_sum_with_the_identity_keeps_a_share_of_every_client_s_own_model(server):
    mean = 0.25 * 11 + 0.75 * 14
    own = [0.0, 11.0, 2.0, 3.0, 14.0, 5.0]
    assert biases(server, 0.9 * MEAN + 0.1 * Identity()) == pytest.approx([0.9 * mean + 0.1 * v for v in own])


def test_a_sum_of_averages_is_an_average_that_is_stored_once(server):
    plain = Average(torch.tensor([0.5, 0.5]))
    assert biases(server, 0.5 * (MEAN + plain)) == pytest.approx([(13.25 + 12.5) / 2] * CLIENTS)
    assert server.store.shared("head.bias")


def test_an_average_in_a_sum_reads_the_old_value_before_it_is_replaced(server):
    server.store.share("head.bias", torch.full((4,), 100.0).double())
    assert biases(server, 0.5 * MEAN + 0.5 * BLENDED)[0] == pytest.approx(13.25 / 2 + (6.4 + 50) / 2)


@pytest.mark.parametrize(("matrix", "share"), [(BLENDED, 1.0), (0.5 * MEAN + 0.5 * BLENDED, 0.5)])
def test_an_average_with_own_weight_keeps_a_share_of_each_client_s_stored_value(matrix, share, server):
    expected = [(1 - share) * 13.25 + share * (6.4 + 0.5 * stored) for stored in range(CLIENTS)]
    assert biases(server, matrix) == pytest.approx(expected)


def test_a_sum_changes_the_rows_that_its_terms_change_and_no_others(server):
    swapped = Dense(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), rows=PRESENT, sources=PRESENT)
    second = Dense(torch.tensor([[1.0]]), rows=torch.tensor([2]), sources=torch.tensor([4]))
    new = biases(server, 0.3 * swapped + 0.3 * second + 0.4 * Identity())
    assert [new[k] for k in (1, 2, 4)] == pytest.approx([4.2 + 0.7 * 11, 4.2 + 0.7 * 2, 3.3 + 0.7 * 14])
    assert [new[k] for k in (0, 3, 5)] == [0, 3, 5]


def test_a_sum_with_a_mask_is_a_sum_element_by_element(server):
    mask = torch.tensor([[True, False, False, False]]).expand(6, 4)
    masked = Masked(mask, Dense(torch.eye(6)), Dense(torch.full((1, 2), 0.5), sources=PRESENT))
    aggregate(server, {"head.bias": 0.5 * masked + 0.5 * Identity()})
    assert server.store["head.bias"][0].tolist() == pytest.approx([0, 6.25, 6.25, 6.25])


def test_participants_start_from_a_sum(server):
    dispatch(server, {"head.bias": 0.5 * Identity() + 0.5 * Dense(torch.full((2, 6), 1 / 6))})
    assert server.received["head.bias"][:, 0].tolist() == pytest.approx([0.5 + 1.25, 2 + 1.25])


def test_own_weights_of_a_start_are_those_of_the_participants(server):
    shares = torch.full((2, 6), 0.75 / 6)
    own = Dense(shares, own=torch.tensor([0.25, 0.25]))
    mask = torch.tensor([[True, False, False, False]] * 2)
    one_for_all = Dense(shares[:1], own=torch.tensor([0.25]))
    for matrix in (own, 1.0 * own, Masked(mask, own, one_for_all), dataclasses.replace(own, rows=PRESENT)):
        dispatch(server, {"head.bias": matrix})
        start = [[0.75 * 2.5 + 0.25 * client] * 4 for client in (1, 4)]
        torch.testing.assert_close(server.received["head.bias"], torch.tensor(start).double())


@pytest.mark.parametrize("rows", [[0, 1], [4, 1]])
def test_rows_of_a_start_are_the_participants_in_their_order(server, rows):
    mixing = {"head.bias": Dense(torch.full((2, 6), 1 / 6), rows=torch.tensor(rows))}
    complaint = f"a Dense with rows {rows} is not accepted; expected the participants, [1, 4]"
    assert refusal(dispatch, server, mixing) == f"Local.dispatch: head.bias: {complaint}"


def test_own_weights_outside_of_a_mask_are_those_of_the_clients_inside(server):
    inside = Dense(torch.tensor([[1.0]]), rows=torch.tensor([4]), sources=torch.tensor([1]))
    outside = Dense(torch.tensor([[0.5]]), sources=torch.tensor([1]), own=torch.tensor([0.5]))
    aggregate(server, {"head.bias": Masked(torch.tensor([[True, False, False, False]]), inside, outside)})
    assert server.store["head.bias"][4].tolist() == [11, 12.5, 12.5, 12.5]


@pytest.mark.parametrize("mixing", [MEAN, 0.5 * Identity() + 0.5 * MEAN])
def test_a_dispatch_cannot_mix_what_is_not_trained_yet(server, mixing):
    with pytest.raises(InvalidInput, match=r"^\w+\.dispatch: head.bias: a value of type Average is"):
        dispatch(server, {"head.bias": mixing})


@pytest.mark.parametrize(
    ("returned", "complaint"),
    [
        (None, "a return value of type NoneType is not accepted; expected a mapping from groups"),
        (MEAN, "a return value of type Average is not accepted"),
        ({"haed": MEAN}, "group: haed is not accepted; expected one of .* (did you mean 'head'?)"),
        ({"head.bias": None}, "head.bias: a value of type NoneType is not accepted; expected Average, "),
        ({"head.bias": torch.zeros(6, 4)}, "a tensor of shape (6, 4) is .*; expected shape (1, 4)"),
        ({"head": torch.zeros(1, 4)}, "head.weight: a tensor of shape (1, 4) is not accepted"),
        ({"head.bias": Average(torch.ones(6) / 6)}, "an Average with weights of shape (6,) .* shape (2,)"),
        (
            {"head.bias": Average(torch.zeros(2), own=torch.ones(6))},
            "an Average with own weight of shape (6,) is not accepted; expected shape ()",
        ),
        ({"head.bias": Dense(torch.eye(2))}, "a Dense with a matrix of shape (2, 2) .* shape (6, 6)"),
        ({"head.bias": Dense(torch.eye(6), own=torch.zeros(1))}, "own weights of shape (1,) .* shape (6,)"),
        ({"head.bias": Dense(torch.eye(2), PRESENT)}, "matrix of shape (2, 2) .* shape (2, 6)"),
        ({"head.bias": 0.5 * MEAN + 0.5 * Dense(torch.eye(3))}, "a Dense with a matrix of shape (3, 3)"),
        ({"head.bias": 0.5 * DELTA + 0.5 * Identity()}, "a sum with a term of type DeltaMix is not accepted"),
        ({"head.bias": Sum(((1.0, DELTA),))}, "a sum with a term of type DeltaMix is not accepted"),
        ({"head.bias": Sum(((1.0, 1.0 * MEAN),))}, "a sum with a term of type Sum is not accepted; expected"),
        ({"head.bias": Sum(((1.0, torch.ones(1, 4)),))}, "a sum with a term of type Tensor is not accepted"),
        ({"head.bias": DeltaMix(torch.eye(6), torch.ones(6))}, "a DeltaMix with a matrix of shape (6, 6)"),
        ({"head.bias": DeltaMix(torch.eye(2), torch.ones(6))}, "a DeltaMix with a step of shape (6,)"),
        (
            {"head.bias": Masked(torch.ones(6, 5) > 0, Dense(torch.eye(6)), Dense(torch.eye(6)))},
            "a Masked with a mask of shape (6, 5) is not accepted; expected shape (6, 4)",
        ),
        (
            {"head.bias": Masked(torch.ones(6, 4) > 0, MEAN, Dense(torch.eye(6)))},
            "a Masked of Average and Dense is not accepted; expected a Masked of two Dense",
        ),
    ],
)
def test_a_wrong_mixing_is_one_line_that_names_the_method_and_the_hook(server, returned, complaint):
    line = re.escape(complaint).replace(r"\.\*", ".*").replace(r"\ ", " ")
    with pytest.raises(InvalidInput, match=rf"^\w+\.aggregate: .*{line}"):
        aggregate(server, returned)


def test_participants_start_from_a_value_of_their_own_or_of_all(server):
    for rows in (1, 2):
        dispatch(server, {"head.bias": torch.zeros(rows, 4)})
    with pytest.raises(InvalidInput, match=r"^\w+\.dispatch: .*expected shape \(1, 4\) or \(2, 4\)"):
        dispatch(server, {"head.bias": torch.zeros(6, 4)})
    with pytest.raises(InvalidInput, match=r"^\w+\.dispatch: a return value of type NoneType is not"):
        dispatch(server, None)


def test_a_sum_is_weighted_as_a_whole_and_from_either_side():
    total = 0.5 * (MEAN + Identity() * 0.5)
    assert total.terms == ((0.5, MEAN), (0.25, Identity()))


@pytest.mark.parametrize("other", [1, 0.5, torch.ones(2)])
def test_a_mixing_is_added_to_mixings_only(other):
    with pytest.raises(TypeError, match="unsupported operand"):
        MEAN + other


@pytest.mark.parametrize("total", [0.1 * MEAN, MEAN + Identity(), 1.5 * MEAN + -0.5 * Identity()])
def test_the_weights_of_a_sum_are_shares(total):
    with pytest.raises(InvalidInput, match="non-negative weights that sum to 1"):
        check_rows(total)


@pytest.mark.parametrize(
    "matrix",
    [
        0.5 * Identity() + 0.5 * Average(torch.tensor([0.5, 0.6])),
        Average(torch.tensor([0.5, 0.6])),
        Dense(torch.tensor([[0.5, 0.4]])),
        Dense(torch.tensor([[1.5, -0.5]])),
        Dense(torch.tensor([[0.5, 0.5]]), own=torch.tensor([0.1])),
        Average(torch.tensor([0.5, 0.5]), own=torch.tensor(0.1)),
        DeltaMix(torch.tensor([[0.5, 0.4]]), step=torch.ones(1)),
        Masked(torch.ones(1, 2), Dense(torch.ones(1, 1)), Dense(torch.tensor([[0.5, 0.4]]))),
        Masked(torch.ones(1, 2), Dense(torch.tensor([[0.5, 0.4]])), Dense(torch.ones(1, 1))),
    ],
)
def test_rows_that_do_not_sum_to_one_are_refused(matrix):
    with pytest.raises(InvalidInput, match="rows of non-negative weights that sum to 1"):
        check_rows(matrix)


def test_a_client_store_stores_the_rows_of_those_who_wrote_and_no_others():
    store = ClientStore({"w": torch.zeros(1, 3)}, clients=1_000_000)
    for client in (999_999, 5, 999_999):
        store.write(torch.tensor([client]), {"w": torch.full((1, 3), float(client))})
    assert len(store.stacks["w"].values) == 3  # the common value and two rows
    assert store.rows(torch.tensor([999_999, 6, 5]))["w"][:, 0].tolist() == [999_999, 0, 5]


def test_a_checkpoint_has_what_is_stored_without_the_room_for_more():
    store = ClientStore({"w": torch.zeros(1, 3)}, clients=1000)
    store.write(torch.tensor([7]), {"w": torch.ones(1, 3)})
    values, _ = store.state()["w"]
    assert values.untyped_storage().nbytes() == values.nbytes == 2 * 3 * 4
    assert torch.equal(values, torch.tensor([[0.0] * 3, [1.0] * 3]))


def test_a_client_store_does_not_grow_into_the_memory_that_its_first_values_came_from():
    whole = torch.zeros(100, 3)
    store = ClientStore({"w": whole[:1]}, clients=100)
    store.share("w", whole[0])
    store.write(torch.arange(50), {"w": torch.ones(50, 3)})
    assert not whole.any()


def test_tensors_hold_what_was_written_whether_together_or_alone():
    random = torch.Generator().manual_seed(0)
    store = ClientStore({"w": torch.zeros(1, 3), "b": torch.ones(1, 2)}, clients=9)
    expected = {"w": torch.zeros(9, 3), "b": torch.ones(9, 2)}
    for step in range(60):
        names = [("w", "b"), ("w",), ("b",)][step % 3]
        ids = torch.randperm(9, generator=random)[: 1 + step % 2]
        new = {name: torch.randn(len(ids), *store.shape(name), generator=random) for name in names}
        store.write(ids, new)
        for name, values in new.items():
            expected[name][ids] = values
        if step == 30:
            store.share("b", torch.tensor([4.0, 5.0]))
            expected["b"][:] = torch.tensor([4.0, 5.0])
        assert all(torch.equal(store[name], expected[name]) for name in expected)


def test_a_client_store_that_was_put_back_grows_on():
    store = ClientStore({"w": torch.zeros(1, 2)}, clients=5)
    store.write(torch.tensor([4]), {"w": torch.full((1, 2), 4.0)})
    again = ClientStore({"w": torch.zeros(1, 2)}, clients=5)
    again.restore(copy.deepcopy(store.state()), torch.device("cpu"))
    again.write(torch.tensor([0, 1]), {"w": torch.ones(2, 2)})
    assert again["w"][:, 0].tolist() == [1, 1, 0, 0, 4]


def test_mixing_reads_what_is_stored_as_it_reads_the_rows_of_all():
    generator = torch.Generator().manual_seed(0)
    store = ClientStore({"w": torch.randn(1, 3, dtype=torch.float64, generator=generator)}, clients=6)
    store.write(torch.tensor([4, 1]), {"w": torch.randn(2, 3, dtype=torch.float64, generator=generator)})
    matrix = Dense(torch.rand(2, 6, dtype=torch.float64, generator=generator), rows=torch.tensor([1, 5]))
    torch.testing.assert_close(mixed(store.stacks["w"], matrix), mixed(store["w"], matrix))


def test_a_copy_of_rows_does_not_see_what_is_written_later():
    store = ClientStore({"w": torch.tensor([[1.0], [2.0]])}, clients=2)
    before = store.stacks["w"].copy()
    store.write(torch.tensor([1]), {"w": torch.tensor([[5.0]])})
    assert before[:].tolist() == [[1], [2]]
    assert store["w"].tolist() == [[1], [5]]


def test_a_client_store_in_host_memory_hands_its_rows_to_the_device():
    with emulated():
        store = ClientStore({"w": torch.zeros(1, 3, device=DEVICE)}, clients=4, home=torch.device("cpu"))
        store.write(torch.tensor([1]).to(DEVICE), {"w": torch.ones(1, 3, device=DEVICE)})
        for _ in range(2):
            assert store.stacks["w"].values.device.type == "cpu"
            rows = store.rows(torch.tensor([0, 1]).to(DEVICE))["w"]
            assert (rows.device, rows.tolist()) == (DEVICE, [[0.0] * 3, [1.0] * 3])
            store.restore(store.state(), DEVICE)
