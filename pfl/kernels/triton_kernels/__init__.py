"""Triton kernels of a network's layers and loss, for all clients of a stack at once.

Imported when first needed on a GPU (`pfl.kernels.gpu`), as Triton comes with torch for CUDA only. All tensors
are contiguous.
"""

from pfl.kernels.triton_kernels.batch_norm import normalise, normalise_gradient
from pfl.kernels.triton_kernels.convolution import (
    convolve,
    input_gradient,
    narrow_convolve,
    narrow_weight_gradient,
    weight_gradient,
)
from pfl.kernels.triton_kernels.cross_entropy import cross_entropy, cross_entropy_gradient
from pfl.kernels.triton_kernels.images import scaled_images
from pfl.kernels.triton_kernels.pooling import pool, pool_gradient

__all__ = [
    "convolve",
    "cross_entropy",
    "cross_entropy_gradient",
    "input_gradient",
    "narrow_convolve",
    "narrow_weight_gradient",
    "normalise",
    "normalise_gradient",
    "pool",
    "pool_gradient",
    "scaled_images",
    "weight_gradient",
]
