"""The metadata of a release agree with each other."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib

import pytest
from packaging.requirements import Requirement
from ruamel.yaml import YAML

from pfl import __version__
from tests.repository import ROOT

CITATION = YAML(typ="safe").load(ROOT / "CITATION.cff")


def test_all_metadata_name_the_same_version_and_date():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    codemeta = json.loads((ROOT / "codemeta.json").read_text())
    zenodo = json.loads((ROOT / ".zenodo.json").read_text())
    versions = {project["version"], __version__, CITATION["version"], codemeta["version"], zenodo["version"]}
    assert versions == {__version__}
    dates = {CITATION["date-released"], codemeta["datePublished"], zenodo["publication_date"]}
    assert len(dates) == 1
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(rf"^## \[{re.escape(__version__)}\] - {dates.pop()}$", changelog, re.M)
    assert CITATION["title"] == codemeta["name"] == zenodo["title"]


def test_a_container_installs_what_the_lock_file_pins_and_runs_as_a_user():
    for name in ("Containerfile", "Containerfile.cuda"):
        text = (ROOT / name).read_text()
        assert "RUN make .venv" in text
        assert text.index("USER 1000") < text.index("RUN make .venv")


@pytest.mark.parametrize(
    ("platform", "machine", "gpu"),
    [("linux", "x86_64", True), ("linux", "aarch64", True), ("darwin", "arm64", False)],
)
def test_the_lock_file_has_one_version_of_each_package_for_every_platform(platform, machine, gpu):
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    locked = [Requirement(line) for line in lines if not line.startswith("#")]
    assert len({requirement.name for requirement in locked}) == len(locked)
    here = {"sys_platform": platform, "platform_machine": machine, "python_full_version": "3.11.7"}
    installed = {item.name for item in locked if not item.marker or item.marker.evaluate(here)}
    assert {"torch", "ray", "dvc", "mlflow"} <= installed
    assert ("triton" in installed) == gpu
    assert "pywin32" not in installed


def test_the_files_in_git_take_at_most_10_megabytes_beside_the_ledger():
    command = ["git", "ls-files", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = [ROOT / name for name in listed.split("\0") if name and not name.startswith("results/ledger/")]
    assert sum(file.stat().st_size for file in files if file.exists()) <= 10e6
