"""Which code runs: of a checkout, or of an installed package."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pfl.run import sources


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a simulator that was installed as version 1.2.3."""
    recorded = tmp_path / "pfl_repro-1.2.3.dist-info"
    for folder in (recorded, tmp_path / "pfl"):
        folder.mkdir()
    (tmp_path / "pfl/run").mkdir()
    for name in ("run/sources.py", "kernel.cpp"):
        (tmp_path / "pfl" / name).write_text(Path(name).name)
    (recorded / "METADATA").write_text("Metadata-Version: 2.1\nName: pfl-repro\nVersion: 1.2.3\n")
    # The form is that of https://packaging.python.org/en/latest/specifications/binary-distribution-format/
    (recorded / "RECORD").write_text(
        "pfl/run/sources.py,sha256=725N-bcP0toJflUYdEDHmrZ4k_OpIP8lFAKQ-qzrjeg,10\n"
        "pfl/kernel.cpp,sha256=rn9Pdiq20rDipUUj0FpHIXAWhMs0456YvTLinusEVBc,10\n"
        "pfl_repro-1.2.3.dist-info/RECORD,,\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sources, "ROOT", tmp_path / "pfl")
    return tmp_path / "pfl"


@pytest.mark.usefixtures("installed")
def test_an_installed_package_is_a_release():
    assert sources.release() == ("pfl-repro 1.2.3", False)


@pytest.mark.parametrize("name", ["kernel.cpp", "new.py"])
def test_a_release_with_another_file_than_was_installed_is_edited(installed, name):
    (installed / name).write_text("edited")
    assert sources.release() == ("pfl-repro 1.2.3", True)


@pytest.mark.parametrize("name", ["cli/run.py", "core/terminal.py", "testing/cases.py"])
def test_a_release_whose_neutral_files_were_edited_gives_the_same_numbers(installed, name):
    path = installed / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("edited")
    assert sources.release() == ("pfl-repro 1.2.3", False)


def test_a_checkout_is_no_release():
    assert sources.release() is None


def test_a_checkout_that_git_refuses_is_a_warning(tmp_path, monkeypatch, caplog):
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    sources._warn.cache_clear()
    assert [sources.git(tmp_path, "status") for _ in range(2)] == [None, None]
    (record,) = caplog.records
    assert record.message.startswith("git: fatal: detected dubious ownership in repository")
