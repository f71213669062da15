"""`reports/README.md`: all papers' tables, how much of each is pinned, run and reproduced, and a plot.

It is generated only from files in git: the tables' files and their reports. The findings over all papers are
written by hand in ``tables/overview.md``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pfl.core.text import amount
from pipeline.formatting import signed
from pipeline.report.agreement import CellOutcome, Tally, firmness, outcomes
from pipeline.report.formats import literal
from pipeline.report.moments import MOMENTS
from pipeline.report.notices import ORIGINALS
from pipeline.report.pairs import sign_of
from pipeline.report.summary import UNTRIED, Summary, blank
from pipeline.report.table_report import environment, findings_of, write_files
from pipeline.report.verdict_plots import scatter
from pipeline.report.verdicts import JUDGED, RULE, Verdict
from pipeline.spec.claims import Answer, Finding
from pipeline.spec.csv_file import read_csv
from pipeline.spec.papers import NUMBERS, load_paper
from pipeline.spec.paths import REPORTS, table_names
from pipeline.spec.published import Published, published_cells
from pipeline.spec.table import load_table

OVERVIEW = REPORTS.parent
ENGINEERING = "engineering"
"""The folder, relative to `OVERVIEW`'s, of reports about this software: speed, scale, faults, data."""


@dataclass(frozen=True)
class TableProgress:
    """Progress of one table, or of several together: how much has run and is reproduced.

    Attributes:
        title: its name, or a link if there is a report.
        answers: the outcomes of the paper's claims on our numbers.
        data: identity of its report's data if these are not the original ones; empty otherwise.
        moments: see `at_one_moment`.
        table: name of its file; empty for several together.
    """

    title: str
    cells: tuple[CellOutcome, ...]
    answers: tuple[Finding, ...]
    data: tuple[str, ...] = ()
    moments: tuple[dict[str, Any], ...] = ()
    table: str = ""

    @classmethod
    def together(cls, title: str, parts: Sequence[TableProgress]) -> TableProgress:
        """The progress of several together."""
        answers = tuple(finding for part in parts for finding in part.answers)
        return cls(title, tuple(cell for part in parts for cell in part.cells), answers)

    @property
    def tally(self) -> Tally:
        return Tally.of(self.cells)

    @property
    def columns(self) -> list[str]:
        """The overview's columns: run of pinned, reproduced, higher, lower, claims."""
        tally = self.tally
        notes = [amount(len(self.keys), "simulation")] if tally.run else []
        others = {name: number for name, number in tally.counts.items() if name not in (*JUDGED, *UNTRIED)}
        notes += [f"{number} {'as ratios' if name == 'ratio' else name}" for name, number in others.items()]
        notes += [f"{tally.shared} shared"] if tally.shared else []
        run = f"{tally.run:,} of {tally.total:,}" + (f" ({', '.join(notes)})" if notes else "")
        judged = [str(tally.count(name) or "") for name in JUDGED]
        return [run, *judged, outcomes(self.answers)]

    @property
    def keys(self) -> set[str]:
        return {key for cell in self.cells for key in cell.keys}

    @property
    def extent(self) -> str:
        """Cells, simulations and provisional verdicts, in a sentence or two; empty if nothing was run."""
        tally = self.tally
        if not tally.run:
            return ""
        run = f"{amount(tally.run, 'cell')} from {amount(len(self.keys), 'simulation')}"
        uncounted = f", of which {tally.uncounted}" if tally.uncounted else ""
        return f"{run}{uncounted}. {firmness(tally)}".strip()


@dataclass(frozen=True)
class Group:
    """The tables that are compared with one file of numbers: a paper's, or results released with its code.

    Attributes:
        citation: the paper's citation; empty for released results.
        paper: the paper's folder.
        tables: each printed cell once.
        studies: our tables that only repeat cells of ``tables`` with different choices.
        superseded: tables run on data other than the original; they are not counted.
        printed: number of printed cells.
        data_cells: number of them that describe data.
        others: why a table's cells are not results of runs, by table.
    """

    name: str
    citation: str
    paper: str
    tables: Sequence[TableProgress]
    studies: Sequence[TableProgress]
    superseded: Sequence[TableProgress]
    printed: int
    data_cells: int
    others: Mapping[str, str]

    @property
    def whole(self) -> TableProgress:
        return TableProgress.together(self.name, self.tables)


def write_overview() -> Path:
    """Write ``reports/README.md`` and its plot, and return the path of the page."""
    papers = overview()
    points = {
        paper.name: [
            (cell.published.mean, cell.ours, cell.verdict)
            for cell in paper.whole.cells
            if cell.ours is not None and cell.verdict.name in JUDGED
        ]
        for paper in papers
    }
    drawn = {name: of_paper for name, of_paper in points.items() if of_paper}
    superseded = [table for paper in papers for table in paper.superseded]
    context = {
        "learnt": findings_of("overview"),
        "papers": papers,
        "total": TableProgress.together("All", [paper.whole for paper in papers]),
        "printed": sum(paper.printed for paper in papers),
        "released": sum(paper.printed for paper in papers if not paper.citation),
        "data_cells": sum(paper.data_cells for paper in papers),
        "studies": [table for paper in papers for table in paper.studies],
        "moments": [comparison for paper in papers for table in paper.tables for comparison in table.moments],
        "superseded": superseded,
        "superseded_extent": TableProgress.together("All", superseded).extent,
        "rule": RULE,
        "engineering": sorted(
            page.parent.relative_to(OVERVIEW) for page in (OVERVIEW / ENGINEERING).glob("*/README.md")
        ),
        "plot": bool(drawn),
    }
    files = {"README.md": environment().get_template("overview.md.j2").render(context)}
    if drawn:
        files["overview.svg"] = scatter(drawn)
    write_files(OVERVIEW, files)
    if not drawn:
        (OVERVIEW / "overview.svg").unlink(missing_ok=True)
    return OVERVIEW / "README.md"


