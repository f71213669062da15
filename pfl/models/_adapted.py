"""Any classifier that is an `nn.Module`, as a `Network` whose clients can be stacked."""

from __future__ import annotations

import math
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.lazy import LazyModuleMixin

from pfl.core.errors import InvalidInput
from pfl.data.shape import TokenShape
from pfl.models import MODELS, Shape, is_image, unfit
from pfl.models._conv import Conv2d
from pfl.models._layers import BatchNorm, BatchNorm1d, BatchNorm2d, Dropout
from pfl.models._network import Network

Module = TypeVar("Module", bound=nn.Module)

NORMS: dict[type[nn.Module], type[BatchNorm1d] | type[BatchNorm2d]] = {
    nn.BatchNorm1d: BatchNorm1d,
    nn.BatchNorm2d: BatchNorm2d,
}


def adapted(name: str, module: nn.Module, shape: Shape, classes: int) -> Network:
    """``module`` with layers that both backends support, split before its last linear layer if necessary.

    Raises:
        InvalidInput: a layer cannot be stacked, or the last layer is not linear.
    """
    if not isinstance(module, nn.Module):
        raise InvalidInput("model", name, f"a function that returns an nn.Module, not {module!r}")
    if isinstance(module, Network):
        if not isinstance(module.head, nn.Linear):
            accepted = f"a network whose head is an nn.Linear, not a {type(module.head).__name__}"
            raise InvalidInput("model", name, accepted)
        if module.head.out_features != classes:
            raise _wrong_logits(name, module.head.out_features, classes)
        net = supported(name, module)
        # Built-in networks of images check the size themselves.
        if not is_image(shape) or MODELS[name].__module__ != f"{MODELS.package}.{name}":
            logits = _logits(name, net, shape)
            if logits.shape != (2, classes):
                raise _wrong_logits(name, tuple(logits.shape[1:]), classes)
    else:
        net = _split(name, supported(name, module), shape, classes)
    return net


def supported(name: str, module: Module) -> Module:
    """``module`` with layers that both backends support, on the same tensors.

    Raises:
        InvalidInput: clients with such a network cannot be simulated.
    """
    module = _with_own_layers(name, module)
    parameters = dict(module.named_parameters(remove_duplicate=False))
    if len(parameters) != len(list(module.parameters())):
        raise InvalidInput("model", name, "a network whose layers share no weights")
    for tensor, parameter in parameters.items():
        if not parameter.requires_grad:
            accepted = f"a network whose parameters are all trained, unlike {tensor} (requires_grad is False)"
            raise InvalidInput("model", name, f"{accepted}; a method freezes groups with Phase(trains=...)")
    for tensor, value in (*parameters.items(), *module.named_buffers()):
        if value.dim() == 0:
            accepted = f"a network without tensors of shape () such as {tensor}, which can have shape (1,)"
            raise InvalidInput("model", name, accepted)
    if not all(buffer.is_floating_point() for buffer in module.buffers()):
        raise InvalidInput("model", name, "a network whose buffers are floating-point numbers")
    return module


def check_constants(name: str, net: nn.Module, other: nn.Module) -> None:
    """Check that plain attributes of ``net`` equal those of the network of another seed: clients share them.

    Raises:
        InvalidInput: one depends on the seed.
    """
    known = _constants(other)
    for constant, value in _constants(net).items():
        if constant not in known or not torch.equal(value, known[constant]):
            accepted = f"a network whose constants are equal for all seeds, unlike {constant}"
            raise InvalidInput("model", name, f"{accepted}; register_buffer keeps one for each")


def _constants(net: nn.Module) -> dict[str, Tensor]:
    """Attributes that are neither parameters nor buffers nor, as with weight_norm, computed from them."""
    return {
        f"{path}.{attribute}".removeprefix("."): torch.as_tensor(value).to_dense()
        for path, layer in net.named_modules()
        for attribute, value in vars(layer).items()
        if isinstance(value, float) or (isinstance(value, Tensor) and value.is_leaf)
    }


