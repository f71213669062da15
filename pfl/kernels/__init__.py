"""Fused CPU kernels in C++, compiled when they are first used.

They are single-threaded, like the trials of a sweep. Without a compiler that supports GCC's vector extensions
(the command ``CXX``, by default c++ or g++), torch's own operations are used; results agree up to rounding.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import mmap
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from pfl.core.files import cache_root, replacing

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)

FLAGS = ("-O2", "-march=native", "-std=c++20", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math")

PROCESSOR = ("model name", "flags", "CPU implementer", "CPU part", "Features")
"""Lines of /proc/cpuinfo that tell processors apart, on x86 and on ARM."""

_failed = mmap.mmap(-1, 1)
"""One byte, 1 once a kernel that rounds could not be compiled or loaded; shared with forked workers."""


@cache
def compiler() -> list[str] | None:
    """The C++ compiler as a command, such as ["ccache", "g++"]; None if there is none."""
    given = os.environ.get("CXX")
    try:
        commands = [["c++"], ["g++"]] if given is None else [shlex.split(given)]
    except ValueError:  # a quotation mark that is not closed
        commands = []
    command = next((words for words in commands if words and shutil.which(words[0])), None)
    if command is None and given and not given.isspace():
        log.warning("falling back to slower torch kernels: there is no compiler CXX=%s", given)
    return command


@cache
def compiler_version() -> str | None:
    """The first line of the compiler's version text; None without a compiler that can be run."""
    command = compiler()
    if command is None:
        return None
    try:
        said = subprocess.run([*command, "--version"], capture_output=True, check=False).stdout
    except OSError as error:  # a script without an interpreter, or a program of another processor
        log.warning("falling back to slower torch kernels: CXX=%s cannot be run (%s)", command[0], error)
        return None
    return said.partition(b"\n")[0].decode(errors="replace")


def compiler_used() -> str | None:
    """`compiler_version`, for a record: marked once a kernel has failed in this process or in its forked
    workers, because torch's operations give other rounding."""
    version = compiler_version()
    return f"{version}, without some kernels" if version and _failed[0] else version


@cache
def compiled(name: str, **constants: str | int) -> ctypes.CDLL | None:
    """The library of ``<name>.cpp``, with ``constants`` defined as macros, from the cache if it is there.

    Returns None if there is no compiler, if it fails, or if the cache folder cannot be written.
    """
    command = compiler()
    if command is None or compiler_version() is None:
        return None
    source = Path(__file__).with_name(f"{name}.cpp")
    texts = [path.read_text() for path in (source, *sorted(source.parent.glob("*.h")))]
    defined = [f"-D{key}={value}" for key, value in constants.items()]
    content = (*texts, *FLAGS, *command[1:], *defined, str(compiler_version()), _processor())
    key = hashlib.sha256("\0".join(content).encode()).hexdigest()[:20]
    library = cache_root() / "kernels" / f"{name}-{key}.so"
    try:
        with suppress(OSError):  # it is not there, or a power failure has cut it off
            return ctypes.CDLL(str(library))
        with tempfile.TemporaryDirectory() as folder, replacing(library) as file:
            target = Path(folder) / library.name
            options = [*FLAGS, *defined, str(source), "-o", str(target)]
            subprocess.run([*command, *options], check=True, capture_output=True)
            file.write(target.read_bytes())
        return ctypes.CDLL(str(library))
    except (OSError, subprocess.CalledProcessError) as error:
        if name != "read_rows":  # without it, the bytes are the same
            _failed[0] = 1
        log.warning("falling back to slower torch kernels: %s.cpp cannot be compiled: %s", name, error)
        return None


def pointer(tensor: Tensor | None) -> ctypes.c_void_p | None:
    """Pointer to the data of a contiguous tensor, for a kernel; null for None.

    It does not keep the tensor alive: the caller must hold a reference until the kernel has returned.
    """
    return None if tensor is None else ctypes.c_void_p(tensor.data_ptr())


def sides_after(sides: Iterable[int], window: int, stride: int, padding: int) -> tuple[int, int]:
    """Output height and width of a convolution or pooling of images with these ``sides``."""
    height, width = ((side + 2 * padding - window) // stride + 1 for side in sides)
    return height, width


@cache
def _processor() -> str:
    """The processor that -march=native targets; different machines may share a cache folder."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else [platform.processor()]
    return "\n".join(sorted({line for line in lines if line.startswith(PROCESSOR)})) or lines[0]
