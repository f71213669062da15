"""The claims of all papers, each with its source, our answer, and the evidence for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pfl.core.files import write_json
from pipeline.figures.figure import load_figure
from pipeline.figures.make import FOLDER as FIGURES
from pipeline.figures.make import answered
from pipeline.report.agreement import claims
from pipeline.report.overview import answers_of, report_rows
from pipeline.report.summary import blank
from pipeline.spec.claims import Finding
from pipeline.spec.paths import PAPERS, REPORTS, figure_names, table_file, table_names
from pipeline.spec.table import load_table
from pipeline.store.stage_files import stored


@dataclass(frozen=True)
class AnsweredClaim:
    """A claim of a paper, and our answer.

    Attributes:
        paper: a folder of `papers/`.
        name: the table or figure whose file declares the claim.
        claim: the paper's words.
        source: where the paper says so.
        published: the answer by the paper's own numbers; None for a figure, whose numbers are not printed.
        ours: our answer, and the numbers that show it.
        numbers: the file with our numbers; None if there are none.
        keys: keys of the ledger's records behind them; a figure's runs that were measured while they trained
            have none.
    """

    paper: str
    kind: Literal["table", "figure"]
    name: str
    claim: str
    source: str
    published: str | None
    ours: Finding
    numbers: str | None
    keys: tuple[str, ...]

    @property
    def report(self) -> str | None:
        """The page that shows the numbers; None if there are none."""
        return str(Path(self.numbers).parent / "README.md") if self.numbers else None


def write_claims(out: Path) -> int:
    """Write all claims as a JSON file, and return their number.

    Raises:
        InvalidInput: a paper's file is not valid, or the file cannot be written.
    """
    claims = answered_claims()
    write_json(out, {"claims": list(map(_document, claims))})
    return len(claims)


def _document(claim: AnsweredClaim) -> dict[str, Any]:
    values = dataclasses.asdict(claim)
    return {**values.pop("ours"), **values, "report": claim.report}


def answered_claims() -> list[AnsweredClaim]:
    """The claims of all papers about their tables and figures, by paper."""
    claims = [*_about_tables(), *_about_figures()]
    return sorted(claims, key=lambda claim: claim.paper)


def _about_tables() -> Iterator[AnsweredClaim]:
    for name in table_names():
        table = load_table(name)
        if not table.claims or not table.published:
            continue
        folder = REPORTS / name
        answers = answers_of(folder)
        for tested in claims(blank(name, table)):
            claim = tested.claim
            ours = answers.get((claim.says, claim.place), Finding("open", ""))
            places = claim.compared(table.settings, table.row_labels)
            yield AnsweredClaim(
                paper=table.published.paper,
                kind="table",
                name=name,
                claim=claim.says,
                source=claim.place,
                published=tested.published.answer,
                ours=ours,
                numbers=str(folder / "table.csv") if answers else None,
                keys=tuple(_keys(folder / "table.csv", places)) if answers else (),
            )


def _keys(numbers: Path, places: set[tuple[str, str]]) -> Iterator[str]:
    """The keys of the records behind the pinned configurations of some cells."""
    for row in report_rows(numbers):
        if row["configuration"] == "pinned" and (row["setting"], row["row"]) in places:
            yield from row["keys"].split()


def _about_figures() -> Iterator[AnsweredClaim]:
    for name in figure_names():
        figure = load_figure(name)
        content = stored(FIGURES / f"{name}.json")
        answers: list[Any] = answered(content, FIGURES) if content else [{}] * len(figure.claims)
        for claim, answer in zip(figure.claims, answers, strict=True):
            yield AnsweredClaim(
                paper=table_file(name).relative_to(PAPERS).parts[0],
                kind="figure",
                name=name,
                claim=claim.says,
                source=figure.paper or figure.title,
                published=None,
                ours=Finding(answer.get("answer", "open"), answer.get("shown", "")),
                numbers=str(FIGURES / f"{name}.csv") if content else None,
                keys=tuple(content.get("keys", ())) if content else (),
            )
