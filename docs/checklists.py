"""The NeurIPS reproducibility checklist and REFORMS, filled in from the published results."""

from __future__ import annotations

from collections import Counter
from statistics import fmean
from typing import Any

from docs.published_runs import cost, published_runs
from pipeline.evidence.answered_claims import answered_claims
from pipeline.report.overview import ENGINEERING, OVERVIEW, TableProgress, overview, report_rows
from pipeline.report.table_report import environment
from pipeline.report.verdicts import SEEDS
from pipeline.spec.paths import REPORTS, published_tables

VERIFICATION = OVERVIEW / ENGINEERING / "verification"


def checklists() -> str:
    """The page in Markdown; links are relative to the project's root."""
    return str(environment("docs").get_template("checklists.md.j2").render(_facts()))


def _facts() -> dict[str, Any]:
    """The facts behind the answers, by name in the template."""
    groups, runs = overview(), published_runs()
    whole = TableProgress.together("All", [group.whole for group in groups])
    rows = [row for table in published_tables() for row in report_rows(REPORTS / table / "table.csv")]
    phases = Counter(run.phase for run in runs.values())
    verified = Counter(row["verdict"] for row in report_rows(VERIFICATION / "rows.csv"))
    done = [row for row in rows if row["status"] == "done"]
    return {
        "papers": len({group.paper for group in groups}),
        "printed": sum(group.printed for group in groups),
        "data_cells": sum(group.data_cells for group in groups),
        "tally": whole.tally,
        "answers": Counter(claim.ours.answer for claim in answered_claims()),
        "records": {
            table: len({key for row in rows if row["table"] == table for key in row["keys"].split()})
            for table in published_tables()
        },
        "runs": len(runs),
        "final_runs": phases["final"],
        "search_runs": phases["search"],
        "cost": cost(runs.values()),
        "mean_seconds": fmean(run.measured.wall_seconds for run in runs.values()) if runs else 0.0,
        "machines": sorted({run.hardware.gpu or run.hardware.cpu for run in runs.values()}),
        "torch": sorted({run.versions.torch for run in runs.values()}),
        "commits": len({run.commit for run in runs.values()}),
        "methods": len({run.method for run in runs.values()}),
        "data": sorted({row["data"] for row in rows if row["data"]}),
        "cells": len(done),
        "firm": sum(int(row["seeds"]) >= SEEDS for row in done),
        "seeds": SEEDS,
        "verified": verified,
    }
