"""Dependencies of a sweep's outcome, beside the files that dvc.yaml names."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from pfl.core.digests import Code
from pfl.core.hyper import Hyperparameter
from pfl.methods import METHODS
from pipeline.spec.table import load_table
from pipeline.store.ledger import Ledger
from pipeline.store.refusals import Refusal, refuse
from pipeline.sweep import dependencies as module
from pipeline.sweep.dependencies import code_digest, dependencies
from pipeline.sweep.why import why
from tests.pipeline.conftest import SOURCES, fake_run, finish, scheduler_of
from tests.pipeline.running import LOCAL
from tests.repository import ROOT, replace_text

SEARCH = "pipeline/sweep/search.py"

EDITS = {
    "the sampler's seed": (SEARCH, 'f"search {', 'f"searched {'),
    "the first trials": ("pipeline/algorithms/_starts.py", "STARTS = 9", "STARTS = 5"),
    "the share that is promoted": ("pipeline/sweep/budget.py", "REDUCTION = 3", "REDUCTION = 2"),
    "the ranking": ("pipeline/sweep/halving.py", "(-values[trial], trial)", "(values[trial], trial)"),
    "the seeds of the comparison": ("pipeline/spec/search_space.py", "COMPARED = 3", "COMPARED = 4"),
    "the mean over the seeds": ("pipeline/store/scores.py", "fmean(values)", "median(values)"),
    "the best evaluation": ("pfl/engine/metrics.py", "best_round = max(", "best_round = min("),
    "a cell's schedule": ("pipeline/spec/cells.py", "setting.schedule, row.schedule", "row.schedule"),
    "a cell's status": ("pipeline/store/results.py", 'return "partial" if', 'return "done" if'),
    "what is served": (
        "pipeline/store/ledger.py",
        "next(filter(accepts, records), None)",
        "next(records, None)",
    ),
    "what a method reports": (
        "pfl/methods/fedper.py",
        "class FedPer(Method):\n",
        "class FedPer(Method):\n    headline = 'post_local'\n",
    ),
}


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """A copy of the packages."""
    folder = tmp_path_factory.mktemp("copy")
    for package in ("pfl", "pipeline"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def digest(folder: Path) -> str:
    modules = ["pfl.methods.fedper", "pipeline.algorithms.tpe"]
    return code_digest(Code(["pipeline"], roots=[folder]), modules)


@pytest.mark.parametrize(("file", "old", "new"), EDITS.values(), ids=list(EDITS))
def test_an_edit_of_what_decides_a_sweep_changes_the_digest_of_its_code(copy, file, old, new):
    before = digest(copy)
    content = replace_text(copy / file, old, new)
    assert digest(copy) != before
    (copy / file).write_text(content)
    assert digest(copy) == before


def test_comments_formatting_and_what_only_shows_do_not_change_the_digest_of_its_code(copy):
    before = digest(copy)
    for file in {file for file, _, _ in EDITS.values()}:
        content = (copy / file).read_text()
        (copy / file).write_text(
            content.replace('"""\n\nfrom', ' And more."""\n\n# A comment.\nfrom', 1) + "\n\n"
        )
    for file in ("pipeline/report/plots.py", "pipeline/sweep/display.py", "pipeline/cli/__init__.py"):
        (copy / file).write_text("x = 1\n")
    assert digest(copy) == before


@pytest.mark.usefixtures("project")
def test_a_method_s_search_range_counts_where_it_is_searched(monkeypatch, edit):
    def content() -> dict:
        return json.loads(json.dumps(dependencies("small", load_table("small"), Ledger(SOURCES))))

    def widened(_: type) -> dict[str, Hyperparameter]:
        return {"mu": Hyperparameter("mu", low=0.0, search=(0.5, 0.6))}

    before = content()
    assert before["ranges"]["dir/fedprox"]["lr"][:2] == [[0.001, 0.3], True]
    with monkeypatch.context() as patch:
        patch.setattr(METHODS["fedprox"], "declarations", classmethod(widened))
        after = content()
    assert {name for name in before if before[name] != after[name]} == {"ranges"}
    assert {cell for cell in before["ranges"] if before["ranges"][cell] != after["ranges"][cell]} == {
        "dir/fedprox",
        "two/fedprox",
    }
    monkeypatch.setattr(module, "version", lambda name: f"{name} 99")
    assert content()["optuna"] == "optuna 99"
    edit("search: {trials: 4}\n", "")
    assert (content()["ranges"], content()["optuna"]) == ({}, None)


@pytest.mark.usefixtures("project")
def test_a_row_that_is_damaged_or_refused_counts(ledger):
    row = ledger.append(fake_run(scheduler_of(ledger).next())[0])
    before = dependencies("small", load_table("small"), Ledger(SOURCES))
    line = LOCAL.read_bytes()
    refuse([Refusal("small", row.cell, "0", row.key, json.loads(line)["checksum"], "off by 3 points")])
    refused = dependencies("small", load_table("small"), Ledger(SOURCES))
    assert {name for name in before if before[name] != refused[name]} == {"refused"}
    LOCAL.write_bytes(line.replace(b'"pooled":8', b'"pooled":9'))
    damaged = dependencies("small", load_table("small"), Ledger(SOURCES))
    assert {name for name in before if before[name] != damaged[name]} == {"damaged"}


@pytest.mark.usefixtures("project")
def test_where_the_file_is_the_same_no_trial_is_pending():
    finish(scheduler_of(Ledger(SOURCES)))
    before = dependencies("small", load_table("small"), Ledger(SOURCES))
    ledger = Ledger(SOURCES)
    assert all(re.search(": in the ledger$", reason) for reason in why(scheduler_of(ledger)))
    assert dependencies("small", load_table("small"), ledger) == before
