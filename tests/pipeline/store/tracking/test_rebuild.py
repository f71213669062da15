"""Results that are entered again after the store was lost or moved."""

from __future__ import annotations

import pytest
from mlflow import MlflowClient

from pfl.core.errors import InvalidInput
from pipeline.store.tracking import rebuild
from tests.pipeline.fake_results import fail, fake_results, record_of, write_results
from tests.pipeline.store.tracking.entering import no_space_left, runs_of, trials_of


def test_rebuilding_enters_what_the_last_sweep_used(root):
    results = fake_results(methods=2, settings=1, seeds=2, search=2)
    write_results(results, root)
    expected = {
        row["key"]
        for entry in results["cells"]
        for trial in (entry["pinned"], entry["selected"], *entry["searched"])
        for row in trial["records"]
    }
    rebuild(root, "fake", [])
    assert {run.data.tags["key"] for run in trials_of(root)} == expected
    assert {run.data.tags["from_ledger"] for run in trials_of(root)} == {"true"}
    assert {run.info.status for run in runs_of(root)} == {"FINISHED"}


def test_rebuilding_enters_the_rows_of_earlier_sweeps_of_the_table(root):
    results = fake_results(methods=1, settings=1, seeds=1)
    write_results(results, root)
    (last,) = results["cells"][0]["pinned"]["records"]
    earlier = [{**last, "key": "earlier"}, last]
    assert rebuild(root, "fake", map(record_of, earlier)) == 2
    assert {run.data.tags["key"] for run in trials_of(root)} == {last["key"], "earlier"}


def test_rebuilding_enters_failures_with_their_causes(root):
    results = fake_results(methods=2, settings=1, seeds=2)
    results["cells"] = results["cells"][:1]
    fail(results["cells"][0]["pinned"], 1)
    write_results(results, root)
    rebuild(root, "fake", [])
    assert sorted(run.info.status for run in trials_of(root)) == ["FAILED", "FINISHED"]
    assert "out of memory" in [run.data.tags.get("error") for run in trials_of(root)]


def test_rebuilding_a_table_without_results_is_refused(root):
    (root / "tables").mkdir()
    (root / "tables/digits.yaml").touch()
    with pytest.raises(InvalidInput, match="a table with results"):
        rebuild(root, "digits", [])


def test_rebuilding_into_a_store_that_fails_says_why(root, monkeypatch):
    write_results(fake_results(methods=2, settings=1, seeds=1), root)
    monkeypatch.setattr(MlflowClient, "log_text", no_space_left)
    with pytest.raises(InvalidInput, match="no space left on device"):
        rebuild(root, "fake", [])
