"""Why trials of a table have no row, or one that no longer counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pfl.sources import Plugin
from pipeline.store.ledger import Ledger
from pipeline.sweep.why import why
from tests.pipeline.conftest import SOURCES, finish, scheduler_of

LOCAL = Path(".sweeps/ledger/small.jsonl")


@pytest.fixture
def small(edit) -> None:
    """The table without a search: 2 settings, 2 rows, 2 seeds."""
    edit("search: {trials: 4}\n", "")


@pytest.fixture
def finished(small: None, ledger: Ledger) -> None:  # noqa: ARG001 - asked for its effect
    """All of it is in the ledger."""
    finish(scheduler_of(ledger))


def reasons() -> list[str]:
    ledger = Ledger(SOURCES)
    return why(scheduler_of(ledger), ledger)


def rewrite(**changes: object) -> None:
    """Change all rows of the ledger, their keys too."""
    rows = [json.loads(line) for line in LOCAL.read_text().splitlines()]
    changed = [{**row, "key": f"{number:064}", **changes} for number, row in enumerate(rows)]
    LOCAL.write_text("".join(json.dumps(row) + "\n" for row in changed))


ALL = "8 trials of dir/fedavg, dir/fedprox, two/fedavg, two/fedprox: "


@pytest.mark.usefixtures("small", "project")
def test_before_a_sweep_nothing_has_run():
    assert reasons() == [ALL + "never run"]


@pytest.mark.usefixtures("finished")
def test_after_a_sweep_everything_is_in_the_ledger():
    assert reasons() == [ALL + "in the ledger"]


@pytest.mark.usefixtures("project")
def test_a_search_says_how_much_is_still_to_come():
    assert reasons()[-1].endswith("of searches after these")


@pytest.mark.usefixtures("finished")
def test_an_option_of_one_row_is_named_with_both_values(edit):
    edit("{mu: 0.1}", "{mu: 0.2}")
    kept, stale = reasons()
    assert kept == "4 trials of dir/fedavg, two/fedavg: in the ledger"
    assert stale == "4 trials of dir/fedprox, two/fedprox: stale: mu was 0.1, is now 0.2"


@pytest.mark.usefixtures("finished")
def test_a_row_that_is_served_is_not_what_another_was_before(edit):
    edit("- fedavg\n", "- fedavg\n- {method: fedavg, as: faster, schedule: {lr: 0.1}}\n")
    assert "4 trials of dir/faster, two/faster: never run" in reasons()


@pytest.mark.usefixtures("finished")
def test_an_option_that_was_at_its_default_is_named(edit):
    edit("lr: 0.05}", "lr: 0.1}")
    assert reasons() == [ALL + "stale: lr was its default, is now 0.1"]


@pytest.mark.usefixtures("finished")
def test_other_images_are_named():
    rewrite(data_checksum="e" * 64)
    (reason,) = {line.partition(": ")[2] for line in reasons()}
    assert reason == f"stale: other images of digits, or in another order ({'e' * 12} is now {'d' * 12})"


@pytest.mark.usefixtures("finished")
def test_another_partition_is_named():
    rewrite(partition_checksum="e" * 64, partition="shards:2,min=10,test=0.25,seed=0")
    stale = [line.partition(": ")[2] for line in reasons()]
    assert {reason.partition(" is now ")[0] for reason in stale} == {
        "stale: another partition (shards:2,min=10,test=0.25,seed=0"
    }
    now = {reason.partition(" is now ")[2].partition(",")[0] for reason in stale}
    assert now == {"dirichlet:0.5", "pathological:2"}


@pytest.mark.usefixtures("finished")
def test_rows_without_the_curve_or_the_models_that_are_asked_for_are_told(edit):
    rows = [json.loads(line) for line in LOCAL.read_text().splitlines()]
    for row in rows:
        (last,) = row["metrics"]["rounds"]
        first = {**last, "round": 1}
        del first["post_local"]
        row["metrics"]["rounds"] = [first, last]
    LOCAL.write_text("".join(json.dumps(row) + "\n" for row in rows))
    edit("every: 1", "every: 1, moment: post_local, which: best")
    assert reasons() == [ALL + "in the ledger, without its curve"]
    edit("every: 1, moment: post_local, which: best", "every: 1")
    edit("evaluation:", "keep: models\nevaluation:")
    assert reasons() == [ALL + "in the ledger, without its models"]


@pytest.mark.usefixtures("finished")
def test_an_option_that_is_gone_is_told():
    rows = [json.loads(line) for line in LOCAL.read_text().splitlines()]
    for row in rows:
        row["config"]["hyperparameters"] = {"gone": 1}
        row["key"] = f"{row['seed']:064}"
    LOCAL.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert reasons() == [ALL + "stale: options that no longer exist"]


@pytest.mark.usefixtures("finished")
def test_other_code_is_named_by_its_component_with_the_files_that_changed(monkeypatch):
    rewrite(behaviour="fedavg-0", commit="a" * 40)
    changed = ("pfl/api.py", "pfl/methods/fedavg.py", "pfl/methods/fedprox.py", "pfl/config.py", "pfl/rng.py")
    monkeypatch.setattr("pipeline.sweep.why._changed_since", lambda _: changed)
    monkeypatch.setattr("pipeline.sweep.why._uncommitted", lambda: {"pfl/rng.py"})
    monkeypatch.setattr(
        "pipeline.sweep.why.files_of", lambda component: {Path(f).resolve() for f in OF[component]}
    )
    engine = "the engine changed since commit aaaaaaaaaaaa: pfl/rng.py, pfl/config.py"
    stale = reasons()
    assert len(stale) == 2  # as fedavg and fedprox are different methods
    for line in stale:
        assert "stale: other code (fedavg-0 is now fed" in line
        method = "fedavg" if "is now fedavg" in line else "fedprox"
        changed_too = f"method {method} changed since commit aaaaaaaaaaaa: pfl/methods/{method}.py"
        assert line.endswith(f"): {engine}; {changed_too}")


OF = {
    "engine": ["pfl/config.py", "pfl/rng.py"],
    "kernels": [],
    "method fedavg": ["pfl/methods/fedavg.py"],
    "method fedprox": ["pfl/methods/fedprox.py"],
    "network cnn_digits": [],
}


@pytest.mark.usefixtures("finished")
def test_code_that_is_not_accepted_is_named_where_git_knows_no_edit(monkeypatch):
    rewrite(behaviour="fedavg-0", commit="unknown")
    monkeypatch.setattr("pipeline.sweep.why.unknown_of", lambda *_: {"kernels": "0"})
    assert all(
        line.endswith("the kernels changed, and behaviours.json does not list it") for line in reasons()
    )


@pytest.mark.usefixtures("finished")
def test_a_plugin_whose_files_changed_is_named(monkeypatch):
    before, now = ({"name": "mine", "version": "1.0", "digest": digest} for digest in ("1", "2"))
    rewrite(behaviour="fedavg-0", commit="unknown", plugins=[before])
    monkeypatch.setattr("pipeline.sweep.why.plugins", lambda _: (Plugin(**now),))
    assert all(line.endswith("the files of plugin mine 1.0 have changed") for line in reasons())


@pytest.mark.usefixtures("small")
def test_a_trial_that_failed_says_why(ledger):
    scheduler = scheduler_of(ledger)
    scheduler.fail(scheduler.next(), "out of memory")
    assert "1 trial of dir/fedavg: failed (out of memory)" in reasons()
