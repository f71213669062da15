import pytest
import torch
import torch.nn.functional as F

from pfl.models._conv import MatrixConvolution


@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (1, 1), (1, 2), (7, 2)])
@pytest.mark.parametrize("side", [1, 2, 3, 5, 8])
def test_a_product_of_matrices_is_the_convolution(kernel, stride, side):
    weight = torch.randn(5, 3, kernel, kernel, dtype=torch.float64, requires_grad=True)
    images = torch.randn(2, 3, side, side + 1, dtype=torch.float64, requires_grad=True)
    expected = F.conv2d(images, weight, stride=stride, padding=kernel // 2)
    wanted = torch.autograd.grad(expected.pow(3).sum(), [images, weight])

    convolved = MatrixConvolution.apply(images, weight, stride)

    assert torch.allclose(convolved, expected, atol=1e-12)
    for ours, theirs in zip(
        torch.autograd.grad(convolved.pow(3).sum(), [images, weight]), wanted, strict=True
    ):
        assert torch.allclose(ours, theirs, atol=1e-10)


def test_gradients_of_weights_in_float32_stay_in_float32():
    weight = torch.randn(5, 3, 3, 3, requires_grad=True)
    convolved = MatrixConvolution.apply(torch.randn(2, 3, 4, 4, dtype=torch.bfloat16), weight, 1)

    assert convolved.dtype == torch.bfloat16
    assert torch.autograd.grad(convolved.sum(), weight)[0].dtype == torch.float32


def test_gradients_of_weights_are_stored_as_the_weights_are():
    images = torch.randn(2, 3, 4, 4)
    weight = torch.randn(5, 3, 3, 3, requires_grad=True)
    by_tap = weight.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
    gradients = [
        torch.autograd.grad(MatrixConvolution.apply(images, own, 1).pow(3).sum(), own)[0]
        for own in (weight, by_tap)
    ]
    assert torch.equal(*gradients)
    assert [gradient.stride() for gradient in gradients] == [weight.stride(), by_tap.stride()]
