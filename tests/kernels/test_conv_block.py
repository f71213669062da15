from __future__ import annotations

import copy
import mmap
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pfl import kernels
from pfl.cli.options import texts
from pfl.core.config import Config
from pfl.engine.result import versions
from pfl.kernels import conv_block as module
from pfl.kernels.conv_block import Bundles, Pooling, conv_block, linear_block, usable
from pfl.models import MODELS
from pfl.models._layers import BatchNorm2d

has_kernels = (
    kernels.compiler() is not None
    and torch.backends.cpu.get_cpu_capability() in module.INSTRUCTIONS
    and kernels.compiled("conv_block", REAL="float") is not None
)
needs_kernels = pytest.mark.skipif(not has_kernels, reason="there is no C++ compiler, or another CPU")
needs_bf16 = pytest.mark.skipif(
    not has_kernels or module._library(torch.bfloat16) is None, reason="no C++ compiler or bf16 instructions"
)
needs_tiles = pytest.mark.skipif(
    not has_kernels or not module.tiles(), reason="no C++ compiler or tiles (Intel AMX)"
)
VECTORS = pytest.param("bf16 by vectors", marks=needs_bf16)
TILES = pytest.param("bf16 by tiles", marks=needs_tiles)


def choose(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes `_library` take ``way`` anew, and what follows the test as this CPU does."""
    for function in (module.tiles, module._library):
        monkeypatch.setattr(module, function.__name__, cache(function.__wrapped__))
    if way != "bf16 by tiles":
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)


@pytest.fixture(params=["fp32", VECTORS, TILES])
def bf16(request, monkeypatch) -> bool:
    """Whether a network computes in bfloat16, by each of the ways that this CPU has."""
    choose(request.param, monkeypatch)
    return request.param != "fp32"


@pytest.fixture(params=[VECTORS, TILES])
def in_bf16(request, monkeypatch) -> str:
    """How blocks in bfloat16 are computed."""
    choose(request.param, monkeypatch)
    return request.param


def autocast(enabled: bool = True) -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16, enabled)


@dataclass(frozen=True)
class Block:
    """Sizes of a block: images, channels, height, width, output channels."""

    shape: tuple[int, int, int, int, int]
    kernel: int
    stride: int = 1
    padding: int = 0
    normed: bool = True
    relu: bool = True
    pooling: Pooling | None = None
    summed: bool = False


POOL = Pooling(2, 2)

BLOCKS = [
    Block((32, 3, 32, 32, 6), 5, pooling=POOL),
    Block((7, 6, 14, 14, 16), 5, pooling=POOL),
    Block((2, 1, 8, 8, 16), 3, normed=False, pooling=POOL),
    Block((33, 13, 14, 14, 20), 5, normed=False, pooling=POOL),
    Block((5, 2, 9, 12, 5), 3, pooling=POOL),
    Block((3, 4, 4, 5, 3), 2, pooling=POOL),
    Block((19, 3, 16, 18, 9), 7, stride=2, padding=3, pooling=Pooling(3, 2, 1)),
    Block((25, 5, 8, 8, 7), 3, padding=1, summed=True),
    Block((9, 5, 8, 7, 7), 3, stride=2, padding=1),
    Block((32, 5, 8, 7, 7), 1, stride=2, relu=False),
    Block((40, 13, 2, 2, 7), 3, padding=1, summed=True),
    Block((4, 2, 1, 1, 4), 3, padding=1, normed=False),
    # Wider than a vector, of as few planes as images have.
    Block((3, 3, 6, 70, 5), 5, pooling=POOL),
    Block((35, 4, 5, 34, 17), 3, stride=2, padding=1),
    # Of many planes, whose weights' gradients are products of matrices.
    Block((33, 12, 9, 8, 64), 5, normed=False, pooling=POOL),
    Block((19, 35, 4, 4, 40), 3, padding=1, summed=True),
    Block((7, 9, 8, 5, 33), 3, stride=2, padding=1),
    Block((3, 8, 2, 2, 97), 1, stride=2, relu=False),
    Block((40, 33, 2, 1, 130), 3, padding=1),
]


@pytest.fixture
def memory_full_of_nan():
    """Every new tensor is filled with NaN: what reads a lane that nobody wrote shows it."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def layers(block: Block) -> tuple[Tensor, nn.Conv2d, BatchNorm2d | None, Tensor | None]:
    images, channels, height, width, outputs = block.shape
    torch.manual_seed(0)
    x = torch.randn(images, channels, height, width, dtype=torch.float64, requires_grad=True)
    bias = not block.padding
    conv = nn.Conv2d(channels, outputs, block.kernel, block.stride, block.padding, bias=bias).double()
    norm = None
    if block.normed:
        norm = BatchNorm2d(outputs).double()
        with torch.no_grad():
            norm.weight.copy_(torch.randn(outputs))  # of both signs: pooling comes after scaling
            norm.bias.copy_(torch.randn(outputs))
            norm.running_mean.copy_(torch.randn(outputs))
            norm.running_var.copy_(torch.rand(outputs) + 0.5)
    residual = torch.randn(conv(x).shape, dtype=torch.float64, requires_grad=True) if block.summed else None
    return x, conv, norm, residual


def by_torch(block: Block, x: Tensor, conv: nn.Conv2d, norm: BatchNorm2d | None, residual: Tensor | None):
    y = conv(x)
    y = norm(y) if norm else y
    y = y if residual is None else y + residual
    y = F.relu(y) if block.relu else y
    pooling = block.pooling
    return F.max_pool2d(y, pooling.kernel, pooling.stride, pooling.padding) if pooling else y


def by_kernel(block: Block, x: Tensor, conv: nn.Conv2d, norm: BatchNorm2d | None, residual: Tensor | None):
    bundles = None
    if residual is not None:
        # Images become bundles in a block that leaves them as they are.
        same = nn.Conv2d(residual.shape[1], residual.shape[1], 1, bias=False).to(residual.dtype)
        nn.init.dirac_(same.weight)
        bundles = conv_block(residual, same, relu=False)
    return conv_block(x, conv, norm, relu=block.relu, pooling=block.pooling, residual=bundles).images()


def outcomes(
    compute: Callable[..., Tensor], block: Block, training: bool = True, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """Values, gradients and running statistics."""
    x, conv, norm, residual = (each if each is None else each.to(dtype) for each in layers(block))
    x = x.detach().requires_grad_()
    residual = None if residual is None else residual.detach().requires_grad_()
    inputs = [x, *conv.parameters(), *([] if residual is None else [residual])]
    if norm:
        norm.train(training)
        inputs += norm.parameters()
    out = compute(block, x, conv, norm, residual)
    random = torch.Generator().manual_seed(1)
    direction = torch.randn(out.shape, generator=random, dtype=torch.float64).to(dtype)
    statistics = [norm.running_mean, norm.running_var] if norm else []
    return [out, *torch.autograd.grad(out, inputs, direction), *statistics]


@needs_kernels
@pytest.mark.usefixtures("memory_full_of_nan")
@pytest.mark.parametrize("block", BLOCKS, ids=str)
@pytest.mark.parametrize("training", [True, False])
def test_values_gradients_and_running_statistics_are_torchs(block, training):
    ours, theirs = (outcomes(compute, block, training) for compute in (by_kernel, by_torch))
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)


@needs_kernels
@pytest.mark.usefixtures("memory_full_of_nan")
@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_in_float32_they_are_those_of_float64_to_rounding(block):
    ours, exact = outcomes(by_kernel, block, dtype=torch.float32), outcomes(by_torch, block)
    for mine, expected in zip(ours, exact, strict=True):
        # The absolute part: the gradient of a bias before batch norm is zero but for rounding.
        assert (mine.double() - expected).norm() < 1e-5 * expected.norm() + 1e-3


@pytest.mark.usefixtures("memory_full_of_nan", "in_bf16")
@pytest.mark.parametrize("block", BLOCKS, ids=str)
@pytest.mark.parametrize("training", [True, False])
def test_in_bfloat16_they_are_as_near_to_those_of_float64_as_torchs(block, training):
    exact = outcomes(by_torch, block, training)
    with autocast():
        ours, theirs = (outcomes(way, block, training, torch.float32) for way in (by_kernel, by_torch))
    for mine, other, expected in zip(ours, theirs, exact, strict=True):
        error, torchs = ((each.double() - expected).norm() for each in (mine, other))
        # Of few values, rounding of one that is near zero decides; and see float32 for the absolute part.
        assert error < 2 * torchs + 0.01 * expected.norm() + 1e-3


def gradient_of(name: str, images: int) -> Callable[..., Tensor]:
    """The gradient (parameters,) of a network, by dtype, by kernels for one client or not, and by bf16."""
    torch.manual_seed(images)
    net = MODELS[name]((3, 32, 32), 10)
    x, y = torch.randn(images, 3, 32, 32), torch.randint(10, (images,))

    def gradient(dtype: torch.dtype, alone: bool, bf16: bool = False) -> Tensor:
        mine = copy.deepcopy(net).to(dtype)
        mine.extractor.single_client = alone
        mine.bf16 = bf16
        gradients = torch.autograd.grad(F.cross_entropy(mine(x.to(dtype)), y), list(mine.parameters()))
        return torch.cat([each.double().flatten() for each in gradients])

    return gradient


@pytest.mark.usefixtures("in_bf16")
@pytest.mark.parametrize("name", ["lenet4", "lenet5_bn", "spfl_cnn", "cnn4", "resnet8"])
@pytest.mark.parametrize("images", [24, 33, 75])
def test_in_bfloat16_gradients_of_a_network_are_as_near_as_torchs(name, images):
    gradient = gradient_of(name, images)
    expected = gradient(torch.float64, alone=False)
    ours, theirs = ((gradient(torch.float32, alone, bf16=True) - expected).norm() for alone in (True, False))
    assert 0 < ours < 1.5 * theirs


@pytest.mark.usefixtures("in_bf16")
def test_under_autocast_images_are_in_bfloat16_and_the_gradients_of_weights_are_not():
    x, conv, norm, _ = (each if each is None else each.float() for each in layers(BLOCKS[0]))
    with autocast():
        bundles = conv_block(x, conv, norm)
    assert bundles.data.dtype == bundles.images().dtype == torch.bfloat16
    gradients = torch.autograd.grad(bundles.images().sum(), [*conv.parameters(), *norm.parameters()])
    assert {gradient.dtype for gradient in gradients} == {torch.float32}


@needs_kernels
@pytest.mark.parametrize("name", ["lenet4", "lenet5_bn", "spfl_cnn", "cnn4", "resnet8"])
@pytest.mark.parametrize("images", [12, 16, 17, 32, 39])
def test_gradients_of_a_network_are_torchs(name, images):
    gradient = gradient_of(name, images)
    expected = gradient(torch.float64, alone=False)
    # Of some of these batches a value is within rounding of zero or of another: ReLU or pooling then decides
    # otherwise, in torch's networks as often as in ours, which moves the gradient by up to a per cent.
    assert (gradient(torch.float32, alone=True) - expected).norm() < 0.02 * expected.norm()
    torch.testing.assert_close(gradient(torch.float64, alone=True), expected, rtol=1e-9, atol=1e-11)


@needs_kernels
def test_a_step_is_bit_identical_when_it_comes_again(bf16):
    net = MODELS["resnet8"]((3, 32, 32), 10)
    net.extractor.single_client = True
    net.bf16 = bf16
    x, y = torch.randn(45, 3, 32, 32), torch.randint(10, (45,))

    def gradients():
        return torch.autograd.grad(F.cross_entropy(net(x), y), list(net.parameters()))

    first = gradients()
    net(torch.randn(33, 3, 32, 32)).sum().backward()  # another batch leaves the scratch memory as it likes
    torch.testing.assert_close(gradients(), first, rtol=0, atol=0)


@needs_kernels
def test_two_batches_before_their_gradients_do_not_mix(bf16):
    net = MODELS["lenet5_bn"]((3, 32, 32), 10)
    net.extractor.single_client = True
    net.bf16 = bf16
    batches = [torch.randn(n, 3, 32, 32) for n in (32, 20)]

    def gradients(outputs):
        return [torch.autograd.grad(out.square().sum(), list(net.parameters())) for out in outputs]

    together = gradients([net(x) for x in batches])
    for x, ours in zip(batches, together, strict=True):
        (alone,) = gradients([net(x)])
        torch.testing.assert_close(ours, alone, rtol=0, atol=0)


@needs_kernels
def test_the_first_of_equal_values_takes_the_gradient(bf16):
    block = BLOCKS[2]
    x, conv, *_ = layers(block)
    x, conv = torch.ones_like(x, dtype=torch.float32).requires_grad_(), conv.float()
    with torch.no_grad():
        for parameter in conv.parameters():
            parameter.copy_((8 * parameter).round())  # sums of integers are equal in any order
    with autocast(bf16):
        ours, theirs = (
            torch.autograd.grad(compute(block, x, conv, None, None).sum(), x)[0]
            for compute in (by_kernel, by_torch)
        )
    torch.testing.assert_close(ours, theirs)


@needs_kernels
def test_the_gradient_of_the_images_may_be_in_any_order_of_memory():
    x, conv, *_ = layers(BLOCKS[2])
    out = conv_block(x, conv, None).images()
    ones = torch.ones_like(out)
    contiguous, by_channel, expanded = (
        torch.autograd.grad(out, x, gradient, retain_graph=True)[0]
        for gradient in (ones, ones.to(memory_format=torch.channels_last), ones[:1, :1].expand(out.shape))
    )
    assert torch.equal(by_channel, contiguous)
    assert torch.equal(expanded, contiguous)


@needs_kernels
@pytest.mark.parametrize("block", [BLOCKS[0], BLOCKS[2], BLOCKS[6], BLOCKS[7]], ids=str)
def test_a_nan_stays_visible(block, bf16):
    x, conv, norm, residual = (each if each is None else each.float() for each in layers(block))
    with torch.no_grad(), autocast(bf16):
        x[0, 0, 2, 2] = torch.nan
        assert by_kernel(block, x, conv, norm, residual).isnan().any()


def takes_kernels(net: nn.Module, x: Tensor, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the loop computes ``net`` of ``x`` by `conv_block`."""
    taken = []
    images = Bundles.images
    monkeypatch.setattr(Bundles, "images", lambda bundles: taken.append(1) or images(bundles))
    net.extractor.single_client = True
    net(x)
    return bool(taken)


IMAGES = torch.zeros(32, 3, 32, 32)


@needs_kernels
@pytest.mark.parametrize("name", ["lenet4", "lenet5_bn", "spfl_cnn", "cnn4", "resnet8", "resnet10"])
def test_the_rule_gives_the_papers_networks_to_the_kernels(name, monkeypatch):
    assert takes_kernels(MODELS[name]((3, 32, 32), 10).eval(), IMAGES, monkeypatch)


@needs_kernels
@pytest.mark.parametrize(
    ("name", "fewest"), [("lenet5_bn", module.FEWEST["narrow"]), ("cnn4", module.FEWEST["wide"])]
)
def test_a_batch_of_few_images_is_left_to_torch(name, fewest, monkeypatch):
    net = MODELS[name]((3, 32, 32), 10).eval()
    assert not takes_kernels(net, IMAGES[: fewest - 1], monkeypatch)
    assert takes_kernels(net, IMAGES[:fewest], monkeypatch)


def two_threads(_, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)


def another_cpu(_, monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")


def hook(net, _):
    net.extractor[0].register_forward_hook(lambda *_: None)


def half(net, _):
    net.bfloat16()


@pytest.mark.parametrize("reason", [two_threads, another_cpu, hook, half], ids=lambda reason: reason.__name__)
@pytest.mark.parametrize("name", ["lenet5_bn", "cnn4", "resnet8"])
def test_torch_does_it_where_the_kernels_cannot_or_are_slower(name, reason, monkeypatch):
    net = MODELS[name]((3, 32, 32), 10).eval()
    reason(net, monkeypatch)
    assert not takes_kernels(net, IMAGES.to(net.head.weight.dtype), monkeypatch)


@pytest.mark.parametrize("name", ["lenet5_bn", "cnn4", "resnet8"])
def test_the_rule_in_bfloat16(name, in_bf16, monkeypatch):
    net = MODELS[name]((3, 32, 32), 10).eval()
    rule = module.FEWEST_TILES if in_bf16 == "bf16 by tiles" else module.FEWEST_BF16
    fewest = rule["narrow" if name == "lenet5_bn" else "wide"]
    with autocast():
        assert takes_kernels(net, IMAGES[:fewest], monkeypatch)
        assert not takes_kernels(net, IMAGES[: fewest - 1], monkeypatch)


def test_the_text_of_precision_states_the_rule_in_bfloat16():
    fewest, by_tiles = module.FEWEST_BF16["wide"], module.FEWEST_TILES["wide"]
    assert f"at least {fewest} images ({by_tiles} with Intel AMX)" in texts(Config)["precision"]


@needs_tiles
@pytest.mark.parametrize(
    ("images", "widths"),
    [(1, (40, 9)), (17, (300, 84)), (32, (64, 48)), (70, (64, 48)), (70, (3, 20))],
    ids=str,
)
@pytest.mark.usefixtures("memory_full_of_nan")
def test_hidden_linear_layers_are_products_of_tiles(images, widths):
    torch.manual_seed(0)
    first, second = nn.Linear(*widths), nn.Linear(widths[1], 33)
    with torch.no_grad():  # no value is so near to zero that rounding decides what ReLU does
        for linear in (first, second):
            linear.bias.copy_(torch.tensor([8.0, -8.0, 8.0]).repeat(100)[: linear.out_features])
    x, direction = torch.randn(images, widths[0], requires_grad=True), torch.randn(images, 33)
    inputs = [x, *first.parameters(), *second.parameters()]

    def by_torch() -> Tensor:
        return F.relu(second(F.relu(first(x))))

    def by_tiles() -> Tensor:
        return linear_block(linear_block(x.bfloat16(), first), second).images().flatten(1)

    def values_and_gradients(compute: Callable[[], Tensor]) -> list[Tensor]:
        out = compute()
        return [out, *torch.autograd.grad(out, inputs, direction.to(out.dtype))]

    exact = values_and_gradients(by_torch)
    with autocast():
        ours, theirs = values_and_gradients(by_tiles), values_and_gradients(by_torch)
    for mine, other, expected in zip(ours, theirs, exact, strict=True):
        error, torchs = ((each.float() - expected).norm() for each in (mine, other))
        assert error < 2 * torchs + 0.01 * expected.norm()


def test_autocast_is_torchs_without_the_instructions(monkeypatch):
    choose("fp32", monkeypatch)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    net = MODELS["lenet5_bn"]((3, 32, 32), 10).eval()
    with autocast():
        assert not takes_kernels(net, IMAGES, monkeypatch)


def test_autocast_to_float16_is_torchs(monkeypatch):
    net = MODELS["lenet5_bn"]((3, 32, 32), 10).eval()
    with torch.autocast("cpu", torch.float16):
        assert not takes_kernels(net, IMAGES, monkeypatch)


def test_networks_whose_planes_nothing_pools_are_torchs(monkeypatch):
    assert not takes_kernels(MODELS["resnet8_cifar"]((3, 32, 32), 10).eval(), IMAGES[:12], monkeypatch)


@pytest.fixture(params=["", "false"], ids=["none", "failing"])
def no_compiler(request, monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", request.param)
    monkeypatch.setenv("PFL_CACHE", str(tmp_path))
    monkeypatch.setattr(kernels, "_failed", mmap.mmap(-1, 1))
    cached = (kernels.compiler, kernels.compiler_version, kernels.compiled, module._library, module.tiles)
    for function in cached:
        function.cache_clear()
    yield
    for function in cached:
        function.cache_clear()


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize("name", ["lenet5_bn", "cnn4", "resnet8"])
def test_without_a_compiler_torch_does_it(name):
    net = MODELS[name]((3, 32, 32), 10).eval()
    images = torch.randn(16, 3, 32, 32)
    assert not usable(images, net.modules(), "wide")
    expected = net(images)
    net.extractor.single_client = True
    torch.testing.assert_close(net(images), expected)


@pytest.mark.parametrize("no_compiler", ["false"], indirect=True)
def test_a_compiler_that_fails_is_a_warning(no_compiler, caplog):  # noqa: ARG001
    assert kernels.compiled("im2col") is None
    assert "falling back to slower torch kernels: im2col.cpp cannot be compiled" in caplog.text


@pytest.mark.parametrize("no_compiler", ["none-such", "none-such -m64", "g++ '"], indirect=True)
def test_a_compiler_that_is_not_there_is_a_warning(no_compiler, caplog):  # noqa: ARG001
    for _ in range(2):
        assert kernels.compiler() is None
    (record,) = caplog.records
    assert record.message.startswith("falling back to slower torch kernels: there is no compiler CXX=")


@pytest.mark.parametrize("no_compiler", ["./not-a-program"], indirect=True)
def test_a_compiler_that_cannot_be_run_is_a_warning(no_compiler, tmp_path, monkeypatch, caplog):  # noqa: ARG001
    monkeypatch.chdir(tmp_path)
    (tmp_path / "not-a-program").write_bytes(b"")
    (tmp_path / "not-a-program").chmod(0o755)
    assert (kernels.compiler_used(), kernels.compiled("im2col")) == (None, None)
    (record,) = caplog.records
    assert "CXX=./not-a-program cannot be run (" in record.message


@pytest.mark.skipif(not shutil.which("g++"), reason="there is no g++")
@pytest.mark.parametrize("no_compiler", ["g++ -Wall", "env g++"], indirect=True)
def test_a_compiler_is_a_command(no_compiler):  # noqa: ARG001
    assert kernels.compiled("read_rows") is not None
    assert "g++" in kernels.compiler_version()


@pytest.mark.skipif(not shutil.which("g++"), reason="there is no g++")
@pytest.mark.parametrize("no_compiler", ["g++"], indirect=True)
def test_a_library_that_a_power_failure_has_emptied_is_compiled_again(no_compiler, tmp_path, monkeypatch):  # noqa: ARG001
    assert kernels.compiled("read_rows") is not None
    (library,) = (tmp_path / "kernels").iterdir()
    emptied = tmp_path / "another" / "kernels" / library.name  # a process loads a path only once
    emptied.parent.mkdir(parents=True)
    emptied.touch()
    monkeypatch.setenv("PFL_CACHE", str(tmp_path / "another"))
    kernels.compiled.cache_clear()
    assert kernels.compiled("read_rows") is not None
    assert emptied.read_bytes() == library.read_bytes()
    assert versions().compiler == kernels.compiler_version()


@pytest.mark.skipif(not shutil.which("g++"), reason="there is no g++")
@pytest.mark.parametrize("no_compiler", ["g++"], indirect=True)
def test_a_library_is_on_disk_before_it_has_its_name(no_compiler, tmp_path, monkeypatch):  # noqa: ARG001
    synced = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(Path(f"/proc/self/fd/{file}").readlink()))
    assert kernels.compiled("read_rows") is not None
    (library,) = (tmp_path / "kernels").iterdir()
    assert [file.name.partition(".partial-")[0] for file in synced] == [library.name]


@pytest.mark.skipif(not shutil.which("g++"), reason="there is no g++")
@pytest.mark.parametrize("no_compiler", ["g++"], indirect=True)
@pytest.mark.parametrize("forked", [False, True])
def test_a_record_says_that_a_kernel_failed_here_or_in_a_forked_worker(no_compiler, forked, tmp_path):  # noqa: ARG001
    (tmp_path / "kernels").touch()  # no library can be written
    assert kernels.compiled("read_rows") is None
    assert versions().compiler == kernels.compiler_version()  # no kernel was needed that rounds
    if forked:
        if (worker := os.fork()) == 0:
            kernels.compiled("im2col")
            os._exit(0)
        os.waitpid(worker, 0)
    else:
        kernels.compiled("im2col")
    assert versions().compiler == f"{kernels.compiler_version()}, without some kernels"


@needs_kernels
def test_a_layer_that_is_watched_is_computed_by_itself():
    net = MODELS["lenet5_bn"]((3, 32, 32), 10).eval()
    net.extractor.single_client = True
    shapes = []
    net.extractor.conv2.register_forward_hook(lambda *call: shapes.append(call[2].shape))
    net(torch.randn(4, 3, 32, 32))
    assert shapes == [(4, 16, 10, 10)]


@needs_kernels
@pytest.mark.slow
def test_a_library_that_is_in_the_cache_is_not_compiled_again(tmp_path, monkeypatch):
    monkeypatch.setenv("PFL_CACHE", str(tmp_path))
    kernels.compiled.cache_clear()
    assert kernels.compiled("conv_block", REAL="float") is not None
    (library,) = (tmp_path / "kernels").iterdir()
    modified = library.stat().st_mtime_ns
    kernels.compiled.cache_clear()
    assert kernels.compiled("conv_block", REAL="float") is not None
    assert library.stat().st_mtime_ns == modified
