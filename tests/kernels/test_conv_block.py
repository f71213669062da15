from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pfl import kernels
from pfl.kernels.conv_block import conv_block
from pfl.models import MODELS
from pfl.models._layers import BatchNorm2d

needs_compiler = pytest.mark.skipif(kernels.compiler() is None, reason="there is no C++ compiler")

# images, channels, height, width, output channels, kernel; with odd sizes and fewer columns than a register
SHAPES = [
    (32, 3, 32, 32, 6, 5),
    (7, 6, 14, 14, 16, 5),
    (2, 1, 8, 8, 8, 3),
    (5, 2, 9, 12, 5, 3),
    (3, 4, 4, 5, 3, 2),
]


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def layers(shape: tuple[int, ...], normed: bool) -> tuple[torch.Tensor, nn.Conv2d, BatchNorm2d | None]:
    images, channels, height, width, outputs, size = shape
    torch.manual_seed(0)
    x = torch.randn(images, channels, height, width, dtype=torch.float64, requires_grad=True)
    conv = nn.Conv2d(channels, outputs, size).double()
    if not normed:
        return x, conv, None
    norm = BatchNorm2d(outputs).double()
    with torch.no_grad():
        norm.weight.copy_(torch.randn(outputs))  # of both signs: pooling comes after scaling
        norm.bias.copy_(torch.randn(outputs))
        norm.running_mean.copy_(torch.randn(outputs))
        norm.running_var.copy_(torch.rand(outputs) + 0.5)
    return x, conv, norm


def by_torch(x: torch.Tensor, conv: nn.Conv2d, norm: BatchNorm2d | None) -> torch.Tensor:
    convolved = conv(x)
    return F.max_pool2d(F.relu(norm(convolved) if norm else convolved), 2)


@needs_compiler
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_values_gradients_and_running_statistics_are_torchs(shape, normed, training):
    found = []
    for block in (conv_block, by_torch):
        x, conv, norm = layers(shape, normed)
        parameters = [x, *conv.parameters()]
        if norm:
            norm.train(training)
            parameters += norm.parameters()
        out = block(x, conv, norm)
        direction = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=out.dtype)
        statistics = [norm.running_mean, norm.running_var] if norm else []
        found.append([out, *torch.autograd.grad(out, parameters, direction), *statistics])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)


@needs_compiler
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("normed", [True, False])
@torch.no_grad()
def test_an_evaluation_has_torchs_values(shape, normed):
    x, conv, norm = layers(shape, normed)
    if norm:
        norm.eval()
    torch.testing.assert_close(conv_block(x, conv, norm), by_torch(x, conv, norm), rtol=1e-11, atol=1e-11)


@needs_compiler
@torch.no_grad()
def test_an_image_is_evaluated_alike_in_every_batch():
    x, conv, norm = layers((21, 3, 32, 32, 6, 5), normed=True)
    x, conv, norm = x.float(), conv.float(), norm.float().eval()
    assert torch.equal(conv_block(x[:9], conv, norm)[8], conv_block(x[5:], conv, norm)[3])


@needs_compiler
@torch.no_grad()
def test_an_evaluation_passes_no_number_as_it_is():
    x, conv, _ = layers((9, 1, 8, 8, 8, 3), normed=False)
    x[4, 0, 2, 2] = torch.nan
    ours, theirs = conv_block(x, conv, None), by_torch(x, conv, None)
    assert torch.equal(ours.isnan(), theirs.isnan()) and ours.isnan().any()


@needs_compiler
def test_the_first_of_equal_values_takes_the_gradient():
    x, conv, _ = layers((2, 1, 8, 8, 8, 3), normed=False)
    x = torch.ones_like(x).requires_grad_()
    ours, theirs = (torch.autograd.grad(block(x, conv, None).sum(), x)[0] for block in (conv_block, by_torch))
    torch.testing.assert_close(ours, theirs)


@needs_compiler
@pytest.mark.parametrize("normed", [True, False])
def test_a_nan_stays_visible(normed):
    x, conv, norm = layers((2, 1, 8, 8, 8, 3), normed)
    with torch.no_grad():
        x[0, 0, 2, 2] = torch.nan
        assert conv_block(x, conv, norm).isnan().any()


def test_more_threads_are_left_to_torch():
    torch.set_num_threads(2)
    assert conv_block(*layers(SHAPES[0], normed=True)) is None


@pytest.fixture
def no_compiler(monkeypatch):
    monkeypatch.setenv("CXX", "")
    for function in (kernels.compiler, kernels.compiled):
        function.cache_clear()
    yield
    for function in (kernels.compiler, kernels.compiled):
        function.cache_clear()


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_torch_does_it():
    assert conv_block(*layers(SHAPES[0], normed=True)) is None
    net = MODELS["lenet5_bn"]((3, 32, 32), 10)
    images = torch.randn(4, 3, 32, 32)
    expected = net.eval()(images)
    net.extractor.single_client = True
    assert torch.equal(net(images), expected)


@needs_compiler
def test_a_layer_that_is_watched_is_computed_by_itself():
    net = MODELS["lenet5_bn"]((3, 32, 32), 10).eval()
    net.extractor.single_client = True
    seen = []
    net.extractor.conv2.register_forward_hook(lambda *call: seen.append(call[2].shape))
    net(torch.randn(4, 3, 32, 32))
    assert seen == [(4, 16, 10, 10)]


@needs_compiler
def test_a_library_is_compiled_once_for_all_processes(tmp_path, monkeypatch):
    monkeypatch.setenv("PFL_CACHE", str(tmp_path))
    kernels.compiled.cache_clear()
    constants = {"REAL": "float", "C": 1, "H": 8, "W": 8, "O": 2, "K": 3, "NORM": 0}
    assert kernels.compiled("conv_block", **constants) is not None
    (library,) = (tmp_path / "kernels").iterdir()
    made = library.stat().st_mtime_ns
    kernels.compiled.cache_clear()
    assert kernels.compiled("conv_block", **constants) is not None
    assert library.stat().st_mtime_ns == made
