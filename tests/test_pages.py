"""The pages that are made of the published results: one per paper, and the checklists."""

from __future__ import annotations

import re
from dataclasses import replace

import msgspec
import pytest

from docs.checklists import checklists
from docs.paper_pages import paper_pages
from docs.published_runs import cost, published_runs
from pfl.core.errors import InvalidInput
from pipeline.evidence.answered_claims import AnsweredClaim, answered_claims
from pipeline.report.formats import cell
from pipeline.spec.claims import Finding
from pipeline.spec.papers import paper_names
from pipeline.spec.paths import REPORTS
from pipeline.store.ledger import PUBLISHED
from tests.pipeline.running import csv_lines
from tests.repository import ROOT
from tests.test_docs import anchors


@pytest.fixture(scope="module", autouse=True)
def _in_the_root():
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(ROOT)
        yield


@pytest.fixture(scope="module")
def pages(_in_the_root) -> dict[str, str]:
    return paper_pages()


def sections(page: str) -> dict[str, str]:
    """The text below each heading of the second level."""
    _, *parts = re.split(r"^## (.*)$", page, flags=re.M)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_each_paper_has_a_page_on_which_each_of_its_claims_stands_once(pages):
    assert list(pages) == paper_names()
    for claim in answered_claims():
        place = f"{claim.kind.title()} {claim.name}, {cell(claim.source)}"
        row = f"| {cell(claim.claim)} | {place} | {claim.ours.words} |"
        assert pages[claim.paper].count(row) == 1
        (section,) = (name for name, text in sections(pages[claim.paper]).items() if row in text)
        if claim.ours.answer in ("confirmed", "refuted", "open"):
            expected = {"confirmed": "What holds", "refuted": "What does not hold", "open": "What is open"}
            assert section == expected[claim.ours.answer]
        else:
            held, run = claim.ours.held
            failed = run - held - claim.ours.undecided
            assert section == (
                "What does not hold" if failed else "What holds" if held == run else "What is open"
            )


def test_a_claim_that_is_undecided_in_some_columns_and_refuted_in_none_is_open(monkeypatch):
    def claim(held: int, undecided: int) -> AnsweredClaim:
        ours = Finding("in part", "", (held, 2), None, undecided)
        source = f"{held} held, {undecided} undecided"
        return AnsweredClaim("pfedsim", "table", "pfedsim-table6", "best", source, None, ours, None, ())

    claims = [claim(2, 0), claim(1, 1), claim(1, 0)]
    monkeypatch.setattr("docs.paper_pages.answered_claims", lambda: claims)
    text = sections(paper_pages()["pfedsim"])
    for shown, section in zip(claims, ("What holds", "What is open", "What does not hold"), strict=True):
        assert shown.source in text[section]


def test_the_cost_of_a_table_is_that_of_the_runs_behind_its_report(pages):
    line = next(line for line in pages["pfedsim"].splitlines() if "| `pfedsim-table6` |" in line)
    keys = {
        key for row in csv_lines(ROOT / REPORTS / "pfedsim-table6/table.csv") for key in row["keys"].split()
    }
    runs = published_runs()
    assert f"| {len(keys)} | {cost(runs[key] for key in keys)} |" in line


def test_core_hours_count_the_threads_of_all_workers():
    run = next(run for run in published_runs().values() if not run.hardware.gpu)
    hardware = replace(run.hardware, threads=2, workers=4)
    hour = replace(run.measured, wall_seconds=3600.0)
    assert cost([msgspec.structs.replace(run, measured=hour, hardware=hardware)]) == "8.0 core-hours"


def test_links_of_the_pages_lead_to_files_and_headings(pages):
    for page in (*pages.values(), checklists()):
        for link in re.findall(r"\]\(([^)]+)\)", page):
            file, _, anchor = link.partition("#")
            assert link.startswith("http") or (ROOT / file).is_file(), link
            assert link.startswith("http") or not anchor or anchor in anchors(ROOT / file), link


def test_every_item_of_the_checklists_is_answered_and_some_with_no():
    _, first, second = re.split("^## .*(?:Checklist|REFORMS)$", checklists(), flags=re.M)
    row = r"^\| (.+?) \| (yes|in part|no|not applicable) \| "
    answers = [re.findall(row, part, re.M) for part in (first, second)]
    assert [len(part) for part in answers] == [21, 32]
    assert {"1a", "8b"} <= {item.partition(".")[0] for item, _ in answers[1]}
    assert all("no" in {answer for _, answer in part} for part in answers)


def test_the_numbers_of_the_checklists_are_those_of_the_ledger():
    assert f"It has {len(published_runs()):,} runs" in checklists()


def test_the_checklists_link_each_table_with_the_keys_of_its_records():
    folder = f"{REPORTS}/pfedsim-table6"
    keys = {key for row in csv_lines(ROOT / folder / "table.csv") for key in row["keys"].split()}
    row = f"| [pfedsim-table6]({folder}/README.md) | [table.csv]({folder}/table.csv) | {len(keys)} |"
    assert row in checklists()
    assert keys <= published_runs().keys()


def test_a_damaged_line_of_the_ledger_is_named(tmp_path, monkeypatch):
    file = tmp_path / "rows.jsonl"
    lines = next((ROOT / PUBLISHED).glob("*.jsonl")).read_bytes().splitlines(keepends=True)
    file.write_bytes(lines[0] + b"\n" + lines[0][:99])
    monkeypatch.setattr("docs.published_runs.PUBLISHED", tmp_path)
    with pytest.raises(
        InvalidInput, match=re.escape(f"ledger: {file}:3 is not accepted; expected a record, as")
    ):
        published_runs()
