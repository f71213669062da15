"""A record of the small table, and the files of its ledger."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest

from pfl.core.hyper import hyper
from pfl.methods import METHODS
from pfl.run.trials import Record
from pfl.run.validation import of_record
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


@pytest.fixture
def former(row: Record, monkeypatch: pytest.MonkeyPatch) -> tuple[Record, Record]:
    """The record as code wrote it that had a further hyperparameter: at its default, and at another value."""

    @dataclass(frozen=True)
    class Former(METHODS[row.method]):
        gone: str = hyper("usual", "a removed one", choices=("usual", "other"))

    def record(value: str) -> Record:
        config = of_record(row.config | {"hyperparameters": row.config["hyperparameters"] | {"gone": value}})
        written = dataclasses.replace(row, config=config.to_dict())
        return dataclasses.replace(written, key=written.expected_key())

    with monkeypatch.context() as then:
        then.setitem(METHODS._added, row.method, Former)
        usual, other = map(record, ("usual", "other"))
    assert [each.config["hyperparameters"]["gone"] for each in (usual, other)] == ["usual", "other"]
    return usual, other


def stamped(row: Record) -> Record:
    return dataclasses.replace(row, sources=SOURCES)
