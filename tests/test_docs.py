"""What `make docs` makes beside the table of methods."""

from __future__ import annotations

import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "docs/report.sh"


def drawn(folder: Path, *programs: str) -> str:
    """What the script says in ``folder`` where nothing but ``programs``, which do nothing, is installed."""
    (folder / "bin").mkdir()
    for program in programs:
        (folder / "bin" / program).symlink_to("/bin/true")
    done = subprocess.run(
        ["/bin/sh", SCRIPT],
        cwd=folder,
        env={"PATH": str(folder / "bin")},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_without_chromium_the_picture_of_a_report_is_not_drawn_and_a_line_says_so(tmp_path):
    assert drawn(tmp_path) == "docs/report.png is not drawn: it needs chromium\n"


def test_without_a_report_a_line_says_what_makes_it(tmp_path):
    said = "docs/report.png is not drawn: it needs reports/digits/index.html; run 'make repro' first\n"
    assert drawn(tmp_path, "chromium") == said


def test_the_picture_is_of_the_report_that_is_there(tmp_path):
    (tmp_path / "reports/digits").mkdir(parents=True)
    (tmp_path / "reports/digits/index.html").touch()
    assert drawn(tmp_path, "chromium") == "docs/report.png: drawn from reports/digits/index.html\n"
