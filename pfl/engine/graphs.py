"""Training steps of a stack as CUDA graphs, which launch all kernels of a step at once.

A graph repeats the same operations on the same memory. So everything that a recorded step reads and writes
must stay where it is.
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
"""Records the operations of its argument without running them; what it returns runs them."""


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
        if free < torch.cuda.memory_reserved():  # in which a step that was not recorded found room
            torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        collects = gc.isenabled()
        gc.disable()  # it may find an earlier graph, and to free one is not allowed while recording
        if not self._graphs:  # a pool ends with the last of its graphs
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
    """Makes a recorder for each stack on ``device``; None where nothing can be recorded."""
    return CudaGraphs if device.type == "cuda" else None


class Recorder:
    """Runs steps; a step of as many clients as an earlier one is a replay of its recording.

    Args:
        step: of the first n clients; must find everything in the same memory every time.
        capture: records a step; `None` means that nothing is recorded.
    """

    def __init__(self, step: Callable[[int], None], capture: Capture | None):
        self._step = step
        self._capture = capture
        self._began = False
        self._recorded: dict[int, Callable[[], None]] = {}

    def forget(self) -> None:
        """Record all steps again, as they will find other memory."""
        self._recorded.clear()

    def __call__(self, active: int) -> None:
        """Do a step of the first ``active`` clients."""
        if replay := self._recorded.get(active):
            return replay()
        # The first step without recording: libraries initialise then, which is not allowed while recording.
        if self._capture is None or not self._began:
            self._began = True
            return self._step(active)
        try:
            replay = self._recorded[active] = self._capture(lambda: self._step(active))
        except RuntimeError as error:
            if memory.ran_out(error):
                raise
            log.warning("steps are not recorded, which is slower: %s", str(error).partition("\n")[0])
            self._capture = None
            return self._step(active)
        return replay()
