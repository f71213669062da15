"""What a simulation is computed on."""

from __future__ import annotations

import pytest
import torch

from pfl.engine.device import resolve_device
from pfl.errors import InvalidInput


def test_a_gpu_that_is_absent_is_one_clear_line(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(InvalidInput, match="device: cuda is not accepted; expected cpu"):
        resolve_device("cuda")
