"""Fused CPU kernels in C++, compiled when they are first used.

They are single-threaded, like the trials of a sweep. Without a compiler that supports GCC's vector extensions
(the command ``CXX``, by default c++ or g++), torch's own operations are used; results agree up to rounding.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from pfl.core.files import cache_root

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)

FLAGS = ("-O2", "-march=native", "-std=c++20", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math")


@cache
def compiler() -> list[str] | None:
    """The C++ compiler as a command, such as ["ccache", "g++"]; None if there is none."""
    given = os.environ.get("CXX")
    try:
        commands = [["c++"], ["g++"]] if given is None else [shlex.split(given)]
    except ValueError:  # a quotation mark that is not closed
        commands = []
    found = next((command for command in commands if command and shutil.which(command[0])), None)
    if found is None and given and not given.isspace():
        log.warning("falling back to slower torch kernels: there is no compiler CXX=%s", given)
    return found


@cache
def compiler_version() -> str | None:
    """The first line of the compiler's version text; None without a compiler."""
    command = compiler()
    if command is None:
        return None
    said = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False).stdout
    return said.partition("\n")[0]


@cache
def compiled(name: str, **constants: str | int) -> ctypes.CDLL | None:
    """The library of ``<name>.cpp``, with ``constants`` defined as macros, from the cache if it is there.

    Returns None if there is no compiler, if it fails, or if the cache folder cannot be written.
    """
    command = compiler()
    if command is None:
        return None
    source = Path(__file__).with_name(f"{name}.cpp")
    texts = [path.read_text() for path in (source, *sorted(source.parent.glob("*.h")))]
    defined = [f"-D{key}={value}" for key, value in constants.items()]
    content = (*texts, *FLAGS, *command[1:], *defined, str(compiler_version()), _processor())
    key = hashlib.sha256("\0".join(content).encode()).hexdigest()[:20]
    library = cache_root() / "kernels" / f"{name}-{key}.so"
    try:
        if not library.exists():
            library.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=library.parent) as folder:
                target = Path(folder) / library.name
                options = [*FLAGS, *defined, str(source), "-o", str(target)]
                subprocess.run([*command, *options], check=True, capture_output=True)
                target.replace(library)  # atomic: another process may be building the same file
        return ctypes.CDLL(str(library))
    except (OSError, subprocess.CalledProcessError) as error:
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
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags"))})) or lines[0]
