"""The report of recomputed records: README.md and rows.csv."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.formatting import points
from pipeline.report.amounts import csv_of
from pipeline.report.table_report import environment, write_files
from pipeline.store.refusals import Refusal
from pipeline.store.verification import EARLY, RULE, Verification, machine


def write_page(
    folder: Path, verified: Sequence[Verification], facts: Mapping[str, Any], refused: Sequence[Refusal]
) -> None:
    """Write README.md and rows.csv.

    Args:
        facts: the counts of the sample (``drawn``, ``candidates``, ``tables``, ``stale``), its ``seed``, and
            the ``command`` that draws it.

    Raises:
        InvalidInput: a file cannot be written.
    """
    by_table: dict[str, list[Verification]] = {}
    in_order = sorted(verified, key=lambda verification: verification.name)
    for verification in in_order:
        by_table.setdefault(verification.record.table, []).append(verification)
    context = {
        "verdicts": Counter(verification.verdict for verification in verified),
        "tables": [_of_table(table, own) for table, own in by_table.items()],
        "kinds": [
            _of_kind(same, [verification for verification in verified if verification.same_kind is same])
            for same in (True, False)
        ],
        "early": EARLY,
        "rule": RULE,
        "machines": sorted({machine(verification.again) for verification in verified}),
        "verified": verified,
        "facts": facts,
        "refused": refused,
        "others": [verification for verification in verified if verification.verdict != "agrees"],
    }
    page = environment().get_template("verification.md.j2").render(context)
    write_files(folder, {"README.md": page, "rows.csv": csv_of(map(_csv_row, in_order))})


def _of_table(table: str, verified: Sequence[Verification]) -> dict[str, Any]:
    verdicts = Counter(verification.verdict for verification in verified)
    early = [verification.early for verification in verified if verification.early is not None]
    return {
        "table": table,
        "records": len(verified),
        **{verdict: verdicts[verdict] or "" for verdict in ("agrees", "undecided", "fails")},
        "early": points(max(early)) if early else "",
        "last": points(max(abs(verification.last) for verification in verified)),
        "made_on": "; ".join(sorted({machine(verification.record) for verification in verified})),
    }


def _of_kind(same: bool, verified: Sequence[Verification]) -> dict[str, Any]:
    return {
        "name": "the same kind" if same else "another kind",
        "records": len(verified),
        "identical": sum(verification.largest == 0 for verification in verified),
        "last": points(max((abs(verification.last) for verification in verified), default=0.0)),
    }


def _csv_row(verification: Verification) -> dict[str, Any]:
    record, again = verification.record, verification.again
    return {
        "table": record.table,
        "cell": record.cell,
        "seed": record.seed,
        "until": record.until,
        "verdict": verification.verdict,
        "difference in the last evaluation": verification.last,
        f"largest difference in the first {EARLY} rounds": verification.early,
        f"what another rounding changes in the first {EARLY} rounds": verification.of_rounding,
        "largest difference of any accuracy": verification.largest,
        "same kind of machine": "yes" if verification.same_kind else "no",
        "made on": machine(record),
        "computed on": machine(again),
        "made by": record.sources.name,
        "computed by": again.sources.name,
        "seconds": round(again.measured.wall_seconds, 1),
        "key": record.key,
    }
