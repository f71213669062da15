"""The report of recomputed records: README.md and rows.csv."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pfl.core.text import csv_text, points
from pipeline.report.table_report import environment, write_files
from pipeline.store.refusals import Refusal
from pipeline.store.verification import EARLY, RULE, Verification

HEADER = (
    "table",
    "cell",
    "seed",
    "until",
    "verdict",
    "difference in the last evaluation",
    f"largest difference in the first {EARLY} rounds",
    f"what another rounding changes in the first {EARLY} rounds",
    "largest difference of any accuracy",
    "same kind of machine",
    "made on",
    "computed on",
    "made by",
    "computed by",
    "seconds",
    "key",
)


def write_page(
    folder: Path, verified: Sequence[Verification], facts: Mapping[str, Any], refused: Sequence[Refusal]
) -> None:
    """Write README.md and rows.csv.

    Args:
        facts: ``drawn``, ``candidates``, ``tables`` and ``stale``, the numbers of a sample; its ``seed``; and
            the ``command`` that draws it.

    Raises:
        InvalidInput: a file cannot be written.
    """
    by_table: dict[str, list[Verification]] = {}
    for verification in sorted(verified, key=lambda one: one.name):
        by_table.setdefault(verification.row.table, []).append(verification)
    machines = sorted({verification.computed_on for verification in verified})
    context = {
        "verdicts": Counter(verification.verdict for verification in verified),
        "tables": [_of_table(table, rows) for table, rows in by_table.items()],
        "kinds": [
            _of_kind(same, [one for one in verified if one.same_kind is same]) for same in (True, False)
        ],
        "early": EARLY,
        "rule": RULE,
        "machines": machines,
        "verified": verified,
        "facts": facts,
        "refused": refused,
        "others": [one for one in verified if one.verdict != "agrees"],
    }
    page = environment().get_template("verification.md.j2").render(context)
    write_files(folder, {"README.md": page, "rows.csv": _csv(verified)})


def _of_table(table: str, rows: Sequence[Verification]) -> dict[str, Any]:
    verdicts = Counter(row.verdict for row in rows)
    early = [row.early for row in rows if row.early is not None]
    return {
        "table": table,
        "rows": len(rows),
        **{verdict: verdicts[verdict] or "" for verdict in ("agrees", "undecided", "fails")},
        "early": points(max(early)) if early else "",
        "last": points(max(abs(row.last) for row in rows)),
        "made_on": "; ".join(sorted({row.made_on for row in rows})),
    }


def _of_kind(same: bool, rows: Sequence[Verification]) -> dict[str, Any]:
    return {
        "name": "the same kind" if same else "another kind",
        "rows": len(rows),
        "identical": sum(row.largest == 0 for row in rows),
        "last": points(max((abs(row.last) for row in rows), default=0.0)),
    }


def _csv(verified: Sequence[Verification]) -> str:
    rows = [
        (
            one.row.table,
            one.row.cell,
            one.row.seed,
            one.row.until,
            one.verdict,
            one.last,
            one.early,
            one.of_rounding,
            one.largest,
            "yes" if one.same_kind else "no",
            one.made_on,
            one.computed_on,
            one.row.sources.name,
            one.again.sources.name,
            round(one.again.measured.wall_seconds, 1),
            one.row.key,
        )
        for one in sorted(verified, key=lambda one: one.name)
    ]
    return csv_text(HEADER, rows)
