"""The partitioned data set, as tensors on one device."""

from __future__ import annotations

import copy
import math
import mmap
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pfl.core.errors import InvalidInput
from pfl.data.augmentation import Moves, augmented
from pfl.data.dataset import Dataset
from pfl.data.partition import Partition
from pfl.data.shape import TokenShape
from pfl.kernels import gpu, gpu_layers
from pfl.kernels.read_rows import read_rows

SCALES = {
    "symmetric": ((0.5,), (0.5,)),
    "unit": ((0.0,), (1.0,)),
    "raw255": ((0.0,), (1 / 255,)),
    # SPFL/dataset/data_transform.py of https://github.com/MondayCat/PLGA
    "mnist": ((0.1307,), (0.3081,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261)),
    # fling/dataset/cifar100.py and tiny_imagenet.py of https://github.com/FLAIR-Community/Fling
    "cifar100": ((0.507, 0.487, 0.441), (0.267, 0.256, 0.276)),
}
"""Offset to subtract and divisor of each input scale, one for all channels or one per channel; "normalised"
uses the data set's mean and standard deviation."""


class Federation:
    """The clients' data. Samples keep their dtype on the device and are normalised when a batch is drawn.

    Args:
        dataset: the pooled samples.
        partition: each client's training and test samples.
        device: device of all tensors.
        dtype: dtype of the normalised samples; tokens become int64.
        input_scale: scale of the images, see `pfl.core.config.Config`.
        held_out: share of each client's training samples to hold out, in ``held_out``.

    Raises:
        InvalidInput: the scale is for images, or for images with another number of channels.
    """

    def __init__(
        self,
        dataset: Dataset,
        partition: Partition,
        device: torch.device,
        dtype: torch.dtype,
        input_scale: str = "normalised",
        held_out: float = 0.0,
    ):
        images, self._file = dataset.images, None
        if isinstance(images, np.memmap) and isinstance(images.base, mmap.mmap):
            self._file = Path(str(images.filename)).open("rb", buffering=0)  # noqa: SIM115
            # Without what the user has written to the mapped pages, as a CPU reads the file and a GPU these.
            images = np.memmap(str(images.filename), images.dtype, "c", shape=images.shape)
        self.images = torch.from_numpy(images).to(device).contiguous()
        self.labels = torch.from_numpy(dataset.labels).to(device).contiguous()
        self.classes = len(dataset.classes)
        self.shape = dataset.shape
        self.is_images = dataset.is_images
        self._share = held_out
        self._assign(partition)
        self.device = device
        self.dtype = dtype
        if input_scale in SCALES and not self.is_images:
            accepted = f"normalised, because the samples of {dataset.name} are not 8-bit images"
            raise InvalidInput("input_scale", input_scale, accepted)
        constants = SCALES.get(input_scale, (dataset.mean, dataset.std))
        channels = len(constants[0])
        if self.is_images and channels not in (1, self.shape[0]):
            raise InvalidInput("input_scale", input_scale, f"images with {channels} channels")
        inner = [1] * (len(self.shape) - 1)
        mean, std = (
            torch.tensor(value, dtype=dtype, device=device).view(len(value), *inner) for value in constants
        )
        std = torch.where(std > 0, std, 1.0)  # a constant channel stays constant
        self._scale = 1 / (255 * std) if self.is_images else 1 / std
        self._shift = -mean / std

    def divided(self, partition: Partition) -> Federation:
        """The same samples, in shared memory, with another partition."""
        other = copy.copy(self)
        other._assign(partition)
        for cached in ("sizes", "label_counts"):
            other.__dict__.pop(cached, None)
        return other

    def _assign(self, partition: Partition) -> None:
        self.partition, self.train, self.test = partition, partition.train, partition.test
        self.held_out: tuple[np.ndarray, ...] = ()
        if self._share:
            divided = partition.with_validation(self._share, self.labels.cpu().numpy(), "stop_share")
            self.train, self.held_out = divided.train, divided.test

    @property
    def clients(self) -> int:
        return len(self.train)

    @cached_property
    def sizes(self) -> Tensor:
        """Training samples of each client, float64 (n,)."""
        sizes = [len(index) for index in self.train]
        return torch.tensor(sizes, dtype=torch.float64, device=self.device)

    @cached_property
    def label_counts(self) -> Tensor:
        """Training samples of each client and class, float64 (n, classes)."""
        labels = self.labels.cpu().numpy()
        counts = [np.bincount(labels[index], minlength=self.classes) for index in self.train]
        return torch.tensor(np.stack(counts), dtype=torch.float64, device=self.device)

    def batch(self, index: Tensor, moves: Moves | None = None) -> tuple[Tensor, Tensor]:
        """Scaled samples (..., *shape) and labels (...) of the pooled ``index`` (...).

        Images are augmented by ``moves``.
        """
        if moves is None and self.is_images and gpu.usable(self._scale):
            return gpu_layers.scaled_images(self.images, self.labels, index, self._scale, self._shift)
        chosen = self._chosen(index.flatten()).view(*index.shape, *self.shape)
        images = self.scaled(chosen) if moves is None else augmented(chosen, moves, self.scaled)
        return images, self.labels[index]

    def scaled(self, images: Tensor) -> Tensor:
        """Scale samples to the network's input. Tokens are not scaled."""
        if isinstance(self.shape, TokenShape):
            return images.long()
        if images.device.type != "cpu":
            pixels = images if self.is_images else images.to(self.dtype)
            return torch.addcmul(self._shift, pixels, self._scale)  # one kernel
        return images.to(self.dtype, copy=True).mul_(self._scale).add_(self._shift)

    def _chosen(self, index: Tensor) -> Tensor:
        """The stored samples (B, *shape) of pooled indices (B,)."""
        if self._file is None or self.device.type != "cpu":
            return self.images.index_select(0, index)  # copies whole rows; plain indexing copies byte by byte
        size = math.prod(self.shape) * self.images.element_size()
        return read_rows(self._file, index, size).view(self.images.dtype).view(-1, *self.shape)
