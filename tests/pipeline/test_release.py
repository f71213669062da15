"""The metadata of a release agree with each other."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

from ruamel.yaml import YAML

from pfl import __version__

ROOT = Path(__file__).parents[2]
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
