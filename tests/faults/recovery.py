"""The outcome of a sweep with a fault: for the tests, and for the report of `benchmarks/faults.py`."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests.faults.checkout import Checkout, folder_of_key
from tests.faults.faults import Fault


@dataclass(frozen=True)
class Outcome:
    """What came of a fault.

    Attributes:
        lost: what the checkout lacks of one without a fault.
        repeated: finished trials that were run again.
        survived: `dvc repro` has come to its end, and was not needed again.
        seconds: from the injection until the trials have ended that were under way, and a next one; `None`
            means that there were none.
        output: everything that the user was told.
    """

    lost: list[str]
    repeated: int
    survived: bool
    seconds: float | None
    output: str


def outcome_of(fault: Fault, whole: Checkout, checkout: Checkout) -> Outcome:
    """Inject a fault into the sweep of ``checkout``, and let it come to its end.

    Args:
        whole: a checkout whose sweep had no fault.

    Raises:
        PermissionError: this user may not mount the file system that the fault needs.
    """
    try:
        with fault.inject(checkout) as process:
            injected, done = datetime.now(UTC), {row["key"] for row in checkout.rows()}
            under_way = checkout.under_way()
            survived = process.wait(timeout=600) == 0
        assert survived or (checkout.run() != 0) == fault.lasting, checkout.output
    finally:
        checkout.stop()
    failed = sum("error" in row for row in checkout.rows())  # these are retried
    finished = {row["key"] for row in checkout.rows() if "error" not in row}
    return Outcome(
        lost=checkout.lost(whole),
        repeated=len(checkout.lines()) - failed - len(finished),  # a line that is no row was one once
        survived=survived,
        seconds=_seconds_to_recovery(checkout, injected, done, under_way),
        output=checkout.output,
    )


def _seconds_to_recovery(
    checkout: Checkout, injected: datetime, done: set[str], under_way: set[str]
) -> float | None:
    """Of a checkout whose ledger had the keys ``done`` when the fault had been injected."""
    old, new = [], []
    for row in checkout.rows():
        if row["key"] not in done and "error" not in row:
            after = (datetime.fromisoformat(row["finished"]) - injected).total_seconds()
            (old if folder_of_key(row["key"]) in under_way else new).append(max(0.0, after))
    return max([*old, *sorted(new)[:1]], default=None)


@contextmanager
def file_system(folder: Path, megabytes: int | None) -> Iterator[None]:
    """Inside, ``folder`` is a file system of so many megabytes.

    Raises:
        PermissionError: this user may not mount one.
    """
    if megabytes is None:
        yield
        return
    folder.mkdir()
    size = f"size={megabytes}m"
    if subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", folder], check=False).returncode:
        raise PermissionError("no file system can be mounted")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
