import pytest
import torch
import torch.nn.functional as F

from pfl.models import _resnet


@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (1, 1), (1, 2), (7, 2)])
@pytest.mark.parametrize("side", [1, 2, 3, 5, 8])
def test_in_bfloat16_a_convolution_to_few_pixels_is_the_same_as_a_product(monkeypatch, kernel, stride, side):
    conv = _resnet._conv(3, 5, kernel, stride).double()
    images = torch.randn(2, 3, side, side + 1, dtype=torch.float64, requires_grad=True)
    expected = F.conv2d(images, conv.weight, stride=stride, padding=kernel // 2)
    wanted = torch.autograd.grad(expected.pow(3).sum(), [images, conv.weight])

    conv.single_client = True
    monkeypatch.setattr(_resnet, "FEW", 100)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda _: True)  # and all stays in float64
    monkeypatch.delattr(torch.nn.Conv2d, "forward")
    convolved = conv(images)

    assert torch.allclose(convolved, expected, atol=1e-12)
    for ours, theirs in zip(
        torch.autograd.grad(convolved.pow(3).sum(), [images, conv.weight]), wanted, strict=True
    ):
        assert torch.allclose(ours, theirs, atol=1e-10)
