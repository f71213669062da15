"""Training steps of a stack as CUDA graphs, which launch all kernels of a step at once.

A graph repeats the same operations on the same memory. So everything that a recorded step reads and writes
must stay where it is.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor

from pfl import memory

log = logging.getLogger(__name__)

Inputs = Sequence[Sequence[Tensor | None]]
Step = Callable[[int, Inputs], None]
"""Runs a step of the first n clients in place; each of its inputs begins with these clients."""

Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""Records the operations of its argument without running them; what it returns runs them."""


class CudaGraphs:
    """A `Capture` on a GPU. All steps that it records share one pool of temporary memory."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        collects = gc.isenabled()
        gc.disable()  # it may find an earlier graph, and to free one is not allowed while recording
        try:
            with torch.cuda.graph(graph, pool=self._pool):
                work()
        finally:
            if collects:
                gc.enable()
        return graph.replay


def captures_on(device: torch.device) -> Callable[[], Capture] | None:
    """Makes a recorder for each stack on ``device``; None where nothing can be recorded."""
    return CudaGraphs if device.type == "cuda" else None


class Recorder:
    """Runs steps; a step that comes a second time is recorded, and replayed from then on.

    Args:
        step: must find everything except its inputs in the same memory every time.
        capture: records a step; `None` means that nothing is recorded.
    """

    def __init__(self, step: Step, capture: Capture | None):
        self._step = step
        self._capture = capture
        self._seen: set[Hashable] = set()
        self._recorded: dict[Hashable, tuple[Inputs, Callable[[], None]]] = {}

    def __call__(self, active: int, inputs: Inputs) -> None:
        key = (active, *(None if tensor is None else tensor.shape for own in inputs for tensor in own))
        # The first time without recording: libraries initialise then, which is not allowed while recording.
        if self._capture is None or key not in self._seen:
            self._seen.add(key)
            return self._step(active, inputs)
        if key not in self._recorded:
            copies = [[None if tensor is None else tensor.clone() for tensor in own] for own in inputs]
            try:
                self._recorded[key] = copies, self._capture(lambda: self._step(active, copies))
            except RuntimeError as error:
                if memory.ran_out(error):
                    raise
                log.warning("steps are not recorded, which is slower: %s", str(error).partition("\n")[0])
                self._capture = None
                return self._step(active, inputs)
        held, replay = self._recorded[key]
        for mine, theirs in zip(held, inputs, strict=True):
            for place, value in zip(mine, theirs, strict=True):
                if place is not None and value is not None:
                    place.copy_(value)
        return replay()
