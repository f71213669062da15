"""Training steps of a stack as CUDA graphs, which launch all kernels of a step at once.

A graph repeats the same operations on the same memory, so everything that a recorded step reads or writes
must stay in place.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from weakref import WeakSet

import torch

from pfl.core import memory

log = logging.getLogger(__name__)

Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""Records the operations of its argument without running them; the returned function runs them."""


class CudaGraphs:
    """A `Capture` on a GPU. All steps that it records share one pool of temporary memory.

    Like `torch.cuda.graph`, without the synchronisation and without freeing cached memory each time.
    """

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: WeakSet[torch.cuda.CUDAGraph] = WeakSet()
        self._stream = torch.cuda.Stream()

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        free, _ = torch.cuda.mem_get_info()
        if free < torch.cuda.memory_reserved():  # as much as an unrecorded step has needed
            torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        collects = gc.isenabled()
        gc.disable()  # it might free an earlier graph, which is not allowed while recording
        if not self._graphs:  # a pool is freed with its last graph
            self._pool = torch.cuda.graph_pool_handle()
        try:
            with torch.cuda.stream(self._stream):
                graph.capture_begin(pool=self._pool)
                try:
                    work()
                finally:
                    graph.capture_end()
        finally:
            if collects:
                gc.enable()
        self._graphs.add(graph)
        return graph.replay


def captures_on(device: torch.device) -> Callable[[], Capture] | None:
    """Creates a recorder for each stack on ``device``; None if nothing can be recorded."""
    return CudaGraphs if device.type == "cuda" else None


class Recorder:
    """Runs steps; a step with the same number of clients as an earlier one replays its recording.

    Args:
        step: runs a step of the first n clients; all its tensors must stay in the same memory.
        capture: records a step; `None` means that nothing is recorded.
    """

    def __init__(self, step: Callable[[int], None], capture: Capture | None):
        self._step = step
        self._capture = capture
        self._began = False
        self._recorded: dict[int, Callable[[], None]] = {}

    def forget(self) -> None:
        """Discard all recordings, because the memory of the steps has changed."""
        self._recorded.clear()

    def __call__(self, active: int) -> None:
        """Run a step of the first ``active`` clients."""
        if replay := self._recorded.get(active):
            return replay()
        # The first step is not recorded: it initialises libraries, which recording does not allow.
        if self._capture is None or not self._began:
            self._began = True
            return self._step(active)
        try:
            replay = self._recorded[active] = self._capture(lambda: self._step(active))
        except RuntimeError as error:
            if memory.is_out_of_memory(error):
                raise
            log.warning("steps are not recorded, which is slower: %s", str(error).partition("\n")[0])
            self._capture = None
            return self._step(active)
        return replay()
