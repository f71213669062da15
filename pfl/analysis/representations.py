"""Outputs of the layers of a network."""

from __future__ import annotations

from pfl.core.lazy import torch
from pfl.engine.types import Network, Tensor


def layers(net: Network) -> dict[str, torch.nn.Module]:
    """The convolutions and linear layers of extractor and head, by name, in order."""
    kinds = (torch.nn.Conv2d, torch.nn.Linear)
    parts = {"extractor": net.extractor, "head": net.head}
    by_path = {
        f"{part}.{name}".strip("."): layer
        for part, module in parts.items()
        for name, layer in module.named_modules()
        if isinstance(layer, kinds)
    }
    return {name.removeprefix("extractor."): layer for name, layer in by_path.items()}


def outputs(net: Network, images: Tensor) -> dict[str, Tensor]:
    """The output of every layer of `layers` for samples (B, ...), in evaluation mode: (B, d) each."""
    results: dict[str, Tensor] = {}
    hooks = [
        layer.register_forward_hook(
            lambda _layer, _inputs, output, name=name: results.update({name: output.detach().flatten(1)})
        )
        for name, layer in layers(net).items()
    ]
    net.eval()
    try:
        with torch.no_grad():
            net(images)
    finally:
        for hook in hooks:
            hook.remove()
    return {name: output.to(net.head.weight) for name, output in results.items()}
