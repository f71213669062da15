import pytest
import torch
from torch import nn

from pfl.core.errors import InvalidInput
from pfl.models import MODELS
from pfl.models._convnet import ConvNet
from pfl.models._supervisors import KINDS, supervisor
from pfl.testing import check_network

CIFAR, DIGITS, EMNIST = (3, 32, 32), (1, 8, 8), (1, 28, 28)


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("shape", "classes", "counts"),
    [
        (CIFAR, 10, {"L": 8_679, "C": 1_562, "T": 546_186}),
        (CIFAR, 100, {"L": 10_598, "C": 3_092, "T": 557_796}),
        (EMNIST, 62, {"L": 6_780, "C": 2_302, "T": 546_878}),
    ],
)
def test_supervisors_of_fedsimsup_s_network_have_their_parameter_counts(shape, classes, counts):
    main = MODELS["lenet4"](shape, classes)

    assert {kind: parameters(supervisor(kind, shape, classes, main)) for kind in KINDS} == counts


@pytest.mark.parametrize("share", [1 / 12, 1 / 6, 1 / 3, 1 / 2])
@pytest.mark.parametrize(
    ("name", "shape"),
    [("lenet4", CIFAR), ("lenet5", CIFAR), ("lenet5", EMNIST), ("lenet5_bn", EMNIST), ("cnn_digits", DIGITS)],
)
def test_l_has_the_layers_of_the_main_network_and_the_share_of_its_parameters(name, shape, share):
    main = MODELS[name](shape, 10)
    small = supervisor("L", shape, 10, main, share)

    assert parameters(small) == pytest.approx(share * parameters(main), rel=0.03)
    assert [type(a) for a in small.extractor] == [type(a) for a in main.extractor]


@pytest.mark.parametrize("name", ["cnn_digits", "lenet4", "lenet5", "lenet5_bn", "spfl_cnn", "cnn4"])
def test_a_plan_counts_the_parameters_of_its_network(name):
    net = MODELS[name](DIGITS if name == "cnn_digits" else CIFAR, 10)

    assert isinstance(net, ConvNet)
    assert net.plan.parameters == parameters(net)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "shape"), [("cnn_digits", DIGITS), ("lenet5_bn", EMNIST), ("lenet5", CIFAR)], ids=str
)
def test_stacked_supervisors_equal_the_loop(kind, name, shape):
    main = MODELS[name](shape, 10)
    check_network(lambda shape, classes: supervisor(kind, shape, classes, main), shape, ["stacked"])


def test_a_transformer_sees_where_a_patch_lies():
    net = supervisor("T", DIGITS, 10, MODELS["cnn_digits"](DIGITS, 10))
    x = torch.randn(1, *DIGITS)

    assert not torch.allclose(net(x), net(x.roll(4, dims=-1)), atol=1e-5)


def test_impossible_supervisors_are_one_clear_line():
    lenet, resnet = MODELS["lenet4"](CIFAR, 10), MODELS["resnet8"](CIFAR, 10)
    with pytest.raises(InvalidInput, match=r"^supervisor: X is not accepted; expected one of C, L"):
        supervisor("X", CIFAR, 10, lenet)
    with pytest.raises(InvalidInput, match=r"^supervisor: L is not accepted; expected C or T"):
        supervisor("L", CIFAR, 10, resnet)
    with pytest.raises(InvalidInput, match=r"^images: 30x32 is not accepted; expected sides that are"):
        supervisor("T", (3, 30, 32), 10, resnet)
