"""What a sweep needs besides its tables, tested before any compute."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
from functools import partial
from pathlib import Path

import pytest

from pfl.core.errors import InvalidInput
from pfl.core.files import LOCK
from pfl.run.sources import running_code
from pipeline.sweep import environment
from pipeline.sweep.cluster import scratch_folder
from pipeline.sweep.environment import (
    LONGEST_TEMPORARY,
    SCRATCH_PREFIX,
    check_environment,
    lacking,
    temporary_folder,
)
from pipeline.trackers.mlflow import MLflowTracker
from tests.refusal import refusal

pytestmark = pytest.mark.usefixtures("project")


def test_an_environment_in_order_has_no_warnings(monkeypatch, tmp_path):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert check_environment() == []
    assert not list(tmp_path.glob("[!tp]*"))  # nothing but the table and params.yaml


@pytest.mark.parametrize(
    "address", ["./mlruns", "mlruns", "file:///somewhere", "bogus://me:secret@host/store", "http://"]
)
def test_a_store_that_mlflow_does_not_write_to_is_named_with_one_that_works(address, monkeypatch, tmp_path):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    output = refusal(check_environment)
    assert output.startswith("MLFLOW_TRACKING_URI: ")
    assert f"sqlite:///{tmp_path}/mlflow.db" in output
    assert "secret" not in output


@pytest.mark.parametrize(
    "address", ["sqlite:///other.db", "http://127.0.0.1:5000", "postgresql+psycopg2://me:secret@host/store"]
)
def test_databases_and_servers_are_accepted(address, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    assert check_environment() == []


def test_files_are_a_store_where_mlflow_is_told_to_write_to_them(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "./mlruns")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    assert check_environment() == []


def test_a_cache_that_cannot_be_written_is_named_once_here_and_for_each_node(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("PFL_CACHE", str(tmp_path / "file/cache"))
    refused = f"PFL_CACHE: {tmp_path}/file/cache is not accepted; expected a folder that can be written"
    assert refusal(check_environment) == f"{refused} (Not a directory)"
    assert lacking(tmp_path / "file", running_code().sources) == f"a cache ({refused} (Not a directory))"


def test_a_full_disk_is_noticed(monkeypatch):
    def full(**_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    line = refusal(check_environment)
    assert line.endswith("expected a folder that can be written (No space left on device)")


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch):
    def homeless(_: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("PFL_CACHE", raising=False)
    monkeypatch.setattr(Path, "expanduser", homeless)
    assert "set HOME or PFL_CACHE" in refusal(check_environment)


def test_a_long_temporary_folder_is_replaced_by_a_short_one_where_ray_has_its_sockets(monkeypatch, tmp_path):
    long = tmp_path / ("long" * 20)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with scratch_folder() as folder:
        assert len(os.fsencode(folder / "ray")) + len("/session_2026-01-01_00-00-00_000000_1234567") <= 86
        assert not folder.is_relative_to(long)
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")  # its sockets are elsewhere
    with scratch_folder() as folder:
        assert folder.is_relative_to(long)


def test_no_short_temporary_folder_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("long" * 20)))
    monkeypatch.setattr(environment.os, "access", lambda *_: False)
    with pytest.raises(InvalidInput, match=f"TMPDIR: .* at most {LONGEST_TEMPORARY} bytes"):
        temporary_folder(LONGEST_TEMPORARY)


def test_what_a_killed_sweep_has_left_is_removed_by_the_next(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")  # the path may be long
    left = tmp_path / f"{SCRATCH_PREFIX}left"
    left.mkdir()
    (left / LOCK).touch()
    with scratch_folder() as ours:
        assert [*tmp_path.glob(f"{SCRATCH_PREFIX}*")] == [ours]
    assert not ours.exists()


def test_nobody_else_can_enter_the_folder_of_ray_s_files():
    with scratch_folder() as folder:
        assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(("name", "odd"), [("mühle", "ü"), ("a#b", "#")])
def test_a_folder_below_which_dvc_runs_no_experiment_beside_is_told(name, odd, monkeypatch, tmp_path):
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / name)
    (line,) = check_environment()
    assert line.startswith("`dvc exp run --temp` and `--queue` fail in this folder")
    assert f"its path has {odd};" in line


@pytest.mark.parametrize("name", ["a?b", "a%20b"])
def test_a_folder_whose_name_the_address_of_a_database_changes_is_refused(name, monkeypatch, tmp_path):
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / name)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for opened in (check_environment, partial(MLflowTracker, Path.cwd(), "small")):
        assert "expected a path without question marks and codes such as %20" in refusal(opened)


def test_a_folder_with_a_percent_sign_is_accepted(monkeypatch, tmp_path):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "100%").mkdir()
    monkeypatch.chdir(tmp_path / "100%")
    assert check_environment() == []


def test_a_node_with_other_sources_is_told(tmp_path):
    (tmp_path / "mark").touch()
    assert lacking(tmp_path / "mark", running_code().sources) is None
    assert lacking(tmp_path / "mark", "0" * 64) == "the sources of the sweep"


def test_a_cluster_is_asked_also_where_ray_s_command_is_not_beside_python(monkeypatch, tmp_path):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with environment._ask("no address", "token") as process:
        process.kill()
