import pytest
import torch
from torch import nn

from pfl.core.errors import InvalidInput
from pfl.models._layers import BatchNorm2d, Dropout

CHANNELS = 5


def filled(norm: nn.BatchNorm2d, seed: int) -> nn.BatchNorm2d:
    """``norm`` in float64 with random parameters and statistics."""
    random = torch.Generator().manual_seed(seed)
    norm.double()
    for tensor in (norm.weight.data, norm.bias.data, norm.running_mean, norm.running_var):
        tensor.copy_(torch.rand(CHANNELS, generator=random, dtype=torch.float64) + 0.5)
    return norm


def images(rows: int, seed: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(rows, CHANNELS, 3, 4, generator=random, dtype=torch.float64)


def step(norm: nn.Module, x: torch.Tensor, real: int) -> list[torch.Tensor]:
    """Outputs of the real rows, gradients, and statistics after one forward and backward pass."""
    x = x.clone().requires_grad_()
    y = norm(x)[:real]
    gradients = torch.autograd.grad(y.pow(3).sum(), [x, norm.weight, norm.bias])
    return [y.detach(), gradients[0][:real], *gradients[1:], norm.running_mean, norm.running_var]


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_without_rows_is_torch_s_bit_for_bit(training):
    ours, theirs = filled(BatchNorm2d(CHANNELS), 0), filled(nn.BatchNorm2d(CHANNELS), 0)
    ours.train(training), theirs.train(training)

    x = images(6, 1)
    torch.testing.assert_close(step(ours, x, 6), step(theirs, x, 6), rtol=0, atol=0)


def test_a_batch_of_padding_alone_moves_no_statistic_and_stays_finite():
    norm = filled(BatchNorm2d(CHANNELS), 0)
    mean, variance = norm.running_mean.clone(), norm.running_var.clone()
    norm.rows = torch.zeros(3, dtype=torch.float64)

    assert norm(images(3, 1)).isfinite().all()
    assert torch.equal(norm.running_mean, mean)
    assert torch.equal(norm.running_var, variance)


@pytest.mark.parametrize("stacked", [False, True])
def test_a_single_value_per_channel_is_refused_in_training_only(stacked):
    norm = filled(BatchNorm2d(CHANNELS), 0)

    def normalised(x):
        return torch.vmap(norm)(x[None]) if stacked else norm(x)

    with pytest.raises(InvalidInput, match="batch_size: 1 is not accepted; expected at least 2 for this"):
        normalised(images(1, 1)[..., :1, :1])
    norm.eval()
    assert normalised(images(1, 1)[..., :1, :1]).isfinite().all()


def test_evaluation_ignores_which_rows_are_real():
    norm = filled(BatchNorm2d(CHANNELS), 0).eval()
    expected = norm(images(6, 1))
    norm.rows = torch.tensor([1, 0, 0, 0, 0, 0], dtype=torch.float64)

    assert torch.equal(norm(images(6, 1)), expected)


def test_batch_norm_has_no_counter_and_loads_states_without_one():
    norm = BatchNorm2d(CHANNELS)
    assert set(norm.state_dict()) == {"weight", "bias", "running_mean", "running_var"}
    norm.load_state_dict(dict(norm.state_dict()))


def keyed(key: int, p: float = 0.2) -> Dropout:
    dropout = Dropout(p)
    dropout.key = torch.tensor(key)
    return dropout


def test_dropout_drops_its_share_and_keeps_the_mean():
    y = keyed(5)(torch.ones(100, 1000))

    assert y.unique().tolist() == [0, 1.25]
    assert (y == 0).double().mean() == pytest.approx(0.2, abs=0.005)
    assert (y == 0).double().mean(0).std() == pytest.approx((0.2 * 0.8 / 100) ** 0.5, rel=0.1)
    assert (y == 0).double().mean(1).std() == pytest.approx((0.2 * 0.8 / 1000) ** 0.5, rel=0.3)


@pytest.mark.parametrize("other", [6, 7, 5 + 2**20])
def test_dropout_masks_of_two_keys_are_independent(other):
    first, second = keyed(5)(torch.ones(100, 1000)) == 0, keyed(other)(torch.ones(100, 1000)) == 0

    assert (first & second).double().mean() == pytest.approx(0.04, abs=0.003)


def test_a_dropout_mask_depends_on_neither_stacking_nor_padding_nor_precision():
    dropout = Dropout(0.2)

    def forward(key, x):
        dropout.key = key
        return dropout(x)

    stacked = torch.vmap(forward)(torch.tensor([3, 4]), torch.ones(2, 6, 50))

    for k, key in enumerate([3, 4]):
        assert torch.equal(keyed(key)(torch.ones(4, 50, dtype=torch.float64)), stacked[k, :4].double())
