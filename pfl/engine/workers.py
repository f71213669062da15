"""Execution on several cores by processes that are forked for one call and end with it.

A forked worker sees its parent's memory: tasks, methods and images are neither pickled nor copied. Python
threads would share the interpreter lock; kernel threads would split operations that are too small.
"""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import signal
import struct
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, TypeVar

import torch

T = TypeVar("T")

WORTHWHILE = 0.1
"""Minimum seconds of work for which workers are forked; a fork takes about 10 ms."""

_INDEX = struct.Struct("<I")
QUEUED = 8192  # entries of the queue; they must fit into a pipe
_PR_SET_PDEATHSIG = 1


def available() -> bool:
    """Whether processes can be forked safely: on Linux without a GPU, whose context cannot be forked."""
    return sys.platform == "linux" and not torch.cuda.is_available()


class Workers:
    """Calls a function for many items, on ``count`` processes including this one.

    The results do not depend on ``count`` if the function depends on its item alone.
    """

    def __init__(self, count: int):
        self.count = count
        self._rates: dict[str, float] = {}  # seconds per unit of cost, by kind

    def map(self, kind: str, work: Callable[[int], T], costs: Sequence[float]) -> list[T]:
        """``[work(0), work(1), ...]``, one item for each of ``costs``.

        Args:
            kind: the kind of work; calls of one kind take the same time per unit of cost.
            work: a function of the item's index; workers pickle its result.
            costs: expected relative duration of each item; expensive items start first.

        Raises:
            MemoryError: a worker was killed, probably because memory ran out.
            Exception: the one that ``work`` raised.
        """
        expected = self._rates.get(kind, 0.0) * sum(costs)
        count = min(self.count, len(costs))
        results: dict[int, T] = {}
        began = time.perf_counter()
        if count > 1 and expected > WORTHWHILE:
            results = _forked(work, sorted(range(len(costs)), key=lambda k: -costs[k]), count)
        else:
            for k in range(len(costs)):
                results[k] = work(k)
            if sum(costs):
                self._rates[kind] = (time.perf_counter() - began) / sum(costs)
        return [results[k] for k in range(len(costs))]


def _forked(work: Callable[[int], T], order: Sequence[int], count: int) -> dict[int, T]:
    """The result of each item; workers take items in ``order`` as they become free, a few at a time if there
    are many."""
    size = -(-len(order) // QUEUED)
    blocks = [order[k : k + size] for k in range(0, len(order), size)]
    queue, end = os.pipe()
    os.write(end, b"".join(map(_INDEX.pack, range(len(blocks)))))
    os.close(end)
    children: dict[int, BinaryIO] = {}
    gc.freeze()  # garbage collection in a worker would copy the pages of all objects
    try:
        with _interrupted_later():
            for _ in range(count - 1):
                output, end = os.pipe()
                if (pid := _fork()) == 0:
                    _be_a_worker(work, blocks, queue, end)
                os.close(end)
                children[pid] = os.fdopen(output, "rb")
        results = _drained(work, blocks, queue)
        for pid, stream in children.items():
            results |= _received(pid, stream)
        return results
    finally:
        gc.unfreeze()
        os.close(queue)
        for pid, stream in children.items():
            stream.close()
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # no-op for a worker that has ended
            os.waitpid(pid, 0)


@contextmanager
def _interrupted_later() -> Iterator[None]:
    """A context that defers Ctrl-C to its end.

    Python prints and discards exceptions in functions of `os.register_at_fork`, and a worker must not be
    interrupted before it ignores Ctrl-C.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield  # signals interrupt only the main thread
        return
    received: list[Any] = []
    signal.signal(signal.SIGINT, lambda *signalled: received.append(signalled))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if received:
        handler(*received[0])


def _fork() -> int:
    with warnings.catch_warnings():
        # Python warns about forking with threads, but a worker needs none of their locks.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _drained(work: Callable[[int], T], blocks: Sequence[Sequence[int]], queue: int) -> dict[int, T]:
    """The results of the items in the blocks that this process takes from the queue until it is empty."""
    results: dict[int, T] = {}
    while index := os.read(queue, _INDEX.size):
        results |= {k: work(k) for k in blocks[_INDEX.unpack(index)[0]]}
    return results


def _be_a_worker(work: Callable[[int], Any], blocks: Sequence[Sequence[int]], queue: int, end: int) -> None:
    """The body of a forked process, which exits here."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent terminates its workers
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        gc.disable()
        content: dict[int, Any] | BaseException
        try:
            content = _drained(work, blocks, queue)
        except BaseException as error:
            content = error
        with os.fdopen(end, "wb") as stream:
            _send(content, stream)
    finally:
        os._exit(0)  # without the parent's clean-up


class _Pickler(pickle.Pickler):
    """Pickles tensors as arrays, which takes a tenth of the time."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return torch.from_numpy, (value.detach().numpy(),)
        return NotImplemented


def _send(content: Any, stream: BinaryIO) -> None:
    try:
        if isinstance(content, BaseException):
            content = pickle.loads(pickle.dumps(content))
    except Exception:  # an exception that cannot be pickled
        content = RuntimeError(f"{type(content).__name__}: {content}")
    _Pickler(stream, protocol=5).dump(content)


def _received(pid: int, stream: BinaryIO) -> dict[int, Any]:
    """The results of a worker."""
    try:
        content = pickle.load(stream)
    except (EOFError, pickle.UnpicklingError):
        raise MemoryError(f"worker process {pid} was killed; a smaller --workers needs less memory") from None
    if isinstance(content, BaseException):
        raise content
    results: dict[int, Any] = content
    return results
