"""Without a GPU, the kernels of stacked clients are run by Triton's interpreter (`tests.conftest`)."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from itertools import product

import pytest
import torch
from torch import Tensor, nn

from pfl.engine.groups import bind
from pfl.kernels import gpu, gpu_convolution, gpu_layers
from pfl.models._conv import Conv2d
from pfl.models._layers import BatchNorm2d, Linear
from tests.command import python
from tests.repository import ROOT

pytest.importorskip("triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CLIENTS, IMAGES = 2, 3
KERNELS = "pfl.kernels.triton_kernels"


@dataclass(frozen=True)
class Layer:
    """Sizes of a convolution: input channels, output channels, side of the kernel; sides of the images."""

    channels: int
    outputs: int
    kernel: int
    stride: int = 1
    padding: int = 0
    sides: tuple[int, int] = (8, 8)
    bias: bool = True


SMALL = Layer(4, 10, 3, padding=1, sides=(3, 4))
LAYERS = [
    Layer(3, 6, 5, sides=(12, 12)),
    Layer(6, 16, 5, sides=(7, 8)),
    Layer(3, 8, 7, stride=2, padding=3, sides=(10, 10), bias=False),
    Layer(8, 24, 3, stride=2, padding=1, sides=(5, 6), bias=False),
    Layer(8, 16, 1, stride=2, sides=(4, 4), bias=False),
    Layer(3, 4, 4, stride=4),
    SMALL,
    Layer(20, 140, 3, padding=1, sides=(2, 2), bias=False),
]


@pytest.fixture(autouse=True)
def _used_without_a_gpu(monkeypatch):
    from pfl.kernels import triton_kernels

    monkeypatch.setattr(gpu, "kernels", lambda: triton_kernels)
    monkeypatch.setattr(gpu, "usable", lambda x: x.dtype == torch.float32)


def make_network(layer: Layer) -> nn.Module:
    sizes = (layer.channels, layer.outputs, layer.kernel, layer.stride, layer.padding)
    return nn.Sequential(Conv2d(*sizes, bias=layer.bias), BatchNorm2d(layer.outputs)).to(DEVICE)


def make_stack(network: nn.Module, layer: Layer) -> dict[str, Tensor]:
    """Each client's images and tensors."""
    random = torch.Generator().manual_seed(0)
    named = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    shapes = {"images": (IMAGES, layer.channels, *layer.sides)} | {k: v.shape for k, v in named.items()}
    drawn = {
        name: torch.rand((CLIENTS, *shape), generator=random).to(DEVICE) for name, shape in shapes.items()
    }
    return {name: value if name.endswith("var") else value - 0.5 for name, value in drawn.items()}


def gradients(network: nn.Module, stack: dict[str, Tensor], rows: Tensor | None) -> dict[str, Tensor]:
    """Of a loss of the network's result, by tensor; and the tensors that have moved."""
    moving = {name for name in stack if "running" in name}
    statistics = {name: stack[name].clone() for name in moving}

    def loss(weights: dict[str, Tensor], statistics: dict[str, Tensor], rows: Tensor | None) -> Tensor:
        bind(network, {**{k: v for k, v in weights.items() if k != "images"}, **statistics})
        network[1].rows = rows
        y = torch.sin(network(weights["images"]))
        return y.sum() if rows is None else (y * rows.view(-1, 1, 1, 1)).sum()

    weights = {name: value for name, value in stack.items() if name not in moving}
    dims = (0, 0, None if rows is None else 0)
    grads = torch.vmap(torch.func.grad(loss), dims)(weights, statistics, rows)
    return {**grads, **statistics}


def compared(layer: Layer, rows: Tensor | None) -> None:
    network = make_network(layer)
    stack = make_stack(network, layer)
    ours = gradients(network, stack, rows)
    exact = {name: value.double() for name, value in stack.items()}
    expected = gradients(network, exact, None if rows is None else rows.double())
    for name, value in expected.items():
        scale = max(float(value.abs().max()), 1)  # a bias before batch norm has a gradient of 0
        torch.testing.assert_close(ours[name].double(), value, atol=1e-5 * scale, rtol=0, msg=name)


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_a_stacked_layer_has_the_gradients_of_torchs_in_which_padding_has_no_part(layer):
    rows = torch.ones(CLIENTS, IMAGES, device=DEVICE)
    rows[0, 1:] = 0
    compared(layer, rows)


def test_a_stacked_layer_without_padding_has_the_gradients_of_torchs():
    """One, as only batch norm knows of padding."""
    compared(SMALL, rows=None)


def test_a_client_without_real_images_keeps_its_statistics():
    network = make_network(SMALL)
    stack = make_stack(network, SMALL)
    rows = torch.ones(CLIENTS, IMAGES, device=DEVICE)
    rows[1] = 0
    moved = gradients(network, stack, rows)
    for name in ("1.running_mean", "1.running_var"):
        assert torch.equal(moved[name][1], stack[name][1])
        assert not torch.equal(moved[name][0], stack[name][0])


def of_stack(function, *stacks: Tensor) -> list[Tensor]:
    """The clients' results of ``function``, and the gradients of their squares' sum by its first tensors."""
    floating = [stack for stack in stacks if stack.is_floating_point()]
    whole = [stack for stack in stacks if not stack.is_floating_point()]

    def squares(moving: list[Tensor], whole: list[Tensor]) -> tuple[Tensor, Tensor]:
        y = function(*moving, *whole)
        return y.square().sum(), y

    gradients, (_, y) = torch.vmap(torch.func.grad_and_value(squares, has_aux=True))(floating, whole)
    return [y, *gradients]


