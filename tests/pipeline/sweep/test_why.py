"""Why trials of a table have no row, or one that no longer counts."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from pfl.run.sources import Plugin
from pfl.run.trials import split_checksum, with_checksum
from pipeline.store.ledger import Ledger
from pipeline.store.refusals import Refusal, refuse
from pipeline.sweep.why import why
from tests.pipeline.conftest import SOURCES, finish, scheduler_of
from tests.pipeline.running import LOCAL


@pytest.fixture
def small(edit) -> None:
    """The table without a search: 2 settings, 2 rows, 2 seeds."""
    edit("search: {trials: 4}\n", "")


@pytest.fixture
def finished(small: None, ledger: Ledger) -> None:  # noqa: ARG001 - asked for its effect
    """All of it is in the ledger."""
    finish(scheduler_of(ledger))


def reasons() -> list[str]:
    return why(scheduler_of(Ledger(SOURCES)))


def rewrite(change: Callable[[dict], dict]) -> None:
    """Replace the rows of the ledger by changed ones, with checksums."""
    rows = [change(json.loads(split_checksum(line)[0])) for line in LOCAL.read_bytes().splitlines()]
    LOCAL.write_bytes(b"".join(with_checksum(json.dumps(row).encode()) + b"\n" for row in rows))


def rewrite_all(**changes: object) -> None:
    """Change all rows of the ledger, their keys too."""
    keys = (f"{number:064}" for number in count())
    rewrite(lambda row: {**row, "key": next(keys), **changes})


def without_its_curve(row: dict) -> dict:
    (last,) = row["metrics"]["rounds"]
    first = {name: value for name, value in last.items() if name != "post_local"}
    return {**row, "metrics": {**row["metrics"], "rounds": [{**first, "round": 1}, last]}}


ALL = "8 runs of dir/fedavg, dir/fedprox, two/fedavg, two/fedprox: "


@pytest.mark.usefixtures("small", "project")
def test_before_a_sweep_nothing_has_run():
    assert reasons() == [ALL + "never run"]


@pytest.mark.usefixtures("finished")
def test_after_a_sweep_everything_is_in_the_ledger():
    assert reasons() == [ALL + "in the ledger"]


@pytest.mark.usefixtures("project")
def test_a_search_says_how_much_is_still_to_come():
    assert reasons()[-1].endswith("of searches, after these")


@pytest.mark.usefixtures("finished")
def test_an_option_of_one_row_is_named_with_both_values(edit):
    edit("{mu: 0.1}", "{mu: 0.2}")
    kept, stale = reasons()
    assert kept == "4 runs of dir/fedavg, two/fedavg: in the ledger"
    assert stale == "4 runs of dir/fedprox, two/fedprox: stale: mu was 0.1, is now 0.2"


@pytest.mark.usefixtures("finished")
def test_a_row_that_is_served_is_not_what_another_was_before(edit):
    edit("- fedavg\n", "- fedavg\n- {method: fedavg, as: faster, schedule: {lr: 0.1}}\n")
    assert "4 runs of dir/faster, two/faster: never run" in reasons()


@pytest.mark.usefixtures("finished")
def test_a_trial_that_never_ran_is_not_compared_with_other_tables_cells_or_seeds(edit):
    edit("seeds: [0, 1]", "seeds: [2]")
    edit("lr: 0.05", "lr: 0.06")
    assert reasons() == ["4 runs of dir/fedavg, dir/fedprox, two/fedavg, two/fedprox: never run"]
    edit("seeds: [2]", "seeds: [0, 1]")
    assert all(": stale: lr was its default, is now 0.06" in reason for reason in reasons())
    rewrite(lambda row: {**row, "table": "other"})
    LOCAL.rename(LOCAL.with_name("other.jsonl"))
    assert reasons() == [ALL + "never run"]


@pytest.mark.usefixtures("finished")
def test_a_refused_row_is_named_with_the_reason():
    first = json.loads(LOCAL.read_bytes().splitlines()[0])
    named = (first[name] for name in ("table", "cell", "seed", "key", "checksum"))
    refuse([Refusal(*map(str, named), "off by 3 points")])
    assert f"1 run of {first['cell']}: its record is refused (off by 3 points)" in reasons()


@pytest.mark.usefixtures("finished")
def test_a_damaged_row_is_told_and_its_trial_is_to_run():
    LOCAL.write_bytes(LOCAL.read_bytes().replace(b'"pooled":8', b'"pooled":9', 1))
    kept, pending = reasons()
    assert kept.endswith("in the ledger")
    assert pending == "1 run of dir/fedavg: its record is damaged"


@pytest.mark.usefixtures("finished")
def test_an_option_that_was_at_its_default_is_named(edit):
    edit("lr: 0.05}", "lr: 0.1}")
    assert reasons() == [ALL + "stale: lr was its default, is now 0.1"]


@pytest.mark.usefixtures("finished")
def test_other_images_are_named():
    rewrite_all(data_checksum="e" * 64)
    (reason,) = {line.partition(": ")[2] for line in reasons()}
    assert reason == f"stale: different images of digits, or a different order ({'e' * 12} is now {'d' * 12})"


@pytest.mark.usefixtures("finished")
def test_another_partition_is_named():
    rewrite_all(partition_checksum="e" * 64, partition="shards:2,min=10,test=0.25,seed=0")
    stale = [line.partition(": ")[2] for line in reasons()]
    assert {reason.partition(" is now ")[0] for reason in stale} == {
        "stale: different partition (shards:2,min=10,test=0.25,seed=0"
    }
    now = {reason.partition(" is now ")[2].partition(",")[0] for reason in stale}
    assert now == {"dirichlet:0.5", "pathological:2"}


@pytest.mark.usefixtures("finished")
def test_rows_without_the_curve_or_the_models_that_are_asked_for_are_told(edit):
    rewrite(without_its_curve)
    edit("every: 1", "every: 1, moment: post_local, which: best")
    assert reasons() == [ALL + "in the ledger, without its curve"]
    edit("every: 1, moment: post_local, which: best", "every: 1")
    edit("evaluation:", "keep: models\nevaluation:")
    assert reasons() == [ALL + "in the ledger, without its models"]


@pytest.mark.usefixtures("finished")
def test_rows_without_the_moment_that_is_asked_for_are_told(edit):
    def without(row: dict) -> dict:
        (last,) = row["metrics"]["rounds"]
        last = {name: value for name, value in last.items() if name != "post_local"}
        return {**row, "metrics": {**row["metrics"], "rounds": [last]}}

    rewrite(without)
    edit("every: 1", "every: 1, moment: post_local")
    assert reasons() == [ALL + "in the ledger, without its moment"]


@pytest.mark.usefixtures("finished")
def test_a_row_that_serves_one_cell_and_lacks_the_curve_of_another_is_told_of_each(edit):
    rewrite(without_its_curve)
    other = "{method: fedavg, as: again, evaluation: {moment: post_local, which: best}}"
    edit("{method: fedprox, params: {mu: 0.1}}", other)
    assert reasons() == [
        "4 runs of dir/fedavg, two/fedavg: in the ledger",
        "4 runs of dir/again, two/again: in the ledger, without its curve",
    ]


@pytest.mark.usefixtures("finished")
def test_an_option_that_is_gone_is_told():
    rewrite_all(config={"method": "fedavg", "model": "cnn_digits", "hyperparameters": {}, "gone": 1})
    assert reasons() == [ALL + "stale: options that no longer exist"]


@pytest.mark.usefixtures("finished")
def test_a_removed_hyperparameter_is_told_if_it_did_not_have_its_default():
    rewrite(lambda row: {**row, "config": {**row["config"], "hyperparameters": {"gone": "usual"}}})
    kept = "4 runs of dir/fedavg, two/fedavg: in the ledger"
    assert reasons()[0] == kept
    keys = (f"{number:064}" for number in count())
    rewrite(lambda row: {**row, "key": next(keys)} if row["method"] == "fedavg" else row)
    assert reasons()[0] == "4 runs of dir/fedavg, two/fedavg: stale: gone was usual, and no longer exists"


@pytest.mark.usefixtures("finished")
def test_other_code_is_named_by_its_component_with_the_files_that_changed(monkeypatch):
    rewrite_all(behaviour="fedavg-0", commit="a" * 40)
    methods = ("pfl/methods/fedavg.py", "pfl/methods/fedprox.py")
    changed = ("pfl/run/api.py", *methods, "pfl/core/config.py", "pfl/core/rng.py")
    monkeypatch.setattr("pipeline.sweep.why._changed_since", lambda _: changed)
    monkeypatch.setattr("pipeline.sweep.why._uncommitted", lambda: {"pfl/core/rng.py"})
    files = {component: {Path(file).resolve() for file in own} for component, own in OF.items()}
    monkeypatch.setattr("pipeline.sweep.why.files_of", files.get)
    engine = "the engine changed since commit aaaaaaaaaaaa: pfl/core/rng.py, pfl/core/config.py"
    stale = reasons()
    assert len(stale) == 2  # as fedavg and fedprox are different methods
    for line in stale:
        assert "stale: different code (fedavg-0 is now fed" in line
        method = "fedavg" if "is now fedavg" in line else "fedprox"
        changed_too = f"method {method} changed since commit aaaaaaaaaaaa: pfl/methods/{method}.py"
        assert line.endswith(f"): {engine}; {changed_too}")


OF = {
    "engine": ["pfl/core/config.py", "pfl/core/rng.py"],
    "kernels": [],
    "method fedavg": ["pfl/methods/fedavg.py"],
    "method fedprox": ["pfl/methods/fedprox.py"],
    "network cnn_digits": [],
}


@pytest.mark.usefixtures("finished")
def test_code_that_is_not_accepted_is_named_where_git_knows_no_edit(monkeypatch):
    rewrite_all(behaviour="fedavg-0", commit="unknown")
    monkeypatch.setattr("pipeline.sweep.why.unknown_of", lambda *_: {"kernels": "0"})
    said = "the kernels changed, and behaviours.json does not list it"
    assert all(line.endswith(said) for line in reasons())


@pytest.mark.usefixtures("finished")
@pytest.mark.parametrize(
    ("name", "version", "place"),
    [("mine", "1.0", "of plugin mine 1.0"), ("plugins", "unknown", "in plugins/")],
)
def test_a_plugin_whose_files_changed_is_the_only_reason(name, version, place, monkeypatch):
    before, now = ({"name": name, "version": version, "digest": digest} for digest in ("1", "2"))
    rewrite_all(behaviour="fedavg-0", commit="unknown", plugins=[before])
    monkeypatch.setattr("pipeline.sweep.why.plugins", lambda _: (Plugin(**now),))
    monkeypatch.setattr("pipeline.sweep.why.unknown_of", lambda *_: {"engine": "0"})
    assert all(line.endswith(f"): the files {place} have changed") for line in reasons())


@pytest.mark.usefixtures("small")
def test_a_trial_that_failed_says_why(ledger):
    scheduler = scheduler_of(ledger)
    scheduler.fail(scheduler.next(), "out of memory")
    assert "1 run of dir/fedavg: failed (out of memory)" in reasons()
