"""The whole pipeline under DVC, in a clone of its own: what runs, and what does not run again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import textwrap
from collections.abc import Callable, Iterator
from contextlib import chdir
from pathlib import Path

import pytest

from pfl.engine.metrics import Metrics
from pipeline.store.results import load_results
from tests.pipeline.running import BIN, csv_lines, environment_of, json_lines
from tests.pipeline.sweep.test_dependencies import EDITS
from tests.repository import commit, copy_files, replace_text
from tests.test_fingerprint import METHOD
from tests.test_registry import SHALLOW, install

pytestmark = pytest.mark.slow

TABLE = """\
title: A table for the end-to-end test
dataset: digits
model: cnn_digits
clients: 8
schedule: {participation: 0.5, rounds: 2, epochs: 1, batch_size: 32, lr: 0.1}
settings:
  dir: "dirichlet:0.5"
methods:
- fedavg
- {method: fedprox, params: {mu: 0.1}, search: {trials: 3}}
seeds: [0, 1]
evaluation: {every: 1}
"""
PARAMS = "tables: [tiny]\nsubset: {settings: [], methods: [], seeds: []}\n"
RUNGS, COMPARISON, FINAL = 3 + 2, 2 * 3, 2  # runs of the searched cell; the other one has FINAL alone

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This repository's files as they are, in a repository of their own with a tiny table."""
    folder = tmp_path_factory.mktemp("clone")
    copy_files(folder, "dvc.lock", "reports/", "results/")
    (folder / "tables/tiny.yaml").write_text(TABLE)
    (folder / "params.yaml").write_text(PARAMS)
    commit(folder)
    return folder


