"""The content of `papers/*/paper.yaml`: a paper, and the stated settings of its results."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from pfl.core.errors import check_names
from pipeline.spec.paths import PAPERS
from pipeline.spec.yaml import Strict, load

FILE = "paper.yaml"
NUMBERS = "published.csv"
"""The file of a paper's printed cells, in its folder."""


class Paper(Strict):
    """A paper, its seeds and settings, and which of its printed cells are not results of runs."""

    name: str
    """Short name, the heading in the overview."""
    title: str
    """Title of the paper."""
    authors: list[str] = []
    """Last names; empty if the paper is anonymous."""
    venue: str
    """Where it was published or submitted."""
    year: int
    """Year of publication."""
    link: str | None = None
    """Address of the paper."""
    note: str | None = None
    """A remark for readers of the printed numbers."""
    seeds: int | dict[str, int] = {}
    """Number of repetitions behind each printed number, for all tables or by table; omitted if not stated."""
    not_runs: dict[str, str] = {}
    """By table: why its cells are not results of runs."""
    released_results: dict[str, str] = {}
    """By CSV file in the folder: the heading of results that the authors released but did not print."""
    silent: list[str] = []
    """Choices that the paper leaves open: each of its tables states the choice under this key of its
    `sources`.
    """
    facts: list[dict[str, Any]] = Field(min_length=1)
    """The settings that the paper states, by printed cell; see `papers/README.md`."""
    released: list[dict[str, Any]] = []
    """Facts about released code, which take precedence over those of the paper."""

    @property
    def citation(self) -> str:
        """Authors, title, venue and year in Markdown, with a link if there is one."""
        title = f"[{self.title}]({self.link})" if self.link else self.title
        by = f"{', '.join(self.authors)}: " if self.authors else ""
        return f"{by}{title}. {self.venue}, {self.year}."

    def heading(self, file: str) -> str:
        """The heading of the results in a CSV file of the paper's folder.

        Raises:
            InvalidInput: the paper lists no such file.
        """
        if file == NUMBERS:
            return self.name
        check_names(f"released_results of {self.name}", [file], self.released_results)
        return self.released_results[file]


def paper_names() -> list[str]:
    """The folders of all papers."""
    return sorted(path.parent.name for path in PAPERS.glob(f"*/{FILE}"))


def load_paper(name: str) -> Paper:
    """The paper of `papers/<name>/paper.yaml`.

    Raises:
        InvalidInput: there is no such paper, or its file is not valid; the message is one line.
    """
    check_names("paper", [name], paper_names())
    return load(PAPERS / name / FILE, Paper)
