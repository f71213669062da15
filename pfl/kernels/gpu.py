"""Operations of stacked clients on a GPU, with one kernel each.

Under `torch.vmap`, a convolution of K clients becomes one with K groups, which cuDNN computes group by group
in float32: a step of 30 LeNets then launches 320 kernels, and one of 40 ResNet-8 launches 2,850. Other layers
become several kernels, whose time is mostly that of the launch. The operations of `gpu_convolution` and
`gpu_layers` are ordinary ones to vmap, but run `triton_kernels` on the whole stack. They can be
differentiated once, inside vmap.
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch
from torch import Tensor

log = logging.getLogger(__name__)

DTYPES = (torch.float32, torch.bfloat16)


def usable(x: Tensor) -> bool:
    """Whether these operations support clients with images or features like ``x``."""
    return x.device.type == "cuda" and x.dtype in DTYPES and kernels() is not None


@cache
def kernels() -> Any:
    """The module of the kernels; None if Triton is missing or cannot compile."""

    def compiled() -> Any:
        from pfl.kernels import triton_kernels

        x = torch.ones(1, device="cuda")
        triton_kernels.pool[1,](x, x, x.to(torch.int8), 1, 1, 1, 1, 1, 1, 1, 0, 16)
        torch.cuda.synchronize()
        return triton_kernels

    try:
        with ThreadPoolExecutor(1) as thread:  # vmap is not active in it
            return thread.submit(compiled).result()
    except Exception as error:  # types of Triton, the compiler and the driver
        reason = str(error).partition("\n")[0]
        log.warning("falling back to slower torch kernels: Triton does not work here: %s", reason)
        return None


def as_autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """``tensors`` in the dtype of autocast, if it is enabled."""
    if not torch.is_autocast_enabled("cuda"):
        return tensors
    return tuple(tensor.to(torch.get_autocast_dtype("cuda")) for tensor in tensors)


class Stacked(torch.autograd.Function):
    """A function of one client's tensors, computed for a whole stack; a single client is a stack of one."""

    @staticmethod
    def on_stacks(*inputs: Any) -> tuple[Tensor, ...]:
        """The function for tensors (K, *shape) and other values; returns tensors (K, *shape)."""
        raise NotImplementedError

    @classmethod
    def forward(cls, *inputs: Any) -> tuple[Tensor, ...]:
        outputs = cls.on_stacks(*(v.unsqueeze(0) if isinstance(v, Tensor) else v for v in inputs))
        return tuple(output.squeeze(0) for output in outputs)

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, tuple[int, ...]]:
        def stacked(value: Any, dim: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            return value.expand(info.batch_size, *value.shape) if dim is None else value.movedim(dim, 0)

        outputs = cls.on_stacks(*map(stacked, inputs, in_dims))
        return outputs, (0,) * len(outputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass
