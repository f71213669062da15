"""A record of the small table, and the files of its ledger."""

from __future__ import annotations

import dataclasses

import pytest

from pfl.run.trials import Record
from pipeline.store.ledger import Ledger
from tests.pipeline.conftest import SOURCES, fake_run, scheduler_of


@pytest.fixture(autouse=True)
def _code_of_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine has the code of the made-up records."""
    monkeypatch.setattr("pipeline.store.imports.current_sources", lambda *_: SOURCES)


@pytest.fixture
def row(ledger: Ledger) -> Record:
    """A record as a worker returns it."""
    return fake_run(scheduler_of(ledger).next())[0]


def stamped(row: Record) -> Record:
    return dataclasses.replace(row, sources=SOURCES)
