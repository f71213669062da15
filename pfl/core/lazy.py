"""torch, imported on first use.

Importing torch takes seconds. Method files use ``from pfl.core.lazy import torch``, so that ``--help``, lists
and error messages, which only read the methods' declarations, respond at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
else:

    class _LazyModule:
        def __getattr__(self, attribute: str) -> Any:
            return getattr(importlib.import_module("torch"), attribute)

    torch = _LazyModule()

__all__ = ["torch"]
