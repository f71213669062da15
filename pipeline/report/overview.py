"""`reports/README.md`: all papers' tables, how much of each is pinned, run and reproduced, and a plot.

It is made only from files in git: the tables' files and their reports. The findings over all papers are
written by hand, in ``tables/overview.md``.
"""

from __future__ import annotations

import csv
import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pfl.text import amount
from pipeline.report.agreement import Tally, firmness, outcomes
from pipeline.report.notices import is_original
from pipeline.report.summary import Summary, blank
from pipeline.report.table_report import environment, findings_of, write_files
from pipeline.report.verdict_plots import Point, scatter
from pipeline.report.verdicts import RULE, Verdict
from pipeline.spec.claims import Answer
from pipeline.spec.files import REPORTS, table_names
from pipeline.spec.published import FOLDER, Published, not_runs, published_cells
from pipeline.spec.table import load_table

OVERVIEW = REPORTS.parent
ENGINEERING = "engineering"
"""The folder, relative to `OVERVIEW`'s, of reports about this software: speed, scale, faults, data."""
PAPERS = {
    "fedsimsup": "FedSimSup",
    "pfedsim": "pFedSim",
    "spfl": "SPFL and PLGA",
    "pfedcs": "PFedCS",
    "fedcac": "FedCAC",
    "plga_released": "PLGA's released runs",
}
"""The core papers and released results by the file of their numbers, in this order; others follow."""


NOT_RUN = Verdict("not run")


@dataclass(frozen=True)
class Cell:
    """The outcome of a printed cell that a table pins.

    Attributes:
        ours: None if it has not run.
        keys: of the ledger rows behind ours.
    """

    published: Published
    verdict: Verdict = NOT_RUN
    ours: float | None = None
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class Standing:
    """How much of one table, or of several together, is run and reproduced.

    Attributes:
        title: its name, or a link where there is a report.
        answers: the number of the paper's claims by their answer on our numbers.
        data: identity of its report's data if these are not the original ones; empty otherwise.
    """

    title: str
    cells: tuple[Cell, ...]
    answers: Counter[Answer]
    data: tuple[str, ...] = ()

    @classmethod
    def together(cls, title: str, parts: Sequence[Standing]) -> Standing:
        """The sum of several."""
        answers = sum((one.answers for one in parts), Counter[Answer]())
        return cls(title, tuple(cell for one in parts for cell in one.cells), answers)

    @property
    def columns(self) -> list[str]:
        """What the overview prints: run of pinned, reproduced, higher, lower, claims."""
        tally = Tally.of(cell.verdict for cell in self.cells)
        notes = [amount(len(self.keys), "simulation")] if tally.run else []
        notes += [f"{tally.count(name)} {word}" for name, word in _OTHERS.items() if tally.count(name)]
        run = f"{tally.run:,} of {tally.total:,}" + (f" ({', '.join(notes)})" if notes else "")
        judged = [str(tally.count(name) or "") for name in ("reproduced", "higher", "lower")]
        return [run, *judged, outcomes(self.answers)]

    @property
    def keys(self) -> set[str]:
        return {key for cell in self.cells for key in cell.keys}

    @property
    def extent(self) -> str:
        """Cells, simulations and provisional verdicts, in a sentence or two; empty where nothing was run."""
        tally = Tally.of(cell.verdict for cell in self.cells)
        if not tally.run:
            return ""
        run = f"{amount(tally.run, 'cell')} from {amount(len(self.keys), 'simulation')}."
        return f"{run} {firmness(tally)}".strip()


_OTHERS: Mapping[Any, str] = {"ratio": "as ratios", "diverged": "diverged", "failed": "failed"}


@dataclass(frozen=True)
class Paper:
    """A paper's tables.

    Attributes:
        tables: each printed cell once.
        studies: tables of ours that only repeat cells of ``tables`` under other choices.
        superseded: tables run on other than the original data; they count in neither.
        printed: how many cells its tables have.
        data_cells: how many of them describe data.
        others: by table, why its cells are not results of runs.
    """

    name: str
    tables: Sequence[Standing]
    studies: Sequence[Standing]
    superseded: Sequence[Standing]
    printed: int
    data_cells: int
    others: Mapping[str, str]

    @property
    def whole(self) -> Standing:
        return Standing.together(self.name, self.tables)


