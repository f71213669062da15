"""The conformance kit for networks: `check_network`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pfl.core.errors import InvalidInput
from pfl.data.shape import TokenShape
from pfl.engine.stack import for_all_clients
from pfl.models import MODELS, Shape, build
from pfl.models._layers import BatchNorm, Dropout, SingleClientMode
from pfl.models._network import Network
from pfl.run.api import registered_model
from pfl.testing.emulated import DEVICE, emulated
from pfl.testing.kit import Kit, Violated

SHAPES: tuple[Shape, ...] = (
    *((1, 8, 8), (3, 16, 16), (3, 32, 32), (1, 28, 28), (3, 64, 64), (3, 224, 224)),
    (6, 32),
    (12,),
    TokenShape((12,), 40),
)
"""Sample shapes; the first that the network accepts is used."""

CLASSES = 10
BATCH = 4
TOLERANCE = 1e-9
"""Absolute tolerance of losses and gradients in float64."""


@dataclass(frozen=True)
class CheckedNetwork:
    """A network, the shape of its images, and whether each seed initialises it."""

    name: str
    shape: Shape
    initialised: bool

    def make(self, key: int = 0, classes: int = CLASSES, seed: int = 0) -> Network:
        """The network in float64; ``key`` decides what dropout drops."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = build(self.name, self.shape, classes).double()
        for module in network.modules():
            if isinstance(module, Dropout):
                module.key = torch.tensor(key)
        return network

    def images(self, count: int = BATCH, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Samples, in float64 or tokens, and labels."""
        stream = torch.Generator().manual_seed(seed)
        if isinstance(self.shape, TokenShape):
            x = torch.randint(self.shape.tokens, (count, *self.shape), generator=stream)
        else:
            x = torch.randn(count, *self.shape, dtype=torch.float64, generator=stream)
        return x, torch.randint(CLASSES, (count,), generator=stream)


KIT: Kit[CheckedNetwork] = Kit()


def check_network(
    network: str | nn.Module | Callable[[Shape, int], nn.Module],
    shape: Shape | None = None,
    rules: Sequence[str] | None = None,
) -> None:
    """Check that a network meets every rule of `pfl.testing.network_kit`.

    Args:
        network: as in `pfl.simulate`: a function of the images' shape and the number of classes, a module
            with ten classes, or a name of `pfl models`.
        shape: of a sample, for an image (channels, height, width); by default the first of `SHAPES` that the
            network accepts.
        rules: names of rules; by default all, which takes seconds.

    Raises:
        Violations: with one line for each violated rule.
        InvalidInput: the network or a rule is unknown.
    """
    name = network if isinstance(network, str) else registered_model(network)
    MODELS[name]  # an unknown name is not a violation
    tested = CheckedNetwork(name, shape or _accepted(name), not isinstance(network, nn.Module))
    KIT.check(name, tested, rules)


def _accepted(name: str) -> Shape:
    """The first of `SHAPES` that the network accepts; the first one if it accepts none."""
    for shape in SHAPES:
        try:
            with torch.no_grad():
                build(name, shape, CLASSES).eval()(_zeros(shape))
        except Exception:  # whatever a builder raises for images of another shape
            continue
        return shape
    return SHAPES[0]


def _zeros(shape: Shape) -> Tensor:
    return torch.zeros(2, *shape, dtype=torch.int64 if isinstance(shape, TokenShape) else torch.float32)


# ---- structure -----------------------------------------------------------------------------------------


@KIT.decisive
def logits(tested: CheckedNetwork) -> None:
    """The network is built, and gives a logit per class for any number of classes."""
    for classes in (CLASSES, 3) if tested.initialised else (CLASSES,):
        shape = tuple(tested.make(classes=classes)(tested.images()[0]).shape)
        if shape != (BATCH, classes):
            raise Violated(f"{BATCH} images in {classes} classes have logits of shape {shape}")


@KIT.rule
def stages(tested: CheckedNetwork) -> None:
    """Extractor and head, and the stages together, contain every parameter exactly once."""
    network = tested.make()
    owned = [id(p) for part in (network.extractor, network.head) for p in part.parameters()]
    staged = [id(p) for parts in network.stages.values() for part in parts for p in part.parameters()]
    for name, parameter in network.named_parameters():
        for what, ids in (("extractor and head have", owned), ("the stages have", staged)):
            if ids.count(id(parameter)) != 1:
                raise Violated(f"{what} {name} {ids.count(id(parameter))} times")


@KIT.rule
def image_size(tested: CheckedNetwork) -> None:
    """Samples that are too small raise `InvalidInput`."""
    shape: Shape = (tested.shape[0], *[1] * (len(tested.shape) - 1))
    if isinstance(tested.shape, TokenShape):
        shape = TokenShape((1,), tested.shape.tokens)
    if not tested.initialised:
        return
    try:
        network = build(tested.name, shape, CLASSES)
    except InvalidInput:
        return
    network.eval()(_zeros(shape))


# ---- numbers -------------------------------------------------------------------------------------------


@KIT.rule
def initialisation(tested: CheckedNetwork) -> None:
    """The seed decides the initial weights, and torch's random state alone."""
    if not tested.initialised:
        return
    first, again, other = (
        nn.utils.parameters_to_vector(tested.make(seed=seed).parameters()) for seed in (3, 3, 4)
    )
    if not torch.equal(first, again):
        raise Violated("two networks of one seed differ; draw from torch's random state")
    if torch.equal(first, other):
        raise Violated("two seeds give the same weights")


@KIT.rule
def determinism(tested: CheckedNetwork) -> None:
    """The only randomness in a training step is `nn.Dropout`; evaluation has none."""
    network, (x, _) = tested.make(), tested.images()
    for mode in (True, False):
        outputs = []
        for seed in (1, 2):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                outputs.append(network.train(mode)(x))
        if not torch.equal(*outputs):
            raise Violated(f"in {'training' if mode else 'evaluation'}, two calls give different logits")


@KIT.rule
def stacked(tested: CheckedNetwork) -> None:
    """Losses, gradients and buffers of stacked clients are those of each client alone, in float64."""
    networks = [tested.make(key=k, seed=k) for k in range(3)]
    batches = [tested.images(seed=k) for k in range(3)]
    weights, buffers = torch.func.stack_module_state(networks)
    template = tested.make()

    def loss(
        weights: dict[str, Tensor], buffers: dict[str, Tensor], key: Tensor, x: Tensor, y: Tensor
    ) -> Tensor:
        for module in template.modules():
            if isinstance(module, Dropout):
                module.key = key
        return F.cross_entropy(torch.func.functional_call(template, (weights, buffers), x), y)

    x, y = (torch.stack(part) for part in zip(*batches, strict=True))
    one_client = torch.func.grad_and_value(loss)
    gradients, losses = for_all_clients(one_client, weights, buffers, torch.arange(3), x, y)
    for k, network in enumerate(networks):
        expected = F.cross_entropy(network(x[k]), y[k])
        expected.backward()
        _agree("the loss", losses[k], expected)
        for name, parameter in network.named_parameters():
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            _agree(f"the gradient of {name}", gradients[name][k], gradient)
        for name, buffer in network.named_buffers():
            _agree(name, buffers[name][k], buffer)


@KIT.rule
def single_client(tested: CheckedNetwork) -> None:
    """Layers that are faster for a single client give the same gradients."""
    network, (x, y) = tested.make(), tested.images()
    expected = _gradients(network, x, y)
    for module in network.modules():
        if isinstance(module, SingleClientMode):
            module.single_client = True
    for name, gradient in _gradients(network, x, y).items():
        _agree(f"the gradient of {name}", gradient, expected[name])


@KIT.rule
def padding(tested: CheckedNetwork) -> None:
    """Padding after the real images of a batch does not change the gradients."""
    network, (x, y) = tested.make(), tested.images(BATCH + 2)
    expected = _gradients(network, x[:BATCH], y[:BATCH])
    for module in network.modules():
        if isinstance(module, BatchNorm):
            module.rows = torch.tensor([1] * BATCH + [0] * 2, dtype=torch.float64)
    for name, gradient in _gradients(network, x, y, BATCH).items():
        _agree(f"the gradient of {name}", gradient, expected[name])


@KIT.rule
def device(tested: CheckedNetwork) -> None:
    """A step on an emulated device gives the same gradients."""
    network, (x, y) = tested.make(), tested.images()
    expected = _gradients(network, x, y)
    with emulated():
        there = _gradients(network.to(DEVICE), x.to(DEVICE), y.to(DEVICE))
        gradients = {name: gradient.cpu() for name, gradient in there.items()}
    for name, gradient in gradients.items():
        _agree(f"the gradient of {name}", gradient, expected[name])


def _gradients(network: Network, x: Tensor, y: Tensor, real: int | None = None) -> dict[str, Tensor]:
    """Gradients of the mean loss of the first ``real`` images, by parameter."""
    names, parameters = zip(*network.named_parameters(), strict=True)
    loss = F.cross_entropy(network.train()(x)[:real], y[:real])
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    return dict(zip(names, gradients, strict=True))


def _agree(what: str, value: Tensor, expected: Tensor) -> None:
    difference = (value - expected).abs().max().item()
    if not difference <= TOLERANCE:
        raise Violated(f"{what} differs by {difference:.2g}; expected at most {TOLERANCE:g}")