def overview() -> list[Group]:
    """The papers with tables in this project, sorted by folder, followed by released results."""
    by_file: dict[tuple[str, str], list[Summary]] = {}
    for name in table_names():
        table = load_table(name)
        if source := table.published:
            by_file.setdefault((source.paper, source.file), []).append(blank(name, table))
    groups = []
    for paper, file in sorted(by_file, key=lambda source: (source[1] != NUMBERS, source)):
        facts, printed = load_paper(paper), published_cells(paper, file)
        of_data = facts.not_runs if file == NUMBERS else {}
        groups.append(
            Group(
                facts.heading(file),
                facts.citation if file == NUMBERS else "",
                paper,
                *_grouped(by_file[paper, file]),
                printed=len(printed),
                data_cells=sum(cell.table in of_data for cell in printed),
                others=of_data,
            )
        )
    return groups


def at_one_moment(summary: Summary, folder: Path) -> list[dict[str, Any]]:
    """The paper's own method against the others, by column and moment, from a report's moments.csv; empty if
    the table names no method of the paper.

    The others are ``above``, ``level`` or ``below`` by the sign of their difference's 95 % interval, or
    ``unknown`` without one, each with the difference in points.
    """
    if not (own := summary.table.reference):
        return []
    lines = [row for row in report_rows(folder / "moments.csv") if row["configuration"] == "pinned"]
    compared = []
    for moment, title in MOMENTS.items():
        for setting, column in summary.columns.items():
            there = [row for row in lines if (row["setting"], row["moment"]) == (setting, moment)]
            mine = next((row for row in there if row["row"] == own), None)
            if mine is None or not (others := [row for row in there if row["difference"]]):
                continue
            by_sign: dict[int | None, list[str]] = {1: [], 0: [], -1: [], None: []}
            for row in sorted(others, key=lambda row: -float(row["difference"])):
                low, high = (float(row[end]) if row[end] else None for end in ("low", "high"))
                by_sign[sign_of(low, high)].append(f"{row['label']} {signed(float(row['difference']))}")
            compared.append(
                {
                    "table": _link(summary, folder),
                    "column": column,
                    "moment": title,
                    "own": mine["label"],
                    "mean": float(mine["mean"]),
                    "above": by_sign[1],
                    "level": by_sign[0],
                    "below": by_sign[-1],
                    "unknown": by_sign[None],
                }
            )
    return compared


def _grouped(
    summaries: Sequence[Summary],
) -> tuple[list[TableProgress], list[TableProgress], list[TableProgress]]:
    """A paper's tables in three groups: those that count, studies, and superseded ones."""
    tables, studies, superseded = [], [], []
    pinned: set[Published] = set()
    for summary in summaries:
        table = _progress(summary, REPORTS / summary.id)
        if table.data:
            superseded.append(table)
            table = _progress(summary, None)
        new = tuple(cell for cell in table.cells if cell.published not in pinned)
        pinned |= {cell.published for cell in new}
        if new:
            tables.append(dataclasses.replace(table, cells=new))
        else:
            studies.append(table)
    return tables, studies, superseded


def _progress(summary: Summary, folder: Path | None) -> TableProgress:
    """Progress of a table's pinned cells according to the report in ``folder``; without a report, none has
    run.
    """
    lines = report_rows(folder / "table.csv") if folder else []
    rows = {(row["setting"], row["row"]): row for row in lines if row["verdict"]}
    # An entry is, for example, "cifar10: original pixels"; it is empty for a cell that has not run.
    copied = {data for row in lines if (data := row["data"]) and data.partition(": ")[2] not in ORIGINALS}
    cells = []
    for entry in summary.compared:
        assert entry.published is not None
        if row := rows.get((entry.setting, entry.row)):
            verdict = Verdict(row["verdict"], row["provisional"] == "True")
            whole = entry.evaluation.clients is None
            ours = float(row["mean"]) if row["mean"] else None
            keys = frozenset(row["keys"].split())
            cells.append(CellOutcome(entry.published, verdict, ours, keys, whole))
        else:
            cells.append(CellOutcome(entry.published, Verdict("not run")))
    answers = tuple(answers_of(folder).values()) if folder else ()
    reported = folder and (folder / "README.md").exists()
    return TableProgress(
        title=_link(summary, folder) if folder and reported else literal(summary.table.title),
        cells=tuple(cells),
        answers=answers or (Finding("open", ""),) * len(summary.table.claims),
        data=tuple(sorted(copied)),
        moments=tuple(at_one_moment(summary, folder)) if folder else (),
        table=summary.id,
    )


def _link(summary: Summary, folder: Path) -> str:
    """The title of a table, with a link to its report."""
    return f"[{literal(summary.table.title)}]({folder.relative_to(folder.parents[1])}/README.md)"


def answers_of(folder: Path) -> dict[tuple[str, str], Finding]:
    """The outcomes of the claims in a table's report, by quotation and its place."""
    return {(row["claim"], row["place"]): _finding(row) for row in report_rows(folder / "claims.csv")}


def _finding(row: Mapping[str, str]) -> Finding:
    """The outcome of a claim, from a line of a claims.csv."""
    held = (int(row["held"]), int(row["run"])) if row.get("run") else None
    seeds = int(row["few_seeds"]) if row.get("few_seeds") else None
    undecided = int(row.get("undecided") or 0)
    return Finding(cast(Answer, row["ours"]), row["ours_shown"], held, seeds, undecided)


def report_rows(path: Path) -> list[dict[str, Any]]:
    """The lines of a report's CSV file, by column; empty if there is no such file."""
    return read_csv(path, dict)
