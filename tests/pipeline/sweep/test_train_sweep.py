"""The sweep stage around Ray Tune: what it writes, when it refuses, how it ends."""

from __future__ import annotations

import dataclasses
import json
import re
import signal
import subprocess
from pathlib import Path

import pytest

from pfl.core.errors import InvalidInput
from pipeline.spec.table import Subset, load_table
from pipeline.store.results import load_results, metrics_of
from pipeline.store.workspace import checkpoints_of, table_lock
from pipeline.sweep.cluster import Watch
from pipeline.sweep.collection import collect
from pipeline.sweep.outputs import outcome, write
from pipeline.sweep.scheduler import Scheduler
from pipeline.sweep.train_sweep import sweep
from pipeline.trackers import TRACKERS
from tests.command import pfl
from tests.pipeline.conftest import SOURCES, fake_run, finish, scheduler_of
from tests.pipeline.running import results
from tests.pipeline.sweep.test_models import run_with_models
from tests.repository import ROOT
from tests.test_docs import blocks

pytestmark = pytest.mark.usefixtures("project", "ran")


def run_with(monkeypatch: pytest.MonkeyPatch, run) -> None:
    monkeypatch.setattr("pipeline.sweep.cluster.run", run)


def fail_first(scheduler: Scheduler, *_: object) -> None:
    """Let the first trial fail and the others run."""
    scheduler.fail(scheduler.next(), "ValueError: no")
    finish(scheduler)


def test_a_sweep_writes_results_and_metrics(project):
    sweep("small")
    written = results()
    assert [cell.status for cell in load_results("small").cells] == ["done"] * 4
    assert (written["trials_run"], written["trials_from_ledger"]) == (48, 0)
    assert written["config"]["methods"][1]["params"] == {"mu": 0.1}
    files = ("results/small/rows.jsonl", ".sweeps/ledger/small.jsonl")
    rows = [(project / file).read_bytes() for file in files]
    assert set(rows[0].splitlines()) == set(rows[1].splitlines())
    assert '"accuracy":' not in (project / "results/small/results.json").read_text()
    metrics = json.loads((project / "results/small/metrics.json").read_text())
    assert list(metrics) == ["table", "dir/fedavg", "dir/fedprox", "two/fedavg", "two/fedprox"]


PUSH = "use `dvc push` while params.yaml selects the table"


@pytest.mark.parametrize(
    ("dirty", "ignored", "share"),
    [
        (False, "", f"commit results/ledger/small.jsonl, or {PUSH}"),
        (False, "small.jsonl", f"{PUSH}; git ignores results/ledger/small.jsonl"),
        (True, "", f"{PUSH}; results/ledger/ gets no records of uncommitted files"),
    ],
)
def test_a_sweep_says_how_new_records_get_to_others(dirty, ignored, share, project, capsys, monkeypatch):
    subprocess.run(["git", "init", "-q"], check=True)
    (project / ".gitignore").write_text(ignored)
    sources = dataclasses.replace(SOURCES, dirty=dirty)
    monkeypatch.setattr("pipeline.sweep.train_sweep.current_sources", lambda _: sources)
    sweep("small")
    assert capsys.readouterr().out.splitlines()[-1] == f"small: to share the results, {share}"


def test_a_sweep_of_a_finished_table_does_not_start_ray(monkeypatch, capsys):
    sweep("small")
    before = results()["cells"]
    run_with(monkeypatch, lambda *_: pytest.fail("Ray was started"))
    sweep("small")
    assert capsys.readouterr().out.endswith("0 runs computed, 48 from the ledger; see results/small/\n")
    assert results()["cells"] == before


