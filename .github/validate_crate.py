"""Validates a Workflow Run RO-Crate offline, recommendations included: `python validate_crate.py FOLDER`."""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
from importlib.resources import files
from pathlib import Path
from typing import Any

import requests
from requests.adapters import BaseAdapter
from requests_cache import CachedSession
from urllib3 import HTTPResponse

CONTEXT = "https://w3id.org/ro/crate/1.1/context"
"""The only address that the validator reads; the package `rocrate` has a copy of the file."""

NOT_POSSIBLE = (
    "process-run-crate-0.5_3.2",  # an address of the code, and
    "ro-crate-1.1_31.2",  # one of its authors: CITATION.cff states none
    "process-run-crate-0.5_5.1",  # an address as identifier, also of the workflow, a file of the crate
)
"""Recommendations that are not checked."""


class Copy(BaseAdapter):
    """Answers every request with the copy."""

    def send(self, request: requests.PreparedRequest, **_: Any) -> requests.Response:
        response = requests.Response()
        response.status_code, response.url, response.request = 200, CONTEXT, request
        response.headers["Content-Type"] = "application/ld+json"
        content = files("rocrate").joinpath("data/ro-crate.jsonld").read_bytes()
        response.raw = HTTPResponse(io.BytesIO(content), status=200, preload_content=False)
        return response

    def close(self) -> None:
        pass


with tempfile.TemporaryDirectory() as folder:
    cache = str(Path(folder) / "cache")
    with CachedSession(cache, backend="sqlite", expire_after=-1) as session:
        session.mount("https://", Copy())
        session.get(CONTEXT)
    validator = Path(sys.executable).with_name("rocrate-validator")
    options = ["--offline", "--cache-path", cache, "--no-paging", "--verbose"]
    checks = ["--requirement-severity", "recommended", "--skip-checks", ",".join(NOT_POSSIBLE)]
    profile = ["--profile-identifier", "workflow-run-crate"]
    command = [validator, "--no-interactive", "validate", *options, *checks, *profile, sys.argv[1]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
print(done.stdout if done.returncode else f"{sys.argv[1]} is a valid Workflow Run RO-Crate")
sys.exit(done.returncode)
