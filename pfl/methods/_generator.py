"""FedGen's generator, which maps a class and noise to a feature: linear, batch norm, ReLU, linear, ReLU.

Its tensors are in a method's state as ``state["generator"][NAME]``, and the moments of Adam, which trains it,
as ``state["adam"][KIND][NAME]``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from pfl.core.lazy import torch
from pfl.engine.types import State, Tensor

TRAINED = ("hidden.weight", "hidden.bias", "norm.weight", "norm.bias", "output.weight", "output.bias")


def initial_state(
    stream: np.random.Generator, classes: int, noise: int, hidden: int, features: int, dtype: torch.dtype
) -> State:
    """A new generator of the given widths, with torch's default initialisation, and the moments of Adam."""
    tensors = {
        "norm.weight": torch.ones(hidden),
        "norm.bias": torch.zeros(hidden),
        "norm.mean": torch.zeros(hidden),
        "norm.variance": torch.ones(hidden),
    }
    for layer, inputs, outputs in (("hidden", noise + classes, hidden), ("output", hidden, features)):
        bound = 1 / math.sqrt(inputs)
        tensors[f"{layer}.weight"] = torch.from_numpy(stream.uniform(-bound, bound, (outputs, inputs)))
        tensors[f"{layer}.bias"] = torch.from_numpy(stream.uniform(-bound, bound, outputs))
    net = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    adam = {kind: {name: torch.zeros_like(net[name]) for name in TRAINED} for kind in ("mean", "square")}
    adam["steps"] = {name: torch.zeros(()) for name in TRAINED}
    return {"generator": net, "adam": adam}


def generate(net: Mapping[str, Tensor], y: Tensor, noise: Tensor, training: bool = False) -> Tensor:
    """Features (B, d) for classes ``y`` (B,) and ``noise`` (B, width).

    In training, batch norm normalises by the batch and updates its running statistics in place.
    """
    from torch.nn import functional as F

    classes = net["hidden.weight"].shape[1] - noise.shape[1]
    label = (y[:, None] == torch.arange(classes, device=y.device)).to(noise)
    hidden = F.linear(torch.cat([noise, label], 1), net["hidden.weight"], net["hidden.bias"])
    statistics = (net["norm.mean"], net["norm.variance"])
    hidden = F.batch_norm(hidden, *statistics, net["norm.weight"], net["norm.bias"], training)
    return F.linear(hidden.relu(), net["output.weight"], net["output.bias"]).relu()


def descend(
    state: State,
    objective: Callable[[Mapping[str, Tensor]], Tensor],
    lr: float,
    weight_decay: float,
) -> None:
    """One step of Adam on the generator in ``state``, in place, to reduce ``objective`` of its tensors."""
    from torch.optim.adam import adam

    net, moments = state["generator"], state["adam"]
    leaves = {name: net[name].detach().requires_grad_() for name in TRAINED}
    gradients = torch.autograd.grad(objective({**net, **leaves}), list(leaves.values()))
    with torch.no_grad():
        adam(
            list(leaves.values()),
            list(gradients),
            list(moments["mean"].values()),
            list(moments["square"].values()),
            [],
            list(moments["steps"].values()),
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=lr,
            weight_decay=weight_decay,
            eps=1e-8,
            maximize=False,
        )
