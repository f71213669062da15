"""All papers' claims in one file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from docs.published_runs import published_runs
from pipeline.evidence.answered_claims import write_claims
from pipeline.spec.papers import paper_names
from pipeline.store.ledger import PUBLISHED
from pipeline.store.records import read_heads
from tests.repository import ROOT


@pytest.fixture(scope="module")
def claims(tmp_path_factory) -> list[dict]:
    out = tmp_path_factory.mktemp("out") / "claims.json"
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(ROOT)
        count = write_claims(out)
    claims = json.loads(out.read_text())["claims"]
    assert count == len(claims)
    return claims


def test_every_paper_has_claims_with_a_source_and_an_answer(claims):
    assert {claim["paper"] for claim in claims} == set(paper_names())
    answers = {"confirmed", "refuted", "in part", "open"}
    assert all(claim["claim"] and claim["source"] and claim["answer"] in answers for claim in claims)


def test_an_answer_other_than_open_names_numbers_and_records_that_exist(claims):
    answered = [claim for claim in claims if claim["answer"] != "open"]
    assert answered
    known = {row.key for file in (ROOT / PUBLISHED).glob("*.jsonl") for _, row, _ in read_heads(file)}
    for claim in answered:
        assert (ROOT / claim["numbers"]).is_file()
        assert (ROOT / claim["report"]).is_file()
        assert claim["keys"] or claim["kind"] == "figure"
        assert set(claim["keys"]) <= known


def test_the_keys_of_a_figure_are_of_the_runs_that_it_was_drawn_from(claims, monkeypatch):
    monkeypatch.chdir(ROOT)
    runs, drawn = published_runs(), [claim for claim in claims if claim["kind"] == "figure" and claim["keys"]]
    assert {"fedcac-figure5", "fedsimsup-figure2", "spfl-figure6"} <= {claim["name"] for claim in drawn}
    for claim in drawn:
        seconds = sum(runs[key].measured.wall_seconds for key in claim["keys"])
        provenance = json.loads(Path(claim["numbers"]).with_suffix(".json").read_text())["provenance"]
        assert provenance["Time"] == [f"{seconds:.0f} s in {len(claim['keys'])} simulations"]


def test_a_claim_about_what_has_not_run_is_open_and_has_no_evidence(claims):
    unrun = [claim for claim in claims if claim["name"] == "pfedcs-table4"]
    assert unrun
    assert all((claim["answer"], claim["keys"], claim["report"]) == ("open", [], None) for claim in unrun)


def test_a_project_without_the_papers_figures_has_the_claims_of_its_tables(tmp_path, monkeypatch):
    paper = Path("papers/fedcac")
    shutil.copytree(ROOT / paper, tmp_path / paper, ignore=shutil.ignore_patterns("figures"))
    monkeypatch.chdir(tmp_path)
    assert write_claims(tmp_path / "claims.json") == 7
