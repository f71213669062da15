"""What a local program sees."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pfl.engine.client import Batch
from tests.device import DEVICE, emulated

CLIENTS, IMAGES, CLASSES = 3, 5, 4


@pytest.mark.parametrize("padded", [False, True])
def test_the_cross_entropy_of_a_stack_is_the_same_on_every_device(padded):
    stream = torch.Generator().manual_seed(0)
    logits = torch.randn(CLIENTS, IMAGES, CLASSES, generator=stream, dtype=torch.float64)
    labels = torch.randint(CLASSES, (CLIENTS, IMAGES), generator=stream)
    real = torch.arange(IMAGES) < torch.tensor([[5], [2], [3]])
    stacks = (logits, labels, real.double()) if padded else (logits, labels)

    def loss(logits: Tensor, labels: Tensor, rows: Tensor | None = None) -> Tensor:
        return Batch(logits, labels, rows).cross_entropy(logits)

    def gradients(device: str | torch.device) -> list[Tensor]:
        of_stack = torch.vmap(torch.func.grad_and_value(loss))
        return [found.cpu() for found in of_stack(*(stack.to(device) for stack in stacks))]

    with emulated():
        for ours, host in zip(gradients(DEVICE), gradients("cpu"), strict=True):
            torch.testing.assert_close(ours, host, rtol=1e-14, atol=1e-16)