def _split(name: str, module: nn.Module, shape: Shape, classes: int) -> Network:
    linears = [path for path, layer in module.named_modules() if isinstance(layer, nn.Linear)]
    accepted = "a network whose last nn.Linear returns the logits, or pfl.Network(extractor, head)"
    if not linears or linears[-1] == "":
        raise InvalidInput("model", name, accepted)
    logits = _logits(name, module, shape)
    head = module.get_submodule(linears[-1])
    assert isinstance(head, nn.Linear)
    module.set_submodule(linears[-1], nn.Identity())
    net = Network(module, head)
    if logits.shape != (2, classes):
        raise _wrong_logits(name, tuple(logits.shape[1:]), classes)
    features = _logits(name, module, shape)
    if features.shape != (2, head.in_features):
        raise InvalidInput("model", name, accepted)
    if not logits.is_meta and not torch.equal(head(features), logits):
        raise InvalidInput("model", name, accepted)
    return net


def _wrong_logits(name: str, logits: object, classes: int) -> InvalidInput:
    return InvalidInput("model", name, f"a network with {classes} logits, not {logits}")


@torch.no_grad()
def _logits(name: str, module: nn.Module, shape: Shape) -> Tensor:
    """Logits of two samples in training mode, except that batch norm and dropout are in evaluation mode."""
    module.train()
    for layer in module.modules():
        if isinstance(layer, BatchNorm | Dropout):
            layer.eval()
    attributes = [(vars(layer), vars(layer).copy()) for layer in module.modules()]
    before = torch.get_rng_state()
    try:
        logits: Tensor = module(_samples(shape))
    except Exception as error:  # whatever a forward function raises
        raise unfit(name, shape, error) from None
    finally:
        for own, former in attributes:  # without what the forward function has stored
            own.clear()
            own.update(former)
        module.train()
    if not isinstance(logits, Tensor):
        raise InvalidInput("model", name, f"a network that returns logits, not a {type(logits).__name__}")
    if not torch.equal(before, torch.get_rng_state()):
        accepted = "a network that is random in nn.Dropout only; set the dropout of other layers to 0"
        raise InvalidInput("model", name, accepted)
    return logits


def _samples(shape: Shape) -> Tensor:
    """Two samples (2, *shape)."""
    values = 2 * math.prod(shape)
    if isinstance(shape, TokenShape):
        return torch.arange(values).remainder(shape.tokens).view(2, *shape)
    return torch.linspace(-1, 1, values).view(2, *shape)


def _with_own_layers(name: str, module: Module) -> Module:
    """``module`` with this package's layers in place of torch's, on the same tensors."""
    named = list(module.named_modules(remove_duplicate=False))  # a layer can be in two places
    for path, layer in named[1:]:  # the first is the network itself
        if isinstance(layer, LazyModuleMixin):
            raise InvalidInput("model", name, f"a network without {type(layer).__name__}")
        if isinstance(layer, _BatchNorm) and not isinstance(layer, BatchNorm):
            module.set_submodule(path, _own_norm(name, layer))
        elif type(layer) is nn.Conv2d and _square(layer):
            module.set_submodule(path, _own_convolution(layer))
        elif type(layer) is nn.Dropout:
            module.set_submodule(path, Dropout(layer.p))
        elif isinstance(layer, _DropoutNd) or (
            isinstance(layer, nn.modules.instancenorm._InstanceNorm) and layer.track_running_stats
        ):
            raise InvalidInput("model", name, f"a network without {type(layer).__name__}")
    return module


def _square(layer: nn.Conv2d) -> bool:
    """Whether `Conv2d`, which is faster on a GPU, can compute the convolution; others stay torch's."""
    sizes = (layer.kernel_size, layer.stride, layer.padding)
    same = all(len(set(size)) == 1 for size in sizes) and not isinstance(layer.padding, str)
    return same and layer.dilation == (1, 1) and layer.groups == 1 and layer.padding_mode == "zeros"


def _own_convolution(layer: nn.Conv2d) -> nn.Module:
    sizes = (layer.kernel_size[0], layer.stride[0], int(layer.padding[0]))
    own = Conv2d(layer.in_channels, layer.out_channels, *sizes, bias=layer.bias is not None, device="meta")
    own.weight, own.bias = layer.weight, layer.bias
    return own


def _own_norm(name: str, layer: _BatchNorm) -> nn.Module:
    momentum = layer.momentum
    usual = layer.affine and layer.track_running_stats
    if type(layer) not in NORMS or not usual or momentum is None:
        accepted = "BatchNorm1d and BatchNorm2d with weights, running statistics and a momentum"
        raise InvalidInput("model", name, f"a network whose batch norm is {accepted}")
    own = NORMS[type(layer)](layer.num_features, layer.eps, momentum)
    own.weight, own.bias = layer.weight, layer.bias
    own.load_state_dict(layer.state_dict(), strict=False)  # without torch's batch counter
    return own