def test_a_sweep_refuses_a_precision_that_this_machine_has_not_before_a_trial_runs(edit, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr("torch.cpu._is_avx512_bf16_supported", lambda: False)
    run_with(monkeypatch, lambda *_: pytest.fail("a trial has run"))
    edit("mu: 0.1}", "mu: 0.1}, schedule: {precision: bf16}")
    with pytest.raises(InvalidInput, match="precision: bf16 is not accepted; expected fp32"):
        sweep("small")


def test_a_sweep_says_first_how_much_there_is_to_run(capsys):
    sweep("small")
    first = capsys.readouterr().out.splitlines()[0]
    assert re.fullmatch(r"small: about 64 runs; on this machine, .* core-hours\), 19 MB of disk", first)


def test_a_sweep_whose_models_cannot_be_written_keeps_its_results_and_fails(edit, monkeypatch):
    edit("search:", "keep: models\nsearch:")
    assert re.fullmatch(
        r"the models of \d+ runs could not be written; the next `dvc repro` retries them", sweep("small")
    )
    assert [cell.status for cell in load_results("small").cells] == ["done"] * 4
    run_with(monkeypatch, lambda scheduler, *_: finish(scheduler, run_with_models))
    assert sweep("small") == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_sweep_keeps_what_is_done_and_says_how_to_go_on(project, monkeypatch, capsys, number):
    def interrupted(scheduler: Scheduler, watch: Watch) -> None:
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
    assert len((project / "results/ledger/small.jsonl").read_text().splitlines()) == 5
    run_with(monkeypatch, lambda scheduler, *_: finish(scheduler))
    sweep("small")
    assert (results()["trials_run"], results()["trials_from_ledger"]) == (43, 5)


def test_a_cause_of_many_failures_is_told_once(monkeypatch, capsys):
    def failing(scheduler: Scheduler, *_: object) -> None:
        while trial := scheduler.next():
            scheduler.fail(trial, "ValueError: no")

    run_with(monkeypatch, failing)
    sweep("small")
    output = capsys.readouterr().out
    causes = "final, seed 0 and final, seed 1 and search, seed 1000 (4 runs): ValueError: no"
    assert f"dir/fedprox: failed ({causes})" in output


def test_a_stage_whose_trials_failed_writes_the_report_and_ends_with_an_error(monkeypatch):
    run_with(monkeypatch, fail_first)
    done = pfl("stage", "sweep", "small")
    assert done.returncode == 1
    again = "of 48 runs failed; the next `dvc repro` retries them"
    assert done.stderr.splitlines()[-1] == f"pfl: error: small: 1 {again}"
    assert "dir/fedavg: partial (final, seed 0: ValueError: no)" in done.stdout
    assert [cell.status for cell in load_results("small").cells] == ["partial", *["done"] * 3]
    assert f"1 {again}." in Path("results/small/report/README.md").read_text()
    run_with(monkeypatch, lambda scheduler, *_: finish(scheduler))
    assert pfl("stage", "sweep", "small").returncode == 0


def test_the_environment_is_checked_before_ray_starts(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "nowhere")
    run_with(monkeypatch, lambda *_: pytest.fail("Ray was started"))
    with pytest.raises(InvalidInput, match="RAY_ADDRESS"):
        sweep("small")


def test_a_lock_that_cannot_be_written_is_one_line():
    Path(".sweeps").touch()
    with pytest.raises(InvalidInput, match=r"lock-small is not accepted; expected a file that can be writt"):
        collect("small")


@pytest.mark.usefixtures("without_locks")
def test_a_table_is_computed_on_a_file_system_without_locks():
    with table_lock("small"):
        assert "process" in Path(".sweeps/lock-small").read_text()


def test_checkpoints_are_removed_before_another_sweep_can_begin(monkeypatch):
    removed = []

    def remove(folder: Path, **_: object) -> None:
        with pytest.raises(InvalidInput, match="small: in use by another command"), table_lock("small"):
            pass
        removed.append(folder)

    monkeypatch.setattr("shutil.rmtree", remove)
    sweep("small")
    assert removed[-1] == checkpoints_of("small")


def test_a_cell_without_any_result_has_no_metric(ledger):
    scheduler = scheduler_of(ledger)
    while trial := scheduler.next():
        scheduler.fail(trial, "ValueError: no")
    write(outcome("small", load_table("small"), Subset(), scheduler, {}), scheduler)
    assert json.loads(Path("results/small/metrics.json").read_text()) == {"table": "small"}


def test_the_tracker_of_the_documents_receives_every_cell_in_a_sweep_and_afterwards(monkeypatch):
    names: dict = {}
    (example,) = blocks(ROOT / "docs/cluster.md", "python")
    exec(example, names)
    monkeypatch.setitem(TRACKERS._added, "lines", names["Lines"])
    monkeypatch.setenv("PFL_TRACKER", "lines")
    sweep("small")
    file = Path("small.jsonl")
    lines = sorted(file.read_text().splitlines())
    assert [json.loads(line)["cell"] for line in lines] == list(metrics_of(load_results("small")))[1:]
    assert all(json.loads(line)["accuracy"] > 0 for line in lines)
    file.unlink()
    assert pfl("track", "small").stdout == "runs entered: 48\n"
    assert sorted(file.read_text().splitlines()) == lines
