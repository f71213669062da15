"""Read rows of a file into memory."""

from __future__ import annotations

import ctypes
import os
from typing import BinaryIO

import torch
from torch import Tensor

from pfl.kernels import compiled, pointer


def read_rows(file: BinaryIO, index: Tensor, size: int) -> Tensor:
    """The rows ``index`` (B,) of a file with ``size`` bytes per row, as uint8 (B, size).

    Reading a row takes a third of the time of mapping it into memory, and mapped pages would count as this
    process's memory.

    Raises:
        OSError: the file ends before a row does.
    """
    rows = torch.empty((len(index), size), dtype=torch.uint8)
    library = compiled("read_rows")
    if library is not None:
        index = index.contiguous()
        whole = library.read_rows(
            file.fileno(),
            pointer(index),
            ctypes.c_int64(len(index)),
            ctypes.c_int64(size),
            pointer(rows),
        )
    else:
        views = memoryview(rows.numpy().data).cast("B")
        whole = all(
            os.preadv(file.fileno(), [views[i * size : (i + 1) * size]], row * size) == size
            for i, row in enumerate(index.tolist())
        )
    if not whole:
        raise OSError(f"{file.name} has been cut off")
    return rows
