"""`reports/README.md`: all papers' tables, how much of each is pinned, run and reproduced, and a plot.

It is made of the tables' files and of the reports beside it, and of nothing that git does not keep.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.agreement import Tally, claims
from pipeline.config import load_table, table_names
from pipeline.published import FOLDER, Published, not_runs, published_cells
from pipeline.report import environment, write_files
from pipeline.summary import Summary, blank
from pipeline.verdict_plots import Point, scatter
from pipeline.verdicts import RULE, Verdict

REPORTS = Path("reports")
PAPERS = {
    "fedsimsup": "FedSimSup",
    "pfedsim": "pFedSim",
    "spfl": "SPFL and PLGA",
    "pfedcs": "PFedCS",
    "fedcac": "FedCAC",
}
"""Each paper's methods, by the file of its numbers."""


@dataclass(frozen=True)
class Cell:
    """What became of a printed cell that a table pins; ours is None where it was not run."""

    published: Published
    verdict: Verdict
    ours: float | None


@dataclass(frozen=True)
class Standing:
    """How far a table of ours is.

    Attributes:
        claims: how many claims of the paper there are.
        holding_there: how many of them hold on its own numbers.
        here: how many of them get which answer on ours; empty where there is no report.
        report: whether there is one.
    """

    table: str
    title: str
    cells: tuple[Cell, ...]
    claims: int
    holding_there: int
    here: Counter[str]
    report: bool

    @property
    def tally(self) -> Tally:
        return Tally.of(cell.verdict for cell in self.cells)


@dataclass(frozen=True)
class Paper:
    """A paper's tables.

    Attributes:
        printed: how many results of runs it prints.
        others: why the other cells of its tables are none, by table.
    """

    name: str
    printed: int
    others: Mapping[str, str]
    standings: tuple[Standing, ...]

    @property
    def cells(self) -> list[Cell]:
        """Each printed cell once: in the first of the tables that pin it."""
        cells = [cell for standing in reversed(self.standings) for cell in standing.cells]
        return list({cell.published: cell for cell in cells}.values())

    @property
    def tally(self) -> Tally:
        return Tally.of(cell.verdict for cell in self.cells)


def write_overview(root: Path) -> Path:
    """Write ``reports/README.md`` and its plot, and return the former.

    Args:
        root: the project's root folder, which is also the working directory.
    """
    papers = overview(root)
    points = {
        paper.name: [
            Point(cell.published.mean, cell.ours, cell.verdict)
            for cell in paper.cells
            if cell.ours is not None and cell.published.is_accuracy
        ]
        for paper in papers
    }
    drawn = {name: found for name, found in points.items() if found}
    context = {
        "papers": papers,
        "printed": sum(paper.printed for paper in papers),
        "total": Tally.of(cell.verdict for paper in papers for cell in paper.cells),
        "rule": RULE,
        "plot": bool(drawn),
    }
    files = {"README.md": environment().get_template("overview.md.j2").render(context)}
    if drawn:
        files["overview.svg"] = scatter(drawn)
    write_files(root / REPORTS, files)
    return root / REPORTS / "README.md"


def overview(root: Path) -> list[Paper]:
    """The papers that there are tables of."""
    by_paper: dict[str, list[Standing]] = {}
    for name in table_names():
        table = load_table(name)
        if table.published:
            paper = Path(table.published.file).stem
            standing = _standing(blank(name, table, root / FOLDER), root / REPORTS / name)
            by_paper.setdefault(paper, []).append(standing)
    others = not_runs(root / FOLDER)
    papers = []
    for paper, label in PAPERS.items():
        if paper in by_paper:
            of_data = others.get(paper, {})
            cells = published_cells(f"{paper}.csv", root / FOLDER)
            results = sum(cell.table not in of_data for cell in cells)
            papers.append(Paper(label, results, of_data, tuple(by_paper[paper])))
    return papers


def _standing(summary: Summary, folder: Path) -> Standing:
    """What the report in ``folder`` says of the cells that a table pins; without a report, none was run."""
    rows = {(row["setting"], row["row"]): row for row in _rows(folder / "table.csv") if row["verdict"]}
    cells = []
    for entry in summary.compared:
        row = rows.get((entry.setting, entry.row))
        verdict = Verdict(row["verdict"], row["provisional"] == "True") if row else Verdict("not run")
        assert entry.published is not None
        cells.append(Cell(entry.published, verdict, float(row["mean"]) if row and row["mean"] else None))
    return Standing(
        summary.id,
        summary.table.title,
        tuple(cells),
        claims=len(summary.table.claims),
        holding_there=sum(tested.published.answer == "holds" for tested in claims(summary)),
        here=Counter(row["ours"] for row in _rows(folder / "claims.csv")),
        report=(folder / "README.md").exists(),
    )


def _rows(path: Path) -> Iterable[dict[str, Any]]:
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))
