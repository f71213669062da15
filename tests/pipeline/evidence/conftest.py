"""A project whose table has results and a report."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.report.table_report import write_report
from pipeline.spec.table import Subset, load_table
from pipeline.store.ledger import Ledger
from pipeline.sweep import outputs
from pipeline.sweep.preparation import described
from pipeline.sweep.scheduler import scheduler_of
from tests.pipeline.conftest import SOURCES, finish


@pytest.fixture
def reported(prepared: Path) -> Path:
    table = load_table("small")
    scheduler = scheduler_of("small", table, Ledger(SOURCES))
    finish(scheduler)
    outputs.write(outputs.outcome("small", table, Subset(), scheduler, described("small", table)), scheduler)
    write_report("small")
    return prepared