@pytest.fixture(scope="module")
def run(clone: Path) -> Run:
    """Runs a command in the clone, with the clone's code."""
    environment = environment_of(clone)

    def in_clone(
        *command: str, check: bool = True, cwd: Path = clone, **more: str
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=environment | more,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0 or not check, done.stdout
        return done

    return in_clone


def rows(clone: Path) -> dict[str, dict]:
    """The ledger's rows by key."""
    return {row["key"]: row for row in json_lines(clone / ".sweeps/ledger/tiny.jsonl")}


def results(clone: Path) -> dict:
    return json.loads((clone / "results/tiny/results.json").read_text())


def test_the_life_of_a_table(clone, run):
    """One test, as each step starts where the last one ended."""
    run("dvc", "repro")
    first = rows(clone)
    _, searched = results(clone)["cells"]
    compared = COMPARISON * len(searched["selection"]["comparisons"])
    assert len(first) == FINAL + RUNGS + compared + FINAL * (1 + (searched["selected"]["number"] != 0))
    assert not any(row["dirty"] for row in first.values())
    assert (clone / "results/tiny/report/index.html").stat().st_size > 10_000
    published = clone / "results/ledger/tiny.jsonl"
    assert len(published.read_text().splitlines()) == len(first)
    shown = run("dvc", "metrics", "show").stdout
    assert "fedprox" in shown
    assert "dir/fedprox" in shown
    run("dvc", "plots", "show")
    page = (clone / "dvc_plots/index.html").read_text()
    assert "convergence.svg" in page
    assert "http" not in page
    assert "tiny" in run("dvc", "exp", "show", "--csv").stdout
    commit(clone)
    looks_outside = {"check", "download@tiny"}
    assert json.loads(run("dvc", "status", "--json").stdout).keys() == looks_outside

    again = run("dvc", "repro").stdout
    for stage in ("partition", "train-sweep", "report"):
        assert f"Stage '{stage}@tiny' didn't change, skipping" in again
    assert rows(clone) == first

    replace_text(clone / "tables/tiny.yaml", "- fedavg", "- {method: fedavg, schedule: {lr: 0.2}}")
    run("dvc", "exp", "run", "--name", "second")
    second = rows(clone)
    assert first.items() < second.items()
    assert {second[key]["method"] for key in second.keys() - first.keys()} == {"fedavg"}

    replace_text(clone / "tables/tiny.yaml", "lr: 0.2}", "lr: 0.4}")
    run("dvc", "exp", "run", "--name", "third")
    third = rows(clone)
    run("dvc", "exp", "apply", "second")
    assert len(published.read_text().splitlines()) < len(third), "apply was to shorten the published file"
    replace_text(clone / "tables/tiny.yaml", "lr: 0.2}", "lr: 0.4}")
    run("dvc", "repro", "--force")
    assert rows(clone) == third
    assert results(clone)["trials_run"] == 0
    assert {row["key"] for row in json_lines(published)} == third.keys()

    replace_text(clone / "pipeline/sweep/train_sweep.py", "computed, {", "computed by edited code, {")
    said = run("dvc", "exp", "run", "--temp", "--name", "part", "-S", "subset.methods=[fedprox]").stdout
    assert "tiny: 1 cell," in said
    assert "computed by edited code" in said
    assert rows(clone) == third
    run("git", "checkout", "--quiet", "--", "pipeline", "tables")


PLUGINS = """\
extends: tiny
title: A method and a network of somebody else's
model: shallow
methods: [fedavg, halfway]
seeds: [0]
"""


@pytest.fixture
def plugins_gone_afterwards(clone: Path) -> Iterator[None]:
    """Without its plugins the plugins' table is an error, in which every later `dvc repro` would end."""
    yield
    (clone / "tables/plugins.yaml").unlink()
    (clone / "params.yaml").write_text(PARAMS)
    subprocess.run(["git", "checkout", "--quiet", "--", "pfl", "pipeline"], cwd=clone, check=True)


@pytest.mark.usefixtures("plugins_gone_afterwards")
def test_an_edit_that_moves_numbers_runs_what_it_concerns_and_no_other_edit_runs_anything(clone, run):
    """One test, as each step starts where the last one ended."""
    install(clone / "plugins", "pfl.models", "shallow", SHALLOW)
    shutil.copytree(clone / "plugins/site/mine", clone / "plugins/site/network")
    points = "[pfl.models]\nshallow = network.shallow\n[pfl.methods]\nhalfway = mine.halfway\n"
    (clone / "plugins/site/mine-1.0.dist-info/entry_points.txt").write_text(points)
    (clone / "plugins/site/mine/halfway.py").write_text(textwrap.dedent(METHOD).replace("group()", '"head"'))
    replace_text(clone / "plugins/site/mine/halfway.py", "        from helping import group\n", "")
    (clone / "tables/plugins.yaml").write_text(PLUGINS)
    (clone / "params.yaml").write_text(PARAMS.replace("[tiny]", "[plugins]"))
    commit(clone)
    path = {"PYTHONPATH": os.pathsep.join(map(str, (clone, clone / "plugins/site")))}
    ran, known = "Running stage 'train-sweep@plugins'", "Stage 'train-sweep@plugins' didn't change, skipping"

    assert "plugins: 2 runs computed, 0 from the ledger" in run("dvc", "repro", **path).stdout
    assert "plugin mine 1.0" in (clone / "results/plugins/report/README.md").read_text()

    replace_text(clone / "pfl/engine/groups.py", '"""Parameter groups', '"""Groups of parameters')
    replace_text(clone / "plugins/site/mine/halfway.py", '"""Halfway', '"""In the middle')
    replace_text(clone / "pipeline/report/templates/README.md.j2", "\n# ", "\n#  ")
    said = run("dvc", "repro", **path).stdout
    assert known in said
    assert "Running stage 'report@plugins'" in said

    replace_text(clone / "plugins/site/mine/halfway.py", '"head"', '"extractor"')
    reasons = run("pfl", "ledger", "why", "plugins", **path).stdout
    assert "1 run of dir/fedavg: in the ledger" in reasons
    assert "halfway changed, and behaviours.json does not list it" in reasons
    said = run("dvc", "repro", **path).stdout
    assert ran in said
    assert "plugins: 1 run computed, 1 from the ledger" in said

    replace_text(clone / "plugins/site/network/shallow.py", "16", "24")
    assert "plugins: 2 runs computed, 0 from the ledger" in run("dvc", "repro", **path).stdout


@pytest.fixture(scope="module")
def reproduced(clone: Path, run: Run) -> None:
    """The clone's table has run, and everything is committed."""
    run("dvc", "repro")
    commit(clone)


@pytest.mark.usefixtures("reproduced")
def test_a_colleague_gets_the_results_from_a_remote_and_computes_nothing(clone, run, tmp_path):
    run("dvc", "remote", "add", "--default", "--force", "store", str(tmp_path / "store"))
    commit(clone)
    run("dvc", "push")
    colleague = tmp_path / "colleague"
    run("git", "clone", "--quiet", str(clone), str(colleague))
    elsewhere = {"cwd": colleague, "PYTHONPATH": str(colleague)}
    assert not (colleague / "results/tiny/results.json").exists()
    run("dvc", "pull", **elsewhere)
    assert results(colleague) == results(clone)
    assert accuracies(colleague) == accuracies(clone)
    again = run("dvc", "repro", **elsewhere).stdout
    for stage in ("partition", "train-sweep", "report"):
        assert f"Stage '{stage}@tiny' didn't change, skipping" in again
    assert (colleague / "results/tiny/report/index.html").exists()
    assert not (colleague / ".sweeps/ledger").exists()


@pytest.mark.usefixtures("reproduced")
def test_a_report_s_commands_compute_it_anew_and_take_nothing_from_the_ledger(clone, run):
    before = (clone / "results/ledger/tiny.jsonl").read_bytes()
    _, shown = (clone / "results/tiny/report/README.md").read_text().split("```sh\n")
    commands = [line for line in shown.partition("```")[0].splitlines() if not line.startswith("make .venv")]
    anew = clone.parent / "anew"
    run("sh", "-ec", "\n".join(commands), PYTHONPATH=str(anew))
    assert results(anew)["trials_run"] == len(rows(anew)) > 0
    assert results(anew)["trials_from_ledger"] == 0
    assert accuracies(anew) == accuracies(clone)
    assert (clone / "results/ledger/tiny.jsonl").read_bytes() == before


def accuracies(folder: Path) -> list[Metrics]:
    """What each cell's pinned configuration reached, seed by seed."""
    with chdir(folder):
        return [row.metrics for cell in load_results("tiny").cells for row in cell.pinned.successes]


def test_dvc_repro_stops_at_a_bad_table_before_any_other_stage(clone, run):
    (clone / "tables/broken.yaml").write_text("dataset: digits\n")
    (clone / "params.yaml").write_text(PARAMS.replace("[tiny]", "[tiny, broken]"))
    try:
        done = run("dvc", "repro", check=False)
    finally:
        (clone / "tables/broken.yaml").unlink()
        (clone / "params.yaml").write_text(PARAMS)
    assert done.returncode != 0
    assert "tables/broken.yaml: title: nothing is not accepted; expected a value" in done.stdout
    assert "Running stage 'download" not in done.stdout


def test_dvc_repro_without_the_environment_says_so_in_a_line(run, tmp_path):
    for name in ("sh", "git"):
        (tmp_path / name).symlink_to(Path("/usr/bin") / name)
    done = run(str(BIN / "dvc"), "repro", check=False, PATH=str(tmp_path), SHELL="/bin/sh")
    assert done.returncode != 0
    assert "the environment is not activated" in done.stdout
    assert "Running stage 'download" not in done.stdout


@pytest.mark.usefixtures("reproduced")
def test_an_edit_of_the_mean_over_the_seeds_runs_the_sweep_and_the_report_has_its_metrics(clone, run):
    file, old, new = EDITS["the mean over the seeds"]
    content = replace_text(clone / file, old, new)
    try:
        assert "Running stage 'train-sweep@tiny'" in run("dvc", "repro", "report@tiny").stdout
    finally:
        (clone / file).write_text(content)
    metrics = json.loads((clone / "results/tiny/metrics.json").read_text())
    table = csv_lines(clone / "results/tiny/report/table.csv")
    pinned = [row for row in table if row["configuration"] == "pinned"]
    shown = {f"{row['setting']}/{row['row']}": row["mean"] for row in pinned}
    for cell in ("dir/fedavg", "dir/fedprox"):
        assert float(shown[cell]) == pytest.approx(metrics[cell], abs=0.006)
