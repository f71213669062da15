"""Gradient-weighted class activation maps (Grad-CAM) of convolutional networks, and their spread."""

from __future__ import annotations

from pfl.core.errors import InvalidInput
from pfl.core.lazy import torch
from pfl.engine.types import Network, Tensor


def activation_maps(net: Network, images: Tensor, classes: Tensor) -> Tensor:
    """Grad-CAM (Selvaraju et al., 2017, Eq. 1 and 2) at the last convolution, in evaluation mode.

    The output channels of the convolution are summed, weighted by the mean gradient of the class logit.
    Negative values become 0, and the map is resized to the images and scaled to a maximum of 1.

    Args:
        images: (B, C, H, W), normalised.
        classes: (B,), the classes whose logits are explained.

    Returns:
        (B, H, W), in [0, 1]; all 0 if nothing supports the class.

    Raises:
        InvalidInput: the network has no convolution.
    """
    convolutions = [layer for layer in net.extractor.modules() if isinstance(layer, torch.nn.Conv2d)]
    if not convolutions:
        raise InvalidInput("model", type(net).__name__, "one with a convolution, for class activation maps")
    kept: list[Tensor] = []
    hook = convolutions[-1].register_forward_hook(lambda _layer, _inputs, output: kept.append(output))
    net.eval()
    try:
        with torch.enable_grad():
            # The inputs require gradients, so that this works even if no parameter does.
            logits = net(images.detach().requires_grad_())
            chosen = logits.gather(1, classes[:, None]).sum()
            (gradient,) = torch.autograd.grad(chosen, kept[0])
    finally:
        hook.remove()
    weights = gradient.mean((2, 3), keepdim=True)
    coarse = (weights * kept[0].detach()).sum(1, keepdim=True).relu().to(images)
    maps = torch.nn.functional.interpolate(coarse, images.shape[2:], mode="bilinear", align_corners=False)
    largest = maps.amax((1, 2, 3), keepdim=True)
    return (maps / torch.where(largest > 0, largest, 1.0)).squeeze(1)


def spread(maps: Tensor) -> Tensor:
    """The share (B,) of each map (B, H, W) that is at least half of its maximum."""
    largest = maps.amax((1, 2), keepdim=True)
    return ((maps >= largest / 2) & (largest > 0)).double().mean((1, 2))
