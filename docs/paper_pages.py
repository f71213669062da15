"""A page per paper: what holds, what does not, and what it costs to check."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from docs.published_runs import PublishedRun, cost, published_runs
from pipeline.evidence.answered_claims import AnsweredClaim, answered_claims
from pipeline.formatting import duration
from pipeline.report.overview import Group, TableProgress, overview
from pipeline.report.table_report import environment
from pipeline.report.verdicts import JUDGED

SAMPLE = 10
"""Number of runs in a sample that checks a table."""


def paper_pages() -> dict[str, str]:
    """A page in Markdown for each paper, by its folder; links are relative to the project's root."""
    claims, runs = answered_claims(), published_runs()
    template = environment("docs").get_template("paper.md.j2")
    groups: dict[str, list[Group]] = {}
    for group in overview():
        groups.setdefault(group.paper, []).append(group)
    return {
        paper: template.render(_content(of_paper, [claim for claim in claims if claim.paper == paper], runs))
        for paper, of_paper in groups.items()
    }


def _content(
    groups: list[Group], claims: list[AnsweredClaim], runs: Mapping[str, PublishedRun]
) -> dict[str, Any]:
    standings = [standing for group in groups for standing in group.tables]
    studies = [standing for group in groups for standing in group.studies]
    return {
        "name": groups[0].name,
        "citation": groups[0].citation,
        "whole": TableProgress.together(groups[0].name, standings),
        "printed": sum(group.printed for group in groups),
        "holds": [claim for claim in claims if _holds(claim)],
        "fails": [claim for claim in claims if _fails(claim)],
        "open": [claim for claim in claims if not _holds(claim) and not _fails(claim)],
        "cells": [
            (standing, cell)
            for standing in standings
            for cell in standing.cells
            if cell.verdict.name in JUDGED and cell.verdict.name != "reproduced"
        ],
        "costs": [
            _cost(standing, runs) for standing in (*standings, *studies) if standing.keys & runs.keys()
        ],
        "unrun": [standing for standing in standings if not standing.keys],
        "sample": SAMPLE,
    }


def _holds(claim: AnsweredClaim) -> bool:
    """Whether a claim holds wherever it was tested."""
    held = claim.ours.held
    return claim.ours.answer == "confirmed" or (held is not None and held[0] == held[1])


def _fails(claim: AnsweredClaim) -> bool:
    """Whether a claim is refuted somewhere."""
    held, run = claim.ours.held or (0, 0)
    return claim.ours.answer == "refuted" or held + claim.ours.undecided < run


def _cost(standing: TableProgress, runs: Mapping[str, PublishedRun]) -> dict[str, Any]:
    """The cost of the runs behind a table: of all of them, and of a sample."""
    behind = [runs[key] for key in standing.keys & runs.keys()]
    seconds = sum(run.measured.wall_seconds for run in behind) / len(behind)
    return {
        "title": standing.title,
        "table": standing.table,
        "runs": len(behind),
        "cost": cost(behind),
        "sample": duration(min(SAMPLE, len(behind)) * seconds),
    }
