"""The structure of a network: an extractor, a head and named stages."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


class Network(nn.Module):
    """A classifier split where personalised methods split it.

    >>> extractor = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU())
    >>> network = Network(extractor, nn.Linear(16, 10))
    >>> network(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])

    Args:
        extractor: maps samples (B, ...), for example images (B, C, H, W), to features (B, d).
        head: the last linear layer, from d to classes.
        stages: maps the name of a stage to its submodules; by default the extractor is the stage "base" and
            the head the stage "head".

    Attributes:
        pretrained: whether the extractor starts from weights learnt on other data; None if none exist.
        bf16: whether `features` runs under bfloat16 autocast; see `pfl.core.config.Config.precision`.
    """

    pretrained: bool | None = None
    bf16: bool = False

    def __init__(
        self, extractor: nn.Module, head: nn.Linear, stages: Mapping[str, list[nn.Module]] | None = None
    ):
        super().__init__()
        self.extractor = extractor
        self.head = head
        self.stages: dict[str, list[nn.Module]] = dict(stages or {"base": [extractor], "head": [head]})

    def features(self, x: Tensor) -> Tensor:
        """The extractor's features (B, d) of samples (B, ...), in the dtype of the head."""
        features: Tensor
        if not self.bf16:
            features = self.extractor(x)
            return features
        # Each weight is used once, so caching autocast's copies would save nothing.
        with torch.autocast(x.device.type, torch.bfloat16, cache_enabled=False):
            features = self.extractor(x)
        return features.to(self.head.weight.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Samples (B, ...) to logits (B, classes)."""
        logits: Tensor = self.head(self.features(x))
        return logits
