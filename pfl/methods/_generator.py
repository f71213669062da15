"""FedGen's generator, which maps a class and noise to a feature: linear, batch norm, ReLU, linear, ReLU.

Its tensors, and the moments of Adam, which trains it, are in a method's state under ``generator.NAME`` and
``adam.KIND.NAME``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pfl.core.lazy import torch

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

PREFIX = "generator."
TRAINED = ("hidden.weight", "hidden.bias", "norm.weight", "norm.bias", "output.weight", "output.bias")
STATISTICS = ("norm.mean", "norm.variance")


def initial_state(
    stream: np.random.Generator, classes: int, noise: int, hidden: int, features: int, dtype: torch.dtype
) -> dict[str, Tensor]:
    """A new generator of the given widths, in torch's default initialisation, with the moments of Adam."""
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
    state = {f"{PREFIX}{name}": tensor.to(dtype) for name, tensor in tensors.items()}
    for name in TRAINED:
        state[f"adam.mean.{name}"] = torch.zeros_like(state[f"{PREFIX}{name}"])
        state[f"adam.square.{name}"] = torch.zeros_like(state[f"{PREFIX}{name}"])
        state[f"adam.steps.{name}"] = torch.zeros(())
    return state


def network(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The generator's tensors out of ``state``: the server's state, or the tensors sent to a client."""
    return {name: state[f"{PREFIX}{name}"] for name in (*TRAINED, *STATISTICS)}


def generate(net: Mapping[str, Tensor], y: Tensor, noise: Tensor, training: bool = False) -> Tensor:
    """Features (B, d) for classes ``y`` (B,) and ``noise`` (B, width).

    In training batch norm normalises by the batch and moves its statistics in place.
    """
    from torch.nn import functional as F

    classes = net["hidden.weight"].shape[1] - noise.shape[1]
    label = (y[:, None] == torch.arange(classes, device=y.device)).to(noise)
    hidden = F.linear(torch.cat([noise, label], 1), net["hidden.weight"], net["hidden.bias"])
    statistics = (net["norm.mean"], net["norm.variance"])
    hidden = F.batch_norm(hidden, *statistics, net["norm.weight"], net["norm.bias"], training)
    return F.linear(hidden.relu(), net["output.weight"], net["output.bias"]).relu()


def descend(
    state: Mapping[str, Tensor],
    objective: Callable[[Mapping[str, Tensor]], Tensor],
    lr: float,
    weight_decay: float,
) -> None:
    """One step of Adam on the generator in ``state``, in place, to reduce ``objective`` of its tensors."""
    from torch.optim.adam import adam

    leaves = {name: state[f"{PREFIX}{name}"].detach().requires_grad_() for name in TRAINED}
    gradients = torch.autograd.grad(objective({**network(state), **leaves}), list(leaves.values()))
    with torch.no_grad():
        adam(
            list(leaves.values()),
            list(gradients),
            [state[f"adam.mean.{name}"] for name in TRAINED],
            [state[f"adam.square.{name}"] for name in TRAINED],
            [],
            [state[f"adam.steps.{name}"] for name in TRAINED],
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=lr,
            weight_decay=weight_decay,
            eps=1e-8,
            maximize=False,
        )
