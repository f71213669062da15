"""Ordinary networks of torch are simulated as they are."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torchvision.models import VisionTransformer

import pfl
from pfl.core.errors import InvalidInput
from pfl.models import MODELS, build
from pfl.models._conv import Conv2d
from pfl.models._layers import BatchNorm2d, Dropout
from pfl.models._network import Network
from pfl.testing import check_method, check_network

SHAPE, CLASSES = (1, 16, 16), 4


class Ordinary(nn.Module):
    """A network as one writes it: no sequence, its parts defined in another order than they run."""

    def __init__(self, norm=nn.BatchNorm2d, classes=CLASSES):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 5)
        self.norm = norm(4)
        self.hidden = nn.Linear(4 * 36, 8)
        self.dense_norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.5)
        self.layer_norm = nn.LayerNorm(8)
        self.out = nn.Linear(8, classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.conv(x)), inplace=True), 2).flatten(1)
        return self.out(self.drop(self.layer_norm(F.relu(self.dense_norm(self.hidden(x))))))


@pytest.fixture
def network():
    """Registers a builder of a network in the place of those before it."""

    def add(builder):
        MODELS.add("ordinary", builder)
        return "ordinary"

    return add


def test_the_last_linear_layer_is_the_head_and_the_rest_the_extractor(network):
    module = Ordinary()
    net = build(network(lambda *_: copy.deepcopy(module)), SHAPE, CLASSES)
    x = torch.randn(3, *SHAPE)
    assert torch.equal(net.eval()(x), module.eval()(x))
    assert (net.head.in_features, net.head.out_features) == (8, CLASSES)
    assert isinstance(net.extractor.conv, Conv2d)
    assert isinstance(net.extractor.norm, BatchNorm2d)
    assert isinstance(net.extractor.drop, Dropout)


def group_norm(width):
    return nn.GroupNorm(2, width)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(1, 4, (3, 5)),
        nn.Conv2d(1, 4, 3, stride=(1, 2)),
        nn.Conv2d(1, 4, 3, padding="same"),
        nn.Conv2d(1, 4, 3, padding=1, padding_mode="circular"),
        nn.Conv2d(1, 4, 3, dilation=2),
        nn.Conv2d(4, 4, 3, groups=4),
    ],
    ids=str,
)
def test_a_convolution_of_another_kind_than_the_kernels_compute_stays_torchs(layer, network):
    def module(*_):
        before = nn.Conv2d(1, layer.in_channels, 1)
        return nn.Sequential(before, layer, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, CLASSES))

    net = build(network(module), SHAPE, CLASSES)
    assert [type(part) for part in net.extractor[:2]] == [Conv2d, nn.Conv2d]


@pytest.mark.parametrize("norm", [nn.BatchNorm2d, group_norm])
def test_stacked_and_padded_an_ordinary_network_is_the_same(norm):
    check_network(lambda _, classes: Ordinary(norm, classes), SHAPE, ["stacked", "padding"])


def test_a_module_is_the_initialisation_of_every_seed(dataset, partition):
    module = Ordinary()
    biases = []

    def first(server, _network):
        biases.append(server.received["head.bias"][0])

    pfl.simulate(
        "fedavg", dataset, partition, model=module, rounds=1, epochs=1, seeds=2, progress=False, measure=first
    )
    assert all(torch.equal(bias, module.out.bias) for bias in biases)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(256, 256)
        self.second = nn.Linear(256, 256)
        self.second.weight = self.first.weight
        self.out = nn.Linear(256, CLASSES)

    def forward(self, x):
        return self.out(self.second(self.first(x.flatten(1))))


class Several(Ordinary):
    def forward(self, x):
        return super().forward(x), x


class Softmax(Ordinary):
    def forward(self, x):
        return super().forward(x).softmax(1)


class Random(Ordinary):
    def forward(self, x):
        return super().forward(F.dropout(x, 0.5, self.training))


class Failing(Ordinary):
    def __init__(self, error):
        super().__init__()
        self.error = error

    def forward(self, _):
        raise self.error


class Scalar(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(1.0))

    def forward(self, x):
        return self.gain * x


class WithLayers(pfl.Method):
    """Adds ``layers`` before the head."""

    def client_network(self, network, _):
        network.add_module("added", nn.Sequential(*self.layers(network.head.in_features)))
        return network

    def logits(self, client, x):
        return client.net.head(client.net.added(client.net.features(x)))

    def aggregate(self, server):
        return {"all": server.average()}


def flat(*layers):
    return nn.Sequential(nn.Flatten(), *layers)


@pytest.mark.parametrize(
    ("builder", "accepted"),
    [
        (lambda *_: flat(nn.Linear(256, 5)), r"a network with 4 logits, not \(5,\)"),
        (lambda *_: Network(nn.Flatten(), nn.Linear(256, 5)), "a network with 4 logits, not 5"),
        (lambda *_: flat(nn.Linear(9, CLASSES)), "a network of images of 1x16x16"),
        (lambda *_: Softmax(), r"last nn.Linear returns the logits, or pfl.Network\(extractor, head\)"),
        (lambda *_: nn.Conv2d(1, 4, 3), "last nn.Linear returns the logits"),
        (lambda *_: flat(nn.Linear(256, CLASSES).requires_grad_(False)), r"all trained, unlike 1\.weight"),
        (
            lambda *_: flat(Scalar(), nn.Linear(256, CLASSES)),
            r"without tensors of shape \(\) such as 1\.gain",
        ),
        (lambda *_: flat(nn.LazyLinear(CLASSES)), "a network without LazyLinear"),
        (lambda *_: Network(nn.Flatten(), nn.Linear(9, CLASSES)), "a network of images of 1x16x16"),
        (lambda *_: Network(nn.Identity(), nn.Linear(16, CLASSES)), r"with 4 logits, not \(1, 16, 4\)"),
        (lambda *_: Network(nn.Flatten(), flat(nn.Linear(256, CLASSES))), "nn.Linear, not a Sequential"),
        (lambda *_: Several(), "a network that returns logits, not a tuple"),
        (
            lambda *_: VisionTransformer(32, 4, 1, 2, 16, 16, num_classes=CLASSES),
            r"a network of images of 1x16x16 \(Wrong image height! Expected 32 but got 16!\)",
        ),
        (lambda *_: Failing(AttributeError("no x")), r"a network of images of 1x16x16 \(no x\)"),
        (lambda *_: Failing(AssertionError()), r"a network of images of 1x16x16 \(AssertionError\)"),
        (lambda *_: Tied(), "share no weights"),
        (lambda *_: Network(Tied(), nn.Linear(CLASSES, CLASSES)), "share no weights"),
        (lambda *_: Random(), "random in nn.Dropout only"),
        (lambda *_: flat(nn.Dropout1d(), nn.Linear(256, CLASSES)), "without Dropout1d"),
        (lambda *_: Ordinary(lambda width: nn.BatchNorm2d(width, affine=False)), "batch norm is"),
        (Ordinary().forward, "images' shape and the number of classes"),
    ],
)
def test_a_network_that_cannot_be_simulated_is_one_clear_line(builder, accepted, network):
    with pytest.raises(InvalidInput, match=f"^model: ordinary is not accepted; expected .*{accepted}"):
        build(network(builder), SHAPE, CLASSES)


def test_layers_that_a_method_adds_are_replaced_like_those_of_a_network():
    class Normed(WithLayers):
        def layers(self, width):
            twice = nn.Dropout(0.2)
            return nn.Linear(width, width), nn.BatchNorm1d(width), twice, nn.Linear(width, width), twice

    check_method(Normed, rules=["backends", "determinism"])


@pytest.mark.parametrize(
    ("layer", "accepted"),
    [(Scalar(), r"shape \(\) such as added\.0\.gain"), (nn.AlphaDropout(), "without AlphaDropout")],
)
def test_layers_that_a_method_adds_are_checked_like_those_of_a_network(layer, accepted):
    class Wrong(WithLayers):
        def layers(self, _):
            return (layer,)

    with pytest.raises(InvalidInput, match=rf"^Wrong\.client_network: model: .* {accepted}"):
        pfl.simulate(Wrong, clients=4, rounds=1, epochs=1, progress=False)


class Fourier(nn.Module):
    """Fourier features of random frequencies, which are constants of the module."""

    def __init__(self, inputs, classes, keep):
        super().__init__()
        keep(self, "frequencies", torch.randn(inputs, 16))
        self.out = nn.Linear(16, classes)

    def forward(self, x):
        self.latest = (x.flatten(1) @ self.frequencies.to(x.dtype)).cos()
        return self.out(self.latest)


def fourier(keep):
    return lambda shape, classes: Fourier(math.prod(shape), classes, keep)


OPTIONS = {"clients": 4, "rounds": 2, "epochs": 1, "dtype": "float64", "progress": False}


def test_constants_that_depend_on_the_seed_are_refused():
    line = "equal for all seeds, unlike extractor.frequencies; register_buffer keeps one for each"
    with pytest.raises(InvalidInput, match=f"^model: .* is not accepted; expected a network .* {line}"):
        pfl.simulate(model=fourier(setattr), seeds=2, **OPTIONS)


def test_buffers_may_depend_on_the_seed():
    losses = {}
    for backend in ("loop", "stacked"):
        execution = pfl.Execution(device="cpu", backend=backend)
        runs = pfl.simulate(model=fourier(nn.Module.register_buffer), seeds=2, execution=execution, **OPTIONS)
        losses[backend] = [run.metrics.rounds[-1].train_loss for run in runs]
    assert losses["stacked"] == pytest.approx(losses["loop"], abs=1e-9)


def test_constants_that_are_equal_for_all_seeds_are_accepted():
    def equal(module, name, value):
        setattr(module, name, torch.ones_like(value))

    pfl.simulate(model=fourier(equal), seeds=2, **OPTIONS)


@pytest.mark.filterwarnings("ignore:.*weight_norm")
def test_attributes_that_are_computed_from_parameters_are_no_constants():
    def normed(*_):
        return flat(nn.utils.weight_norm(nn.Linear(64, 9)), nn.Linear(9, 10))

    pfl.simulate(model=normed, seeds=2, **OPTIONS)


def test_saved_models_have_the_constants_of_their_seed(tmp_path, dataset, partition):
    file = tmp_path / "models.pt"
    execution = pfl.Execution(save=str(file))
    options = {name: value for name, value in OPTIONS.items() if name != "clients"}
    (run,) = pfl.simulate(
        "fedper", dataset, partition, model=fourier(setattr), seeds=[3], execution=execution, **options
    )
    models = pfl.load_models(file, model=fourier(setattr))
    own = [client.accuracy for client in run.metrics.per_client]
    assert models.evaluate(dataset, partition).tolist() == pytest.approx(own)
