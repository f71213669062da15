"""Published rows that are computed again, and what a difference means."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from pfl.core.errors import InvalidInput
from pfl.engine.metrics import Accuracy, Evaluated, Metrics
from pfl.engine.result import Hardware
from pfl.run.trials import Record
from pipeline.store.ledger import Ledger
from pipeline.store.records import read_record
from pipeline.store.refusals import Refusal, refuse
from pipeline.store.verification import Verification
from pipeline.sweep import verify as module
from pipeline.sweep.verify import drawn
from tests.command import pfl, refused
from tests.pipeline.conftest import SOURCES, fake_run, scheduler_of, with_metrics
from tests.pipeline.running import PUBLISHED, csv_lines

OTHER = Hardware("another CPU", 2, 1, None, "cpu", "loop")


@pytest.fixture
def row(ledger) -> Record:
    return replace(fake_run(scheduler_of(ledger).next())[0], sources=SOURCES)


def with_accuracies(row: Record, accuracies: dict[int, float], hardware: Hardware | None = None) -> Record:
    """``row`` with these accuracies by round."""
    rounds = tuple(
        Evaluated(
            round=round,
            post_aggregation=Accuracy(value, value, value, loss=1.0),
            train_loss=1.0,
            bytes_down=0,
            bytes_up=0,
        )
        for round, value in accuracies.items()
    )
    metrics = Metrics("post_aggregation", rounds, (), 0, 0)
    return replace(
        row, result=replace(row.success, metrics=metrics, hardware=hardware or row.success.hardware)
    )


def verdict(row: Record, then: dict[int, float], now: dict[int, float], on: Hardware | None = None) -> str:
    again = replace(with_accuracies(row, now, on), sources=SOURCES)
    return Verification(replace(with_accuracies(row, then), sources=row.sources), again).verdict


def test_the_same_code_on_a_machine_of_the_same_kind_must_give_equal_accuracies(row):
    assert verdict(row, {10: 40.0, 100: 60.0}, {10: 40.0, 100: 60.0}) == "agrees"
    assert verdict(row, {10: 40.0, 100: 60.0}, {10: 40.0, 100: 60.01}) == "fails"


def test_code_that_was_edited_and_accepted_may_round_otherwise(row):
    edited = replace(row, sources=replace(row.sources, sources="2" * 64))
    assert verdict(edited, {10: 40.0, 100: 60.0}, {10: 40.0, 100: 60.01}) == "agrees"


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ({10: 40.5, 100: 59.5}, "agrees"),
        ({10: 40.6, 100: 60.0}, "undecided"),
        ({10: 40.0, 100: 60.6}, "undecided"),
    ],
)
def test_another_kind_of_machine_explains_half_a_point(row, now, expected):
    assert verdict(row, {10: 40.0, 100: 60.0}, now, OTHER) == expected


@pytest.mark.parametrize(
    ("rounded", "expected"), [(40.85, "fails"), (41.0, "undecided"), (41.4, "undecided")]
)
def test_a_row_that_is_off_early_fails_unless_another_rounding_changes_as_much(row, rounded, expected):
    then, again = with_accuracies(row, {10: 40.0, 100: 60.0}), {10: 40.8, 100: 60.0}
    of_rounding = with_accuracies(row, {10: rounded, 100: 10.0}, OTHER)
    pair = Verification(then, with_accuracies(row, again, OTHER), of_rounding)
    assert pair.is_doubtful
    assert pair.of_rounding == pytest.approx(rounded - 40.8)
    assert pair.verdict == expected
    assert not pair.refuted


def test_a_row_that_diverged_in_another_round_does_not_agree(row):
    assert verdict(row, {10: 40.0, 100: 60.0}, {10: 40.0}) == "fails"
    assert verdict(row, {10: 40.0, 100: 60.0}, {10: 40.0}, OTHER) == "undecided"


def test_rows_that_diverged_before_they_evaluated_one_round_both_have_a_line(row):
    pair = Verification(with_accuracies(row, {3: 40.0}), with_accuracies(row, {4: 40.0}, OTHER))
    assert pair.last == math.inf
    assert pair.text.startswith("undecided: ")
    assert "seed 0: no evaluation of the same round, at most inf in any accuracy" in pair.text


def test_a_moment_that_only_one_row_has_in_a_round_is_not_compared(row):
    then, now = with_accuracies(row, {1: 40.0, 3: 60.0}), with_accuracies(row, {1: 20.0, 3: 60.0}, OTHER)
    first, last = now.metrics.rounds
    adapted = replace(first, post_aggregation=None, adapted=first.post_aggregation)
    again = replace(now, result=replace(now.success, metrics=replace(now.metrics, rounds=(adapted, last))))
    pair = Verification(then, again)
    assert (pair.verdict, pair.largest, pair.reported) == ("agrees", 0.0, {3: 0.0})


def test_a_row_without_an_early_evaluation_fails_on_no_other_kind_of_machine(row):
    assert verdict(row, {100: 60.0}, {100: 30.0}, OTHER) == "undecided"
    assert verdict(row, {100: 60.0}, {100: 60.3}, OTHER) == "agrees"


@pytest.mark.parametrize("changes", [{"cpu": "x"}, {"threads": 2}, {"gpu": "x"}, {"backend": "stacked"}])
def test_a_kind_is_the_processor_its_threads_the_gpu_and_the_backend(row, changes):
    same = Verification(row, row)
    other = Hardware(**{**vars(row.success.hardware), **changes})
    assert same.same_kind
    assert not Verification(row, replace(row, result=replace(row.success, hardware=other))).same_kind


@pytest.mark.parametrize("changes", [{"torch": "2.11.0"}, {"compiler": "c++ 13"}])
def test_and_the_versions_of_torch_and_of_the_compiler(row, changes):
    other = replace(row.success.versions, **changes)
    assert not Verification(row, replace(row, result=replace(row.success, versions=other))).same_kind


# ---- with simulations ----------------------------------------------------------------------------------


COMPUTED: list[bytes] = []
"""The rows of `published`, computed by the first test that needs them."""


@pytest.fixture
def published(prepared) -> list[Record]:
    """The rows of a small table, computed here and published."""
    if not COMPUTED:
        pfl("trials", "small", "trials.jsonl")
        pfl("run-trials", "trials.jsonl", "--rows", "rows.jsonl")
        COMPUTED.extend((prepared / "rows.jsonl").read_bytes().splitlines())
    return publish(*(replace(read_record(line), sources=SOURCES) for line in COMPUTED))


def verify(*options: str, status: int = 0) -> list[str]:
    """The lines that the command prints."""
    ended = pfl("ledger", "verify", "small", *options)
    assert ended.returncode == status, ended.stderr
    return ended.stdout.splitlines()


def publish(*rows: Record) -> list[Record]:
    PUBLISHED.parent.mkdir(parents=True, exist_ok=True)
    PUBLISHED.write_bytes(b"".join(row.to_line() + b"\n" for row in rows))
    return list(rows)


def off_by_a_point(row: Record) -> Record:
    (*rounds, last) = row.metrics.rounds
    headline = row.metrics.headline
    moved = replace(last.moments[headline], pooled=last.moments[headline].pooled - 1)
    rounds.append(replace(last, **{headline: moved}))
    return with_metrics(row, rounds=tuple(rounds))


def test_rows_as_the_code_computes_them_agree_and_are_computed_once(published, monkeypatch):
    output = verify("--out", "page")
    assert output[0].startswith(
        "4 records of 4 that the current code computes, from 1 table; 0 more are from"
    )
    assert [line.partition(": small")[0] for line in output[1:-1]] == [f"{n}/4 agrees" for n in range(1, 5)]
    assert output[-1] == "4 agree, 0 are undecided, 0 fail"
    listed = csv_lines(Path("page/rows.csv"))
    assert {row["key"] for row in listed} == {row.key for row in published}
    verdicts = {(row["verdict"], row["largest difference of any accuracy"]) for row in listed}
    assert verdicts == {("agrees", "0.0")}
    page = Path("page/README.md").read_text()
    assert "**4 agree, 0 are undecided, 0 fail.**" in page
    assert "`pfl ledger verify small --seed 0 --out page`" in page
    assert not list(Path(".sweeps/verify").glob("*/"))
    monkeypatch.setattr(module, "run_trials", None)  # it would be called
    assert verify()[1:] == output[1:]


def test_a_row_that_is_older_than_a_hyperparameter_is_computed_with_its_default(published):
    row = next(row for row in published if row.method == "fedprox")
    older = replace(row, config={**row.config, "hyperparameters": {}})  # with mu's default
    publish(replace(older, key=older.expected_key()))
    assert [line.partition(": ")[0] for line in verify(status=1)[1:-1]] == ["1/1 fails"]


def test_a_row_with_the_default_of_a_removed_hyperparameter_is_computed_without_it(published):
    row = published[0]
    usual = replace(row, config={**row.config, "hyperparameters": {"removed": "its default"}})
    publish(usual, replace(usual, key="0" * 64))  # made from another value
    assert usual.key == usual.expected_key()
    assert [line.partition(": ")[0] for line in verify()[1:-1]] == ["1/1 agrees"]


@pytest.mark.usefixtures("published")
def test_what_is_damaged_is_reported_and_skipped_or_computed_again():
    verify()
    first, *others = PUBLISHED.read_bytes().splitlines()
    foreign = replace(read_record(first), key="0" * 64).to_line()
    PUBLISHED.write_bytes(b"\n".join([first.replace(b'"seed":', b'"sead":'), foreign, *others]) + b"\n")
    file = Path(".sweeps/verify/rows.jsonl")
    file.write_bytes(file.read_bytes()[:-100])
    ended = pfl("ledger", "verify", "small")
    assert ended.returncode == 0
    assert [line.split(": ", 2)[1] for line in ended.stderr.splitlines() if "skipped" in line] == [
        f"{PUBLISHED}:1",
        f"{PUBLISHED}:2",
    ]
    assert ended.stdout.splitlines()[-1] == "3 agree, 0 are undecided, 0 fail"


def test_a_row_that_fails_on_such_a_machine_is_kept_listed_and_never_served(published):
    publish(off_by_a_point(published[0]), *published[1:])
    content = PUBLISHED.read_bytes()
    verify("--out", "page", status=1)
    assert PUBLISHED.read_bytes() == content
    ledger = Ledger(SOURCES)
    assert ledger.refused == {published[0].key: "differs by 1 points when recomputed on such a machine"}
    assert [ledger.get(row.key) is None for row in published] == [True, False, False, False]
    page = Path("page/README.md").read_text()
    assert "**3 agree, 0 are undecided, 1 fails.**" in page
    assert "They are kept but never used" in page
    assert f"- small {published[0].cell}, seed {published[0].seed}: differs by 1 points" in page
    assert "3 records of 3" in verify()[0]


def test_a_row_is_not_refused_if_no_run_of_its_kind_of_machine_is_reproduced_exactly(published):
    publish(*map(off_by_a_point, published))
    verify(status=1)
    assert Ledger(SOURCES).refused == {}


def test_a_row_that_differs_on_another_machine_is_not_refused(published):
    elsewhere = replace(published[0].success, hardware=OTHER)
    publish(off_by_a_point(replace(published[0], result=elsewhere)), *published[1:])
    output = verify("--out", "page", status=1)
    (fails,) = [line for line in output if "fails: small" in line]
    assert "of which rounding may explain 0.00 up to round 20; of another kind of machine" in fails
    assert "kept but never used" not in Path("page/README.md").read_text()
    assert Ledger(SOURCES).refused == {}


def test_a_run_that_was_interrupted_continues(published, monkeypatch):
    ran, real = [], module.run_trials

    def run_trials(trials, *others):
        if len(ran) == 2:
            ran.append("interrupted")
            raise KeyboardInterrupt
        ran.append(trials[0].keys[0])
        return real(trials, *others)

    monkeypatch.setattr(module, "run_trials", run_trials)
    verify(status=130)
    assert verify()[-1] == "4 agree, 0 are undecided, 0 fail"
    ran.remove("interrupted")
    assert sorted(ran) == sorted(row.key for row in published)


def test_a_simulation_that_raises_is_one_line_and_the_others_run(published, monkeypatch):
    real = module.run_trials

    def run_trials(trials, *others):
        if trials[0].keys == [published[0].key]:
            raise ValueError("no such luck")
        return real(trials, *others)

    monkeypatch.setattr(module, "run_trials", run_trials)
    ended = pfl("ledger", "verify", "small")
    assert ended.returncode == 1
    first = published[0]
    (line,) = [line for line in ended.stderr.splitlines() if line.startswith("pfl: ")]
    assert line == f"pfl: small {first.cell}, seed {first.seed}: ValueError: no such luck"
    assert ended.stdout.splitlines()[-1] == "3 agree, 0 are undecided, 0 fail"


@pytest.mark.usefixtures("project")
def test_a_folder_that_cannot_be_written_is_one_line_before_anything_is_computed():
    said = refused("ledger", "verify", "small", "--out", "params.yaml")
    assert "params.yaml/README.md is not accepted; expected a file that can be written" in said


@pytest.mark.usefixtures("project")
def test_a_sample_is_drawn_by_its_seed_from_rows_of_today_s_code_that_are_not_refused(ledger):
    rows = [row for trial in iter(scheduler_of(ledger).next, None) for row in fake_run(trial)]
    stale, refused, *current = (replace(row, sources=SOURCES) for row in rows)
    publish(replace(stale, behaviour="fedavg-0"), refused, *current, current[0])
    checksum = json.loads(refused.to_line())["checksum"]
    refuse([Refusal("small", refused.cell, str(refused.seed), refused.key, checksum, "off")])

    def keys(count: int | None, seed: int) -> list[str]:
        return [row.key for row, _ in drawn(["small"], count, seed).records]

    sample = drawn((), None, 0)
    assert sample.facts == {"drawn": len(current), "tables": 1, "candidates": len(current), "stale": 1}
    assert set(keys(None, 0)) == {row.key for row in current}
    assert keys(5, 0) == keys(5, 0)
    assert set(keys(4, 0)) < set(keys(5, 0)) != set(keys(5, 1))
    with pytest.raises(InvalidInput, match="did you mean 'small'"):
        drawn(["smal"], None, 0)


@pytest.mark.usefixtures("project")
def test_every_table_is_in_a_sample_of_as_many_rows_and_the_shortest_comes_first(ledger):
    rows = [replace(fake_run(trial)[0], sources=SOURCES) for trial in iter(scheduler_of(ledger).next, None)]
    publish(*rows[1:])
    measured = replace(rows[0].measured, wall_seconds=0.1)
    other = replace(rows[0], table="other", result=replace(rows[0].success, measured=measured))
    PUBLISHED.with_name("other.jsonl").write_bytes(other.to_line() + b"\n")
    assert [row.table for row, _ in drawn((), 2, 0).records] == ["other", "small"]


@pytest.mark.usefixtures("project")
def test_a_project_without_published_records_is_one_line():
    said = refused("ledger", "verify", "small")
    assert said.startswith("pfl: error: results/ledger: no published records; expected records of committed ")


@pytest.mark.usefixtures("published")
def test_nothing_is_computed_again_if_it_cannot_be_written(monkeypatch):
    monkeypatch.setattr(module, "run_trials", lambda *_: pytest.fail("a run was computed"))
    module.AGAIN.mkdir(parents=True)
    with pytest.raises(InvalidInput, match=r"rows.jsonl is not accepted; expected a file that can be writ"):
        list(module.verify(drawn((), None, 0)))
