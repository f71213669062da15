"""Components are found by file, and by entry point of somebody else's package."""

import subprocess
import sys
import textwrap

import pytest

from pfl.errors import InvalidInput
from pfl.methods import METHODS
from pfl.models import MODELS


def test_a_file_is_a_component():
    assert METHODS["fedper"].__name__ == "FedPer"
    assert "_network" not in MODELS


def test_an_unknown_name_is_a_clear_error():
    with pytest.raises(InvalidInput, match="did you mean 'fedper'"):
        METHODS["fedpr"]


def test_a_summary_is_read_without_importing():
    code = (
        "import sys; from pfl.models import MODELS as M; print(M.summary('lenet5'), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("LeNet-5")
    assert done.stdout.rstrip().endswith("False")


def test_a_method_of_another_package_runs(tmp_path):
    package = tmp_path / "site"
    info = package / "mymethods-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mymethods\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[pfl.methods]\nhalfway = mymethods.halfway\n")
    (package / "mymethods").mkdir()
    (package / "mymethods" / "__init__.py").touch()
    (package / "mymethods" / "halfway.py").write_text(
        textwrap.dedent('''
            """Halfway: averages the head only."""

            from dataclasses import dataclass

            from pfl.engine.method import Method


            @dataclass(frozen=True)
            class Halfway(Method):
                paper = "a test"

                def aggregate(self, server):
                    return {"head": server.average()}
        ''')
    )
    arguments = ["run", "--method", "halfway", "--rounds", "2", "--epochs", "1", "--clients", "4"]
    done = subprocess.run(
        [sys.executable, "-m", "pfl", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(package), "PATH": "", "HOME": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    assert "halfway on digits" in done.stdout