@pytest.mark.parametrize("window", [(2, 2, 0), (3, 2, 1), (3, 1, 1), (2, 3, 0)], ids=str)
def test_pooling_with_relu_is_torchs_where_pixels_are_equal_too(window):
    random = torch.Generator().manual_seed(0)
    x = torch.randint(-3, 4, (CLIENTS, IMAGES, 4, 7, 8), generator=random).float().to(DEVICE)
    x[0, 0, 0, 0, 0] = torch.nan
    ours = of_stack(lambda x: gpu_layers.pooled_relu(x, *window), x)
    theirs = of_stack(lambda x: torch.relu(torch.nn.functional.max_pool2d(x, *window)), x)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("sizes", [(5, 7), (400, 120), (84, 10)], ids=str)
def test_a_linear_layer_is_torchs(sizes):
    layer = Linear(*sizes).to(DEVICE)
    random = torch.Generator().manual_seed(0)
    shapes = ((CLIENTS, IMAGES, sizes[0]), (CLIENTS, *layer.weight.shape), (CLIENTS, sizes[1]))
    stacks = [torch.randn(shape, generator=random).to(DEVICE) for shape in shapes]

    def ours(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        bind(layer, {"weight": weight, "bias": bias})
        return layer(x)

    for actual, expected in zip(
        of_stack(ours, *stacks),
        of_stack(torch.nn.functional.linear, *map(Tensor.double, stacks)),
        strict=True,
    ):
        scale = expected.abs().max().item()
        torch.testing.assert_close(actual.double(), expected, rtol=1e-4, atol=1e-4 * scale)


@pytest.mark.parametrize("classes", [2, 10, 200])
@pytest.mark.parametrize("images", [1, 50])
@pytest.mark.parametrize("padded", [False, True])
def test_the_cross_entropy_is_torchs(padded, images, classes):
    random = torch.Generator().manual_seed(0)
    logits = 9 * torch.randn(CLIENTS, images, classes, generator=random).to(DEVICE)
    labels = torch.randint(classes, (CLIENTS, images), generator=random).to(DEVICE)
    real = (torch.arange(images) < torch.tensor([[images], [-(-images // 3)]])).to(logits)

    def theirs(logits: Tensor, real: Tensor, labels: Tensor) -> Tensor:
        entropies = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
        return (entropies * real).sum() / real.sum() if padded else entropies.mean()

    def ours(logits: Tensor, real: Tensor, labels: Tensor) -> Tensor:
        return gpu_layers.cross_entropy(logits, labels, real if padded else None)

    loss, of_logits, _ = of_stack(ours, logits, real, labels)
    expected, of_exact, _ = of_stack(theirs, logits.double(), real.double(), labels)
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(of_logits.double(), of_exact, rtol=1e-5, atol=1e-6)


def test_a_tensor_that_clients_share_gives_each_its_own_gradient():
    x = torch.rand(CLIENTS, IMAGES, 3, 6, 6, device=DEVICE)
    weight = torch.rand(4, 3, 3, 3, device=DEVICE)

    def loss(weight: Tensor, x: Tensor) -> Tensor:
        return gpu_convolution.convolution(x, weight, None, 1, 1).square().sum()

    shared = torch.vmap(torch.func.grad(loss), (None, 0))(weight, x)
    alone = [torch.func.grad(loss)(weight, images) for images in x]
    torch.testing.assert_close(shared, torch.stack(alone))


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 5, 7), (3, 64, 64)], ids=str)
def test_images_are_chosen_and_scaled_as_torch_does(shape):
    random = torch.Generator().manual_seed(0)
    images = torch.randint(256, (9, *shape), generator=random, dtype=torch.uint8).to(DEVICE)
    labels = torch.randint(10, (9,), generator=random).to(DEVICE)
    index = torch.randint(9, (CLIENTS, 2 * IMAGES), generator=random).to(DEVICE)[:, ::2]
    scale, shift = (torch.rand(shape[0], 1, 1, generator=random).to(DEVICE) for _ in range(2))
    scaled, targets = gpu_layers.scaled_images(images, labels, index, scale, shift)
    torch.testing.assert_close(scaled, images[index] * scale + shift, rtol=0, atol=1e-4)
    assert torch.equal(targets, labels[index])


@pytest.mark.slow
def test_every_kernel_compiles_for_an_old_gpu_and_for_a_new_one_in_each_type(tmp_path):
    targets = ("75:float32", "90:float32", "90:bfloat16")
    environment = {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    ended = python("tests/kernels/compiling.py", *targets, env=environment, cwd=ROOT)
    twice = "convolve", "input_gradient", "weight_gradient", "narrow_weight_gradient"
    four_times = (
        "narrow_convolve",
        "normalise",
        "normalise_gradient",
        "pool",
        "pool_gradient",
        "cross_entropy",
        "cross_entropy_gradient",
    )
    kernels = ("scaled_images", *twice * 2, *four_times * 4)
    assert Counter(ended.stdout.splitlines()) == Counter(map(" ".join, product(targets, kernels)))


def test_without_triton_torchs_operations_are_used(monkeypatch, caplog):
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, KERNELS, None)
    gpu.kernels.cache_clear()
    assert gpu.kernels() is None
    assert "Triton does not work here" in caplog.text
    gpu.kernels.cache_clear()
