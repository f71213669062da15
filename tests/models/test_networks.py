import importlib

import pytest
import torch
import torch.nn.functional as F
import torchvision
from sklearn.datasets import load_digits
from torch import nn

from pfl.core.errors import InvalidInput
from pfl.data.shape import TokenShape
from pfl.models import MODELS, Shape, fitting
from pfl.models._layers import BatchNorm, SingleClientMode
from pfl.testing import check_network
from pfl.testing.network_kit import KIT
from tests.command import python

CIFAR, DIGITS, EMNIST, LARGE = (3, 32, 32), (1, 8, 8), (1, 28, 28), (3, 64, 64)
FEATURES, SERIES, TOKENS = (28,), (6, 32), TokenShape((10,), 40)

COUNTS = {
    # network, images, classes: extractor, head, batch norm's weights (and statistics), width of the features
    ("lenet5_bn", CIFAR, 10): (61_200, 850, 44, 84),
    ("lenet5_bn", EMNIST, 62): (43_620, 5_270, 44, 84),
    ("lenet5_bn", LARGE, 200): (337_680, 17_000, 44, 84),
    ("lenet5", CIFAR, 10): (61_156, 850, 0, 84),
    ("lenet5", EMNIST, 62): (43_576, 5_270, 0, 84),
    ("lenet4", CIFAR, 10): (50_992, 1_210, 0, 120),
    ("lenet4", EMNIST, 62): (33_412, 7_502, 0, 120),
    ("spfl_cnn", EMNIST, 10): (435_682, 5_130, 0, 512),
    ("spfl_cnn", CIFAR, 10): (667_082, 5_130, 0, 512),
    ("cnn4", CIFAR, 10): (873_408, 5_130, 0, 512),
    ("cnn4", EMNIST, 10): (576_896, 5_130, 0, 512),
    ("cnn_digits", DIGITS, 10): (4_800, 330, 0, 32),
    ("resnet8", CIFAR, 10): (1_232_704, 2_570, 2_688, 256),
    ("resnet8_cifar", CIFAR, 10): (1_225_024, 2_570, 2_688, 256),
    ("resnet10", CIFAR, 100): (4_905_792, 51_300, 5_760, 512),
    ("resnet10", LARGE, 200): (4_905_792, 102_600, 5_760, 512),
    ("resnet10_cifar", CIFAR, 100): (4_898_112, 51_300, 5_760, 512),
    ("resnet18", CIFAR, 10): (11_176_512, 5_130, 9_600, 512),
    ("resnet18", LARGE, 200): (11_176_512, 102_600, 9_600, 512),
    ("resnet18_cifar", CIFAR, 10): (11_168_832, 5_130, 9_600, 512),
    ("mobilenet_v2", LARGE, 200): (2_223_872, 256_200, 34_112, 1_280),
    ("mlp", FEATURES, 2): (6_016, 130, 0, 64),
    ("cnn1d", SERIES, 7): (11_488, 455, 192, 64),
    ("text_cnn", TOKENS, 4): (11_584, 260, 0, 64),
}


def small_samples(name: str) -> Shape:
    """The shape of samples that the network takes and that keep its tests fast."""
    # MobileNetV2's gradients are ill-conditioned where batch norm sees few pixels: a change of the images by
    # 1e-15 moves them by 1e-7 at 16x16 and by 1e-12 at 64x64.
    if name.endswith("_cifar"):
        return (3, 8, 8)
    own = {"cnn1d": SERIES, "cnn_digits": DIGITS, "mlp": FEATURES, "mobilenet_v2": LARGE, "text_cnn": TOKENS}
    return own.get(name, (3, 16, 16))


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(("network", "counts"), COUNTS.items(), ids=str)
def test_parameter_counts_are_those_of_the_papers(network, counts):
    name, shape, classes = network
    extractor, head, affine, width = counts
    net = MODELS[name](shape, classes)
    norms = [module for module in net.modules() if isinstance(module, BatchNorm)]

    assert parameters(net.extractor) == extractor
    assert parameters(net.head) == head
    assert parameters(net) == extractor + head
    assert sum(parameters(norm) for norm in norms) == affine
    assert sum(buffer.numel() for buffer in net.buffers()) == affine
    assert net.head.in_features == width


