"""The sweep stage around Ray Tune: what it writes, when it refuses, how it ends."""

from __future__ import annotations

import fcntl
import json
import re
import signal
from pathlib import Path

import pytest

from pfl.core.errors import InvalidInput
from pipeline.report.table_report import write_report
from pipeline.spec.table import Resources, Subset, load_table
from pipeline.store.ledger import Ledger
from pipeline.store.results import load_results
from pipeline.store.workspace import checkpoints_of
from pipeline.sweep.cluster import Watch
from pipeline.sweep.outputs import write
from pipeline.sweep.scheduler import Scheduler
from pipeline.sweep.train_sweep import collect, in_memory, sweep, table_lock
from tests.command import pfl
from tests.pipeline.conftest import SOURCES, fake_run, finish, scheduler_of


class Quiet:
    """In the place of MLflow."""

    def __init__(self, *_: object):
        pass

    def trial(self, *_: object) -> None:
        pass

    def cell(self, *_: object) -> None:
        pass

    def __enter__(self) -> Quiet:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def ready(project: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose stages before the sweep have run; trials cost nothing."""
    for cell in scheduler_of(ledger).cells:
        cell.partition.save(Path("data/partitions/small") / f"{cell.cell.setting}.npz")
    manifest = {"table": "small", "datasets": {"digits": {"shape": [1, 8, 8], "classes": 10}}}
    Path("data/manifests").mkdir(parents=True)
    Path("data/manifests/small.json").write_text(json.dumps(manifest))
    monkeypatch.setattr("pipeline.sweep.train_sweep.current_sources", lambda _: SOURCES)
    monkeypatch.setattr("pipeline.sweep.train_sweep.Tracker", Quiet)
    run_with(monkeypatch, lambda scheduler, *_: finish(scheduler))
    return project


def run_with(monkeypatch: pytest.MonkeyPatch, run) -> None:
    monkeypatch.setattr("pipeline.sweep.cluster.run", run)


def results() -> dict:
    return json.loads(Path("results/small/results.json").read_text())


def test_a_sweep_writes_results_and_metrics(ready):
    sweep("small")
    written = results()
    assert [cell.status for cell in load_results("small", ready).cells] == ["done"] * 4
    assert (written["trials_run"], written["trials_from_ledger"]) == (48, 0)
    assert written["config"]["methods"][1]["params"] == {"mu": 0.1}
    rows = [
        (ready / place).read_bytes() for place in ("results/small/rows.jsonl", ".sweeps/ledger/small.jsonl")
    ]
    assert set(rows[0].splitlines()) == set(rows[1].splitlines())
    assert "accuracy" not in (ready / "results/small/results.json").read_text()
    metrics = json.loads((ready / "results/small/metrics.json").read_text())
    assert list(metrics) == ["table", "dir/fedavg", "dir/fedprox", "two/fedavg", "two/fedprox"]


@pytest.mark.usefixtures("ready")
def test_a_sweep_of_a_finished_table_does_not_start_ray(monkeypatch, capsys):
    sweep("small")
    before = results()["cells"]
    run_with(monkeypatch, lambda *_: pytest.fail("Ray was started"))
    sweep("small")
    assert "0 runs computed, 48 from the ledger" in capsys.readouterr().out
    assert results()["cells"] == before


@pytest.mark.usefixtures("prepared")
def test_what_the_ledger_holds_is_collected_without_running_anything(monkeypatch):
    ledger = Ledger(SOURCES)
    scheduler = in_memory("small", load_table("small"), ledger)
    for cell in scheduler.cells:  # the second seed has run for one of two methods
        seeds = (0, 1) if cell.cell.row == "fedavg" else (0,)
        for row in fake_run(cell.pinned.trial):
            if row.seed in seeds:
                ledger.append(row)
    monkeypatch.setattr("pipeline.sweep.train_sweep.current_sources", lambda _: SOURCES)
    run_with(monkeypatch, lambda *_: pytest.fail("a trial has run"))
    assert collect("small") == 2
    written = results()
    assert [cell["cell"] for cell in written["cells"]] == ["dir/fedavg", "dir/fedprox"]
    assert written["subset"]["seeds"] == [0]
    assert {len(cell["pinned"]["records"]) for cell in written["cells"]} == {1}
    assert (written["trials_run"], written["trials_from_ledger"]) == (0, 2)


@pytest.mark.usefixtures("prepared")
def test_a_column_of_which_the_ledger_holds_one_method_is_collected_with_that(monkeypatch):
    ledger = Ledger(SOURCES)
    first, _ = in_memory("small", load_table("small"), ledger).cells
    for row in fake_run(first.pinned.trial):
        ledger.append(row)
    monkeypatch.setattr("pipeline.sweep.train_sweep.current_sources", lambda _: SOURCES)
    assert collect("small") == 1
    assert results()["subset"] == {
        "settings": [],
        "methods": [],
        "seeds": [],
    }  # what is missing was not left out
    readme = (write_report("small", Path()) / "README.md").read_text()
    assert "*not run*" in readme
    assert "dvc exp run -S 'tables=[small]' -S 'subset.methods=[fedavg]'\n" in readme


def test_nothing_is_written_for_a_table_of_which_the_ledger_holds_nothing(prepared):
    assert collect("small") == 0
    assert not (prepared / "results").exists()


@pytest.fixture
def held(prepared, monkeypatch) -> Path:
    """A project whose ledger holds one of two methods, and whose `reports/tables/` has a page."""
    ledger = Ledger(SOURCES)
    for row in fake_run(in_memory("small", load_table("small"), ledger).cells[0].pinned.trial):
        ledger.append(row)
    monkeypatch.setattr("pipeline.sweep.train_sweep.current_sources", lambda _: SOURCES)
    (prepared / "reports/tables/small").mkdir(parents=True)
    (prepared / "reports/tables/small/README.md").write_text("As published.\n")
    return prepared


def test_a_report_changes_nothing_that_git_keeps_unless_it_is_published(held):
    said = pfl("report").stdout
    assert said.endswith("small: results/small/report/README.md, 1 cell\n")
    assert (held / "results/small/report/index.html").is_file()
    assert [path.name for path in (held / "reports/tables/small").iterdir()] == ["README.md"]
    assert (held / "reports/tables/small/README.md").read_text() == "As published.\n"
    assert not (held / "reports/README.md").exists()


def test_a_published_report_is_that_of_the_table_without_what_only_the_page_has(held):
    pfl("report", "small")
    (held / "results/small/report/partition-dir.svg").touch()
    assert pfl("report", "--publish").stdout.endswith("small: reports/tables/small/README.md, 1 cell\n")
    source, kept = held / "results/small/report", held / "reports/tables/small"
    assert {path.name for path in source.iterdir()} - {path.name for path in kept.iterdir()} == {
        "index.html",
        "communication.svg",
        *(path.name for path in source.glob("partition-*.svg")),
    }
    assert all(path.read_bytes() == (source / path.name).read_bytes() for path in kept.iterdir())
    links = re.findall(r"\]\(([^)#]+)\)", (kept / "README.md").read_text())
    assert {"table.csv", "convergence.svg"} <= set(links)
    assert all((kept / link).is_file() for link in links)


def test_a_part_of_a_table_is_not_published(held):
    (held / "params.yaml").write_text("tables: [small]\nsubset: {methods: [fedavg]}\n")
    done = pfl("report", "small", "--publish")
    assert done.returncode
    assert "subset: methods is not accepted; expected empty lists, as only whole tables" in done.stderr
    assert (held / "reports/tables/small/README.md").read_text() == "As published.\n"


@pytest.mark.usefixtures("ready")
def test_a_sweep_refuses_a_precision_that_this_machine_has_not_before_a_trial_runs(edit, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr("torch.cpu._is_avx512_bf16_supported", lambda: False)
    run_with(monkeypatch, lambda *_: pytest.fail("a trial has run"))
    edit("mu: 0.1}", "mu: 0.1}, schedule: {precision: bf16}")
    with pytest.raises(InvalidInput, match="precision: bf16 is not accepted; expected fp32"):
        sweep("small")


@pytest.mark.usefixtures("ready")
def test_a_sweep_says_first_how_much_there_is_to_run(capsys):
    sweep("small")
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("small: 64 runs to compute")
    assert "core-hours" in first
    assert "MB of disk" in first


@pytest.mark.usefixtures("ready")
def test_a_long_sweep_says_how_to_run_a_part_of_it(edit, capsys):
    edit("rounds: 2", "rounds: 1000000")
    sweep("small")
    assert "To run a part of it: dvc exp run -S 'tables=[small]'" in capsys.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_sweep_keeps_what_is_done_and_says_how_to_go_on(ready, monkeypatch, capsys, number):
    def interrupted(scheduler: Scheduler, _: Resources, watch: Watch) -> None:
        for _ in range(5):
            trial = scheduler.next()
            scheduler.record(trial, fake_run(trial))
            watch(1, [])
        try:
            signal.raise_signal(number)
        finally:
            assert "finished trials are not run again" in capsys.readouterr().out

    run_with(monkeypatch, interrupted)
    with pytest.raises(KeyboardInterrupt):
        sweep("small")
    assert len((ready / "results/ledger/small.jsonl").read_text().splitlines()) == 5
    run_with(monkeypatch, lambda scheduler, *_: finish(scheduler))
    sweep("small")
    assert (results()["trials_run"], results()["trials_from_ledger"]) == (43, 5)


@pytest.mark.usefixtures("ready")
def test_a_cause_of_many_failures_is_told_once(monkeypatch, capsys):
    def failing(scheduler: Scheduler, *_: object) -> None:
        while trial := scheduler.next():
            scheduler.fail(trial, "ValueError: no")

    run_with(monkeypatch, failing)
    sweep("small")
    said = capsys.readouterr().out
    assert (
        "dir/fedprox: failed (final, seed 0 and final, seed 1 and search, seed 1000 (4 runs): ValueError: no)"
        in said
    )


@pytest.mark.usefixtures("ready")
def test_failed_trials_are_told_and_how_to_try_them_again(monkeypatch, capsys):
    def failing(scheduler: Scheduler, *_: object) -> None:
        scheduler.fail(scheduler.next(), "ValueError: no")
        finish(scheduler)

    run_with(monkeypatch, failing)
    assert sweep("small") == "1 of 48 runs failed; the next `dvc repro` retries them"
    assert "dir/fedavg: partial (final, seed 0: ValueError: no)" in capsys.readouterr().out
    assert [cell.status for cell in load_results("small", Path()).cells] == [
        "partial",
        *["done"] * 3,
    ]


@pytest.mark.usefixtures("ready")
def test_a_stage_whose_trials_failed_writes_the_report_and_ends_with_an_error(monkeypatch):
    monkeypatch.setattr("pipeline.store.tracking.attach_report", lambda *_: "runs: mlflow ui")
    manifest = json.loads(Path("data/manifests/small.json").read_text())
    manifest["datasets"]["digits"] |= {"identity": "original pixels", "images": 1797, "checksum": "d" * 64}
    manifest["datasets"]["digits"] |= {
        "content": "c" * 64,
        "train": 1797,
        "source": {"kind": "embedded", "files": []},
    }
    Path("data/manifests/small.json").write_text(json.dumps(manifest | {"absent": []}))

    def failing(scheduler: Scheduler, *_: object) -> None:
        scheduler.fail(scheduler.next(), "ValueError: no")
        finish(scheduler)

    run_with(monkeypatch, failing)
    done = pfl("stage", "sweep", "small")
    assert done.returncode == 1
    again = "of 48 runs failed; the next `dvc repro` retries them"
    assert done.stderr.splitlines()[-1] == f"pfl: error: small: 1 {again}"
    assert f"1 {again}." in Path("results/small/report/README.md").read_text()
    run_with(monkeypatch, lambda scheduler, *_: finish(scheduler))
    assert pfl("stage", "sweep", "small").returncode == 0


@pytest.mark.usefixtures("ready")
def test_the_environment_is_checked_before_ray_starts(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "./mlruns")
    run_with(monkeypatch, lambda *_: pytest.fail("Ray was started"))
    with pytest.raises(InvalidInput, match="MLFLOW_TRACKING_URI"):
        sweep("small")


@pytest.mark.usefixtures("ready")
def test_a_second_sweep_of_a_table_is_refused_while_one_runs():
    Path(".sweeps").mkdir(exist_ok=True)
    with Path(".sweeps/lock-small").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("process 123 on somewhere")
        lock.flush()
        with pytest.raises(InvalidInput, match="process 123 on somewhere"):
            sweep("small")
    sweep("small")


@pytest.mark.usefixtures("ready")
def test_checkpoints_are_removed_before_another_sweep_can_begin(monkeypatch):
    removed = []

    def remove(folder: Path, **_: object) -> None:
        with pytest.raises(InvalidInput, match="another sweep of this table is running"), table_lock("small"):
            pass
        removed.append(folder)

    monkeypatch.setattr("shutil.rmtree", remove)
    sweep("small")
    assert removed[-1] == checkpoints_of("small")


@pytest.mark.usefixtures("ready")
def test_a_damaged_line_of_the_ledger_is_reported_and_ignored(caplog):
    Path(".sweeps/ledger").mkdir(parents=True)
    Path(".sweeps/ledger/small.jsonl").write_text('{"key": "abc", "metr')
    sweep("small")
    assert "ledger: .sweeps/ledger/small.jsonl:1: not a record" in caplog.text


def test_a_cell_without_any_result_has_no_metric(ledger):
    scheduler = scheduler_of(ledger)
    while trial := scheduler.next():
        scheduler.fail(trial, "ValueError: no")
    Path("data/manifests").mkdir(parents=True)
    Path("data/manifests/small.json").write_text('{"datasets": {}}')
    write("small", load_table("small"), Subset(), scheduler, ledger, SOURCES, seconds=1.0)
    assert json.loads(Path("results/small/metrics.json").read_text()) == {"table": "small"}
