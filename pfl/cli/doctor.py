"""``pfl doctor``: the environment, ready to paste into a bug report."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from pfl.core.text import without_password

PACKAGES = (
    *("torch", "torchvision", "triton", "numpy", "scikit-learn", "pillow"),
    *("ray", "optuna", "mlflow", "dvc", "pydantic", "msgspec"),
)
VARIABLES = (
    *("PFL_CACHE", "DATA_SOURCE", "PFL_TRACKER", "MLFLOW_TRACKING_URI", "RAY_ADDRESS", "TMPDIR", "CXX"),
    *("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"),
)
GIGABYTE = 1e9


def doctor() -> None:
    """Print the environment, for a bug report."""
    for name, value in _facts():
        print(f"{name:<22}{value}")


def _facts() -> Iterator[tuple[str, str]]:
    import torch

    from pfl.core.config import Execution
    from pfl.core.files import cache_root
    from pfl.engine.result import hardware, versions
    from pfl.kernels import compiler_version
    from pfl.run.sources import running_code

    here = hardware(Execution(), torch.device("cpu"))
    yield "pfl-repro", f"{versions().pfl} ({running_code().name})"
    yield "Python", f"{platform.python_version()} on {platform.platform()}"
    yield "processor", f"{here.cpu}, {here.cores} cores"
    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    yield "GPUs", ", ".join(gpus) or f"none (CUDA of torch: {torch.version.cuda})"
    yield "compiler", compiler_version() or "none; training uses torch's slower operations"
    yield "fused kernels", _kernels()
    folder = cache_root()
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free / GIGABYTE
    writable = "writable" if os.access(there, os.W_OK) else "not writable"
    yield "cache", f"{folder} ({writable}, {free:.0f} GB free)"
    for name in PACKAGES:
        yield name, _version(name)
    for name in VARIABLES:
        if name in os.environ:
            yield name, without_password(os.environ[name])


def _kernels() -> str:
    """The kernels that a single-threaded run uses here, and those that it does not."""
    from pfl.kernels import compiled
    from pfl.testing.battery import kernels_are_usable

    usable = {"conv_block": kernels_are_usable()}
    usable |= {name: compiled(name) is not None for name in ("im2col", "read_rows")}
    used = ", ".join(name for name in usable if usable[name])
    others = ", ".join(name for name in usable if not usable[name])
    return "; ".join(filter(None, (used, others and f"not used: {others}")))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