def write_overview(root: Path) -> Path:
    """Write ``reports/README.md`` and its plot, and return the former.

    Args:
        root: the project's root folder, which is also the working directory.
    """
    papers = overview(root)
    points = {
        paper.name: [
            Point(cell.published.mean, cell.ours, cell.verdict)
            for cell in paper.whole.cells
            if cell.ours is not None and cell.published.is_accuracy
        ]
        for paper in papers
    }
    drawn = {name: of_paper for name, of_paper in points.items() if of_paper}
    superseded = [one for paper in papers for one in paper.superseded]
    context = {
        "learnt": findings_of("overview", root),
        "papers": papers,
        "total": Standing.together("All", [paper.whole for paper in papers]),
        "printed": sum(paper.printed for paper in papers),
        "data_cells": sum(paper.data_cells for paper in papers),
        "studies": [one for paper in papers for one in paper.studies],
        "superseded": superseded,
        "superseded_extent": Standing.together("All", superseded).extent,
        "rule": RULE,
        "engineering": sorted(
            page.parent.relative_to(root / OVERVIEW)
            for page in (root / OVERVIEW / ENGINEERING).glob("*/README.md")
        ),
        "plot": bool(drawn),
    }
    files = {"README.md": environment().get_template("overview.md.j2").render(context)}
    (root / OVERVIEW / "overview.svg").unlink(missing_ok=True)
    if drawn:
        files["overview.svg"] = scatter(drawn)
    write_files(root / OVERVIEW, files)
    return root / OVERVIEW / "README.md"


def overview(root: Path) -> list[Paper]:
    """The papers that have tables here."""
    by_paper: dict[str, list[Summary]] = {}
    for name in table_names():
        table = load_table(name)
        if table.published:
            by_paper.setdefault(Path(table.published.file).stem, []).append(blank(name, table, root / FOLDER))
    others = not_runs(root / FOLDER)
    papers = []
    for paper in [*filter(by_paper.get, PAPERS), *(paper for paper in by_paper if paper not in PAPERS)]:
        of_data = others.get(paper, {})
        printed = published_cells(f"{paper}.csv", root / FOLDER)
        data_cells = sum(cell.table in of_data for cell in printed)
        label = PAPERS.get(paper, paper)
        tables, studies, superseded = _standings(by_paper[paper], root)
        papers.append(Paper(label, tables, studies, superseded, len(printed), data_cells, of_data))
    return papers


def _standings(
    summaries: Sequence[Summary], root: Path
) -> tuple[list[Standing], list[Standing], list[Standing]]:
    """A paper's tables in three groups: those that count, studies, and superseded ones."""
    tables, studies, superseded = [], [], []
    pinned: set[Published] = set()
    for summary in summaries:
        standing = _standing(summary, root / REPORTS / summary.id)
        if standing.data:
            superseded.append(standing)
            standing = _standing(summary, None)
        new = tuple(cell for cell in standing.cells if cell.published not in pinned)
        pinned |= {cell.published for cell in new}
        if new:
            tables.append(dataclasses.replace(standing, cells=new))
        else:
            studies.append(standing)
    return tables, studies, superseded


def _standing(summary: Summary, folder: Path | None) -> Standing:
    """How far a table's pinned cells are, by the report in ``folder``; without a report, none was run."""
    lines = _rows(folder / "table.csv") if folder else []
    rows = {(row["setting"], row["row"]): row for row in lines if row["verdict"]}
    cells = []
    for entry in summary.compared:
        assert entry.published is not None
        if row := rows.get((entry.setting, entry.row)):
            verdict = Verdict(row["verdict"], row["provisional"] == "True")
            ours = float(row["mean"]) if row["mean"] else None
            cells.append(Cell(entry.published, verdict, ours, tuple(row["keys"].split())))
        else:
            cells.append(Cell(entry.published))
    answers = Counter[Answer](row["ours"] for row in _rows(folder / "claims.csv")) if folder else Counter()
    title = summary.table.title
    if folder and (folder / "README.md").exists():
        title = f"[{title}]({folder.relative_to(folder.parents[1])}/README.md)"
    return Standing(
        title=title,
        cells=tuple(cells),
        answers=answers or Counter({"open": len(summary.table.claims)}),
        data=tuple(sorted({row["data"] for row in lines if not _is_original(row["data"])})),
    )


def _is_original(data: str) -> bool:
    """Of a table.csv's "cifar10: original pixels"; empty where nothing was run."""
    return not data or is_original(data.partition(": ")[2])


def _rows(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))
