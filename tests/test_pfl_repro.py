"""The command `pfl` before its modules are imported; another distribution has a package of this name, too."""

from __future__ import annotations

import subprocess
import sys

import pytest

import pfl_repro
from tests.repository import ROOT


@pytest.mark.parametrize("files", [[], ["__init__.py"], ["__init__.py", "core", "cli"]])
def test_a_foreign_pfl_is_one_line(files, tmp_path):
    """Only a folder; another package; another package that was installed over this one."""
    (tmp_path / "pfl").mkdir()
    for name in files:
        place = tmp_path / "pfl" / name
        place.write_text("__version__ = '1'\n") if place.suffix else place.symlink_to(ROOT / "pfl" / name)
    (tmp_path / "pfl_repro.py").symlink_to(ROOT / "pfl_repro.py")
    code = "import sys; sys.path.insert(0, '.'); import pfl_repro; pfl_repro.main()"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=tmp_path, env={}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("pfl: error: pfl: ")
    assert line.endswith("`pip uninstall pfl`, then install pfl-repro again")
    assert not files or "pfl/__init__.py is of another distribution" in line


def test_an_interruption_during_the_imports_is_one_line(monkeypatch, capsys):
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pfl.cli.main", interrupted)
    with pytest.raises(SystemExit) as end:
        pfl_repro.main()
    assert (end.value.code, capsys.readouterr().err) == (130, "pfl: interrupted\n")