FAST = ("cnn_digits", "lenet5_bn", "resnet8")
"""Networks that are checked by all rules of the kit in the fast suite."""

RULES_OF_ALL = ("stages", "stacked", "single_client")
"""Rules that are checked for all networks in the fast suite."""


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        pytest.param(name, rule, id=f"{rule}-{name}", marks=[] if fast else pytest.mark.slow)
        for rule in KIT.rules
        for name in MODELS
        for fast in [name in FAST or rule in RULES_OF_ALL]
    ],
)
def test_a_network_meets_a_rule_of_the_kit(name, rule):
    check_network(name, small_samples(name), [rule])


@pytest.mark.parametrize("name", ["resnet8", "mobilenet_v2", "cnn4"])
def test_wide_convolutions_that_torch_computes_for_one_client_have_their_channels_last(name):
    net = MODELS[name]((3, 32, 32), 10)
    for module in net.modules():
        if isinstance(module, SingleClientMode):
            module.single_client = True
    wide = [layer for layer in net.modules() if isinstance(layer, nn.Conv2d) and layer.in_channels > 16]
    laid_out = []
    for layer in wide:
        layer.register_forward_pre_hook(
            lambda _, given: laid_out.append(given[0].is_contiguous(memory_format=torch.channels_last))
        )
    net(torch.randn(32, 3, 32, 32))  # hooks keep the kernels away
    assert laid_out == [True] * len(wide)


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2"])
def test_networks_that_torchvision_has_compute_what_it_computes(name):
    ours = MODELS[name](CIFAR, 1000).eval()
    reference = torchvision.models.get_model(name, weights=None).eval()
    tensors = [p for p in reference.state_dict().values() if p.dtype == torch.float32]
    ours.load_state_dict(dict(zip(ours.state_dict(), tensors, strict=True)))
    x = torch.randn(2, *CIFAR)

    torch.testing.assert_close(ours(x), reference(x))


def test_features_of_the_lenets_are_not_negative():
    for name in ("lenet4", "lenet5", "lenet5_bn"):
        assert MODELS[name](CIFAR, 10).extractor(torch.randn(5, *CIFAR)).min() == 0


def test_the_digits_network_learns_the_pooled_digits():
    digits = load_digits()
    x = torch.from_numpy(digits.images[:, None]).float() / 16
    x, y = (x - x.mean()) / x.std(), torch.from_numpy(digits.target)
    train, test = torch.randperm(len(x)).split([1347, 450])
    net = MODELS["cnn_digits"](DIGITS, 10)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.05)

    for _ in range(10):
        for batch in train[torch.randperm(len(train))].split(16):
            optimiser.zero_grad()
            F.cross_entropy(net(x[batch]), y[batch]).backward()
            optimiser.step()

    assert (net(x[test]).argmax(1) == y[test]).double().mean() > 0.95


@pytest.mark.parametrize(
    ("name", "shape"), [("lenet5", DIGITS), ("cnn4", (3, 40, 15)), ("cnn_digits", (1, 3, 3))]
)
def test_images_too_small_for_a_network_are_one_clear_line(name, shape):
    least = {"cnn_digits": "4x4"}.get(name, "16x16")
    size = f"{shape[1]}x{shape[2]}"
    with pytest.raises(InvalidInput, match=f"^images: {size} is not accepted; expected at least {least}"):
        MODELS[name](shape, 10)


@pytest.mark.parametrize("shape", [(1, 10, 20), (1, 20, 10), (3, 16, 16)])
def test_without_a_choice_images_get_a_network_that_takes_them(shape):
    MODELS[fitting(shape)](shape, 10)


def test_networks_are_listed_and_their_weights_found_without_importing_torch():
    code = "from pfl.models import MODELS, weights_of; [(MODELS.summary(n), weights_of(n)) for n in MODELS]"
    python("-c", f"import sys; {code}; sys.exit('torch' in sys.modules)")


def test_what_a_module_defines_is_known_whether_it_is_imported_or_not():
    for name in MODELS:
        module = importlib.import_module(MODELS.module(name))
        assert MODELS.defines(name, "weights_file") == hasattr(module, "weights_file")
