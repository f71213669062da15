import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pfl import kernels
from pfl.models import _conv
from pfl.models._conv import MatrixConvolution, ResNetConv2d

needs_a_compiler = pytest.mark.skipif(not kernels.compiler(), reason="there is no C++ compiler")


def signs(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """-1, 0 and 1: sums of a few hundred of them are exact in bfloat16."""
    return torch.randint(-1, 2, shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype)


@needs_a_compiler
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (1, 1), (1, 2), (7, 2)])
@pytest.mark.parametrize("side", [1, 2, 3, 5, 8])
def test_a_product_of_matrices_is_the_convolution(kernel, stride, side):
    images = signs(2, 3, side, side + 1).requires_grad_()
    weight = signs(5, 3, kernel, kernel).requires_grad_()
    expected = F.conv2d(images.double(), weight.double(), stride=stride, padding=kernel // 2)
    gradient = signs(*expected.shape)
    wanted = torch.autograd.grad((expected * gradient).sum(), [images, weight])

    convolved = MatrixConvolution.apply(images, weight, stride)

    assert torch.equal(convolved.double(), expected)
    ours = torch.autograd.grad(convolved, [images, weight], gradient)
    torch.testing.assert_close(ours, wanted, rtol=0, atol=0)


@needs_a_compiler
def test_the_gradient_of_images_is_rounded_once():
    weight = torch.rand(1, 1, 3, 3)
    images = torch.ones(1, 1, 3, 3, dtype=torch.bfloat16, requires_grad=True)
    gradient = torch.ones(1, 1, 3, 3, dtype=torch.bfloat16)
    convolved = MatrixConvolution.apply(images, weight, 1)
    (of_images,) = torch.autograd.grad(convolved, images, gradient)
    assert of_images[0, 0, 1, 1] == weight.bfloat16().float().sum().bfloat16()


@needs_a_compiler
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_stays_so(value):
    images = torch.ones(1, 1, 2, 2, dtype=torch.bfloat16, requires_grad=True)
    convolved = MatrixConvolution.apply(images, torch.ones(1, 1, 3, 3), 1)
    (of_images,) = torch.autograd.grad(convolved, images, torch.full_like(convolved, value))
    assert not of_images.isfinite().any()


@needs_a_compiler
@pytest.mark.parametrize("stored", [torch.contiguous_format, torch.channels_last])
def test_gradients_of_weights_have_their_precision_and_layout(stored):
    weight = signs(5, 3, 3, 3, dtype=torch.float32).contiguous(memory_format=stored).requires_grad_()
    convolved = MatrixConvolution.apply(signs(2, 3, 4, 4), weight, 1)
    (of_weight,) = torch.autograd.grad(convolved.sum(), weight)
    assert (of_weight.dtype, of_weight.stride()) == (torch.float32, weight.stride())


@pytest.mark.parametrize("library", [True, False])
def test_without_a_compiler_torch_convolves(library, monkeypatch):
    if not library:
        monkeypatch.setattr(_conv.im2col, "_library", lambda: None)
    elif not kernels.compiler():
        pytest.skip("there is no C++ compiler")
    layer = ResNetConv2d(3, 5, 3, 1)
    layer.single_client = True
    with torch.autocast("cpu", torch.bfloat16):
        convolved = layer(signs(2, 3, 4, 4, dtype=torch.float32))
    assert ("MatrixConvolution" in str(convolved.grad_fn)) == library == layer.by_tap
