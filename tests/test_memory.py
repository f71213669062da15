"""Memory of this process."""

from mmap import mmap

import pytest

from pfl.core import memory
from tests.command import python


def page_faults(before: str) -> int:
    """Of a process that allocates and frees five blocks of 4 MB a hundred times."""
    program = f"""
import resource
from pfl.core import memory
{before}
for _ in range(100):
    blocks = [bytes([1]) * (4 << 20) for _ in range(5)]
    del blocks
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""
    return int(python("-c", program).stdout)


def test_freed_memory_is_kept_for_the_next_step():
    assert page_faults("memory.keep_freed()") < page_faults("") / 10


def test_a_kernel_that_states_no_peak_has_one_all_the_same(monkeypatch, tmp_path):
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nVmRSS:\t300 kB\n")  # as in gVisor
    stated = memory.peak()
    monkeypatch.setattr(memory, "STATUS", status)
    assert memory.peak() == pytest.approx(stated, rel=0.1)


def test_a_peak_that_is_forgotten_does_not_count():
    block = mmap(-1, 256 << 20)  # not from the heap, which may have as much that is free but still resident
    block[::4096] = bytes(len(block) // 4096)
    before = memory.peak()
    block.close()
    memory.forget_peak()
    assert memory.peak() < before - (200 << 20)
