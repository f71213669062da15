"""The folders that sweeps make for Ray in the system's temporary folder."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pipeline.sweep.cluster import scratch_folder

SWEEP = """
from pipeline.sweep.cluster import scratch_folder
with scratch_folder() as folder:
    (folder / "session").mkdir()
    print(folder, flush=True)
    input()
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def begin(temporary: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process that is at its sweep, and its folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", SWEEP],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    return process, Path(process.stdout.readline().strip())


def test_what_a_killed_sweep_has_left_is_removed_by_the_next_and_what_a_live_one_needs_is_not(temporary):
    killed, left = begin(temporary)
    killed.kill()
    killed.wait()
    assert left.exists()
    live, needed = begin(temporary)
    with scratch_folder() as ours:
        assert not left.exists()
        assert (needed / "session").exists()
    assert not ours.exists()
    live.communicate("\n")
    assert not list(temporary.iterdir())
