"""What a report says of the paper: answer, verdicts, rankings, claims, findings."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import numpy as np
import pytest

from pipeline.report import formats
from pipeline.report.agreement import (
    FIRM,
    RESAMPLES,
    CellOutcome,
    Ranking,
    Tally,
    answer,
    claims,
    coverage,
    outcomes,
    rankings,
    resamples,
    tally,
    widening,
)
from pipeline.report.verdicts import Verdict
from pipeline.spec.claims import Finding
from pipeline.spec.paths import PAPERS, TABLES
from pipeline.spec.published import published_cells
from tests.pipeline.fake_results import diverge, fail, fake_results, reach, results_by_row, summary_of
from tests.pipeline.report.conftest import PUBLISHED, line_of, readme_of, realistic, report_of, small
from tests.pipeline.running import csv_lines
from tests.repository import ROOT


def test_the_answer_comes_before_the_table(readme, page):
    answer = (
        "Of 4 numbers, 0 are reproduced, 2 higher and 2 lower. The ranking of the methods agrees with "
        "Kendall's τ = 0.67; of 2 claims, 1 refuted (fewer than 3 seeds), 1 open."
    )
    assert f"**{answer}**" in readme.partition("| Method |")[0]
    assert answer in unescape(page).partition("<table")[0]


def test_claims_with_one_answer_are_counted_too():
    results = fake_results(methods=3, settings=1, seeds=1)
    claim = {"says": "best", "place": "Section 5", "kind": "worst", "row": "pfedsim"}
    results["config"]["claims"] = [claim] * 3
    summary = summary_of(results)
    said = "Of 3 claims, 3 refuted (one seed)."
    assert answer(summary, Tally({}, 0), [], claims(summary)).endswith(said)


def test_cells_and_simulations_are_counted_and_provisional_verdicts_named_before_the_table(readme, page):
    said = "4 of 4 published cells were run, from 8 simulations. 4 of 4 verdicts are provisional"
    assert said in readme.partition("| Method |")[0]
    assert said in page.partition("<table")[0]


def test_cells_that_share_a_simulation_count_it_once():
    results = fake_results(methods=3, settings=1, seeds=1)
    cells = [cell["pinned"] for cell in results["cells"]]
    cells[1]["records"] = cells[0]["records"]
    assert "3 cells were run, from 2 simulations." in readme_of(results)


def test_a_simulation_behind_several_numbers_counts_once_and_incomparable_ones_by_themselves():
    results = fake_results(methods=4, seeds=1, settings=1, published={"paper": "pfedsim", "table": "3"})
    results["config"]["settings"]["cifar10-0.1"]["published"] = PUBLISHED
    results["config"]["published"]["incomparable"] = [{"rows": ["fedprox"], "why": "Other clients."}]
    cells = [cell["pinned"] for cell in results["cells"]]
    cells[1]["records"] = cells[0]["records"]
    counted = tally(summary_of(results))
    assert (counted.judged, counted.shared, counted.count("not comparable")) == (2, 1, 1)
    assert (counted.total, counted.run, counted.provisional) == (4, 4, 2)
    others = "1 cannot be compared, 1 shares a simulation with a number that is counted."
    assert answer(summary_of(results), counted, [], []).endswith(f"Of the others that have run, {others}")


def test_of_the_numbers_of_one_simulation_that_over_all_clients_is_counted():
    first, second, *_ = published_cells("pfedsim")
    of_a_client = CellOutcome(first, Verdict("reproduced"), 80.0, frozenset("a"), whole=False)
    average = CellOutcome(second, Verdict("lower"), 70.0, frozenset("a"))
    counted = Tally.of([of_a_client, average])
    assert (counted.count("lower"), counted.count("reproduced"), counted.shared) == (1, 0, 1)


def test_an_average_counts_no_more_than_the_columns_behind_it():
    results = fake_results(methods=2, seeds=1, settings=1, published={"paper": "pfedsim", "table": "3"})
    results["config"]["settings"]["cifar10-0.1"]["published"] = PUBLISHED
    results["config"]["average"] = {"published": PUBLISHED | {"partition_arg": "alpha=0.5"}}
    counted = tally(summary_of(results))
    assert (counted.judged, counted.shared) == (2, 2)


def test_an_average_over_a_diverged_seed_is_judged_and_over_a_diverged_cell_has_diverged():
    results = fake_results(methods=2, seeds=3, settings=2, published={"paper": "pfedsim", "table": "3"})
    results["config"]["average"] = {"published": PUBLISHED}
    diverge(results["cells"][0]["pinned"])
    counted = tally(summary_of(results))
    assert (counted.run, counted.judged, counted.total) == (2, 2, 2)
    for seed in (1, 2):
        diverge(results["cells"][0]["pinned"], seed)
    counted = tally(summary_of(results))
    assert (counted.run, counted.judged, counted.count("diverged")) == (2, 1, 1)


def test_rows_that_cannot_be_compared_are_named_with_the_reason():
    results = realistic()
    results["config"]["published"]["incomparable"] = [{"rows": ["local"], "why": "Other clients."}]
    folder = report_of(results)
    readme = (folder / "README.md").read_text()
    assert "Not comparable: Local. Other clients." in readme
    assert line_of(readme, "Local")[0].endswith("<br><sub>84.30 ± 0.81 (−3.30)</sub>")
    assert "Not comparable: Local. Other clients." in (folder / "index.html").read_text()


def test_one_cell_was_run():
    results = fake_results(methods=1, settings=1, seeds=1)
    assert coverage(summary_of(results), Tally({}, 0)) == "1 cell was run, from 1 simulation."
    said = coverage(summary_of(results), Tally({"higher": 1, "not run": 1}, 1))
    assert said.startswith("1 of 2 published cells was run, from 1 simulation. 1 of 1 verdict is provisional")


def test_a_cell_that_diverged_was_run_and_is_said_to_have_diverged():
    results = fake_results(methods=2, settings=1, seeds=1)
    diverge(results["cells"][0]["pinned"])
    readme = readme_of(results)
    assert "2 cells were run, from 2 simulations." in readme
    assert line_of(readme, "Local") == ["*diverged*"]
    assert "Local, pinned configuration diverged: seed 0: diverged in round 3." in readme


def test_quantities_without_a_verdict_are_counted_as_ratios():
    summary = summary_of(realistic())
    counted = Tally({"ratio": 20}, provisional=0)
    assert answer(summary, counted, [], []) == "Numbers shown as ratios to the published ones: 20."


def test_the_answer_counts_cells_that_diverged_and_gives_the_range_of_the_agreements():
    summary = summary_of(realistic())
    counted = Tally({"reproduced": 1, "lower": 2, "diverged": 2}, provisional=0)
    ranked = [Ranking(-0.25, 4), Ranking(None, 2), Ranking(0.5, 4)]
    assert answer(summary, counted, ranked, []) == (
        "Of 3 numbers, 1 is reproduced, 0 higher and 2 lower. 2 of 5 cells diverged; the ranking of the "
        "methods agrees with Kendall's τ = −0.25 to 0.50."
    )


@pytest.mark.parametrize(
    ("seeds", "said"),
    [
        (None, "standard errors are not used, as the paper does not state its number of seeds."),
        (1, "standard errors are not used, as the paper has 1 seed."),
        (3, "The paper has 3 seeds."),
    ],
)
def test_the_rule_of_the_verdicts_names_the_seeds_of_the_paper(seeds, said):
    results = realistic()
    results["config"]["published"]["seeds"] = seeds
    folder = report_of(results)
    assert said in (folder / "README.md").read_text()
    assert said in (folder / "index.html").read_text()


def test_rows_that_share_a_printed_number_have_no_ranking():
    results = fake_results(methods=4, settings=1, seeds=1, published={"paper": "pfedsim", "table": "3"})
    results["config"]["settings"]["cifar10-0.1"]["published"] = PUBLISHED
    assert rankings(summary_of(results))
    results["config"]["methods"][1]["published"] = {"method": "local"}
    assert not rankings(summary_of(results))


def test_rows_that_share_a_simulation_are_one_in_a_ranking():
    results = fake_results(methods=5, settings=1, seeds=1, published={"paper": "pfedsim", "table": "3"})
    results["config"]["settings"]["cifar10-0.1"]["published"] = PUBLISHED
    cells = [cell["pinned"] for cell in results["cells"]]
    cells[0]["records"] = cells[1]["records"] = cells[3]["records"]
    results["config"]["methods"][0]["evaluation"] = {"clients": [0, 0]}
    (ranking,) = rankings(summary_of(results)).values()
    assert ranking.methods == 3


def test_the_agreement_of_the_rankings_is_below_each_column(readme):
    # Of the six pairs, one is the other way round: pFedSim is above Local in the paper.
    assert line_of(readme, "*Kendall's τ (methods)*") == ["0.67 (4)", ""]


def test_a_claim_stands_beside_what_it_is_worth_on_either_numbers(readme, folder):
    first, second = [line for line in readme.splitlines() if line.startswith("| “")]
    assert "“highest in all cases” (Section 5)" in first
    assert "**confirmed**" in first
    assert "**refuted (2 seeds)**: not in 1 of 1 column: in CIFAR-10, Dir(0.1), Local is" in first
    assert second.count("**open**") == 3
    answers = [(claim["published"], claim["ours"]) for claim in csv_lines(folder / "claims.csv")]
    assert answers == [("confirmed", "refuted"), ("open", "open")]


@pytest.mark.parametrize(
    ("local", "answer", "shown"),
    [
        ((69.0, 68.0, 69.0), "confirmed", "closest: Local in CIFAR-10, Dir(0.1), 1.33 away"),
        ((69.0, 68.0, 69.5), "open", "confirmed on the means (closest: Local"),
        ((69.0, 68.0, 72.0), "open", "confirmed on the means (closest: Local"),
        ((69.0, 71.0, 72.0), "open", "refuted on the means (not in 1 of 1 column"),
        ((71.0, 71.0, 72.0), "refuted", "Local is 1.33 above"),
    ],
)
def test_a_claim_is_decided_only_if_resamples_of_the_seeds_agree(local, answer, shown):
    (tested,) = claimed({"kind": "best"}, local=local, pfedsim=(70.0, 70.0, 70.0))
    assert tested.ours.answer == answer
    assert shown in tested.ours.shown


def claimed(*claims_: dict, **accuracies: tuple[float, ...]) -> list:
    """Claims about pFedSim in one column, with the given accuracies of each row by seed."""
    results = results_by_row(**accuracies)
    place = {"says": "best", "place": "here", "row": "pfedsim"}
    results["config"]["claims"] = [{**place, **claim} for claim in claims_]
    return claims(summary_of(results))


def test_the_seeds_of_the_cells_that_a_claim_compares_say_how_firm_its_answer_is():
    best = {"kind": "best", "among": ["local"]}
    accuracies = {"local": (69.0, 68.0, 72.0), "fedavg": (60.0,), "pfedsim": (70.0, 70.0, 70.0)}
    among, of_all = claimed(best, {"kind": "best"}, **accuracies)
    assert (among.ours.answer, among.ours.seeds) == ("open", None)
    assert re.search(r", but in only \d\d\.\d % of resamples$", among.ours.shown)
    assert (of_all.ours.answer, of_all.ours.seeds) == ("confirmed", 1)


def in_columns(settings: int, run: int, claim: dict, seeds: int = 3, **levels: float | np.ndarray) -> list:
    """A claim about a table of several columns of which the first few have run."""
    results = fake_results(methods=3, settings=settings, seeds=seeds)
    results["config"]["claims"] = [{"says": "best", "place": "here", "row": "pfedsim", **claim}]
    columns = list(results["config"]["settings"])
    results["cells"] = [cell for cell in results["cells"] if cell["setting"] in columns[:run]]
    for cell in results["cells"]:
        more = 5 if cell["row"] == "local" and cell["setting"] == columns[1] else 0
        reach(cell, *(levels[cell["row"]] + more + 0.1 * np.arange(seeds)).tolist())
    return claims(summary_of(results))


def test_a_claim_about_columns_that_have_not_run_says_in_how_many_of_the_others_it_holds():
    levels = {"local": 67.0, "fedavg": 60.0, "pfedsim": 70.0}
    (part,) = in_columns(3, 2, {"kind": "best"}, **levels)
    assert (part.ours.answer, part.ours.held) == ("in part", (1, 2))
    assert part.ours.words == "holds in 1 of 2 columns run"
    assert part.ours.shown == "not in CIFAR-10, Dir(0.5), Local is 2.00 above"
    (all_run,) = in_columns(2, 2, {"kind": "best"}, **levels)
    assert all_run.ours.words == "refuted"
    (single,) = in_columns(3, 1, {"kind": "best"}, seeds=1, **levels)
    assert single.ours.words == "holds in 1 of 1 column run (one seed)"
    (none,) = in_columns(3, 1, {"kind": "margin", "over": "mean", "at_least": 2.0}, **levels)
    assert none.ours.answer == "open"


def test_a_claim_does_not_fail_in_a_column_that_the_resamples_leave_undecided():
    levels = {"local": np.array([69.0, 68.0, 72.0]), "fedavg": 60.0, "pfedsim": 70.0}
    (single,) = in_columns(3, 1, {"kind": "best"}, **levels)
    assert single.ours.words == "holds in 0 of 1 column run, undecided in 1"
    (part,) = in_columns(3, 2, {"kind": "best"}, **levels)
    assert part.ours.words == "holds in 0 of 2 columns run, undecided in 1"
    assert outcomes([part.ours]) == "1 in part (in 0 of 2 columns run, undecided in 1)"
    (line,) = csv_lines(formats.claims([part]))
    assert line["undecided"] == "1"


def test_a_claim_about_a_row_that_diverged_with_some_seeds_is_open():
    results = results_by_row(local=(60.0,) * 5, fedavg=(61.0,) * 5, pfedsim=(70.0,) * 5)
    results["config"]["claims"] = [{"says": "best", "place": "Section 5", "kind": "best", "row": "pfedsim"}]
    diverge(results["cells"][2]["pinned"], seed=4)
    (tested,) = claims(summary_of(results))
    assert tested.ours == Finding("open", "no number of pFedSim in CIFAR-10, Dir(0.1)")


def test_a_resample_without_a_number_of_some_cell_does_not_count_against_a_claim():
    results = results_by_row(local=(90.0,) * 5, fedavg=(60.0,) * 5, pfedsim=(70.0,) * 5)
    results["config"]["claims"] = [{"says": "best", "place": "here", "kind": "best", "row": "pfedsim"}]
    local, fedavg, _ = (cell["pinned"] for cell in results["cells"])
    fail(local, 0, 1)
    fail(fedavg, 3, 4)
    (tested,) = claims(summary_of(results))
    assert tested.ours.answer == "refuted"


def test_a_trend_that_fails_in_the_only_pair_of_columns_run_is_a_sentence():
    higher, lower = ["cifar10-0.5", "cifar100-0.1"], ["cifar10-0.1", "cifar10-0.1"]
    trend = {"kind": "trend", "of": "margin", "higher": higher, "lower": lower}
    (part,) = in_columns(3, 2, trend, local=67.0, fedavg=60.0, pfedsim=70.0)
    assert part.ours.words == "holds in 0 of 1 column run"
    assert part.ours.shown == "pFedSim is ahead by −2.00 in CIFAR-10, Dir(0.5), +3.00 in CIFAR-10, Dir(0.1)"


@pytest.mark.parametrize(("local", "answer"), [(69.9, "confirmed"), (67.0, "confirmed"), (70.1, "refuted")])
def test_the_size_of_a_margin_has_the_tolerance_of_its_numbers_and_its_sign_has_none(local, answer):
    claim = {"kind": "margin", "among": ["local"], "at_least": 1.81, "at_most": 18.46}
    (tested,) = claimed(claim, local=(local,) * 3, fedavg=(60.0,) * 3, pfedsim=(70.0,) * 3)
    assert tested.ours.answer == answer
    far = {"kind": "margin", "among": ["local"], "at_least": 6.0}
    for gap, expected in ((4.1, "confirmed"), (3.9, "refuted")):
        (tested,) = claimed(far, local=(70 - gap,) * 3, fedavg=(60.0,) * 3, pfedsim=(70.0,) * 3)
        assert tested.ours.answer == expected


def test_all_resamples_of_few_seeds_are_enumerated():
    for count in (3, 5):
        drawn = list(resamples(range(count)))
        assert sum(weight for _, weight in drawn) == count ** (count - 1)
        assert all(sum(draw.values()) == count - 1 for draw, _ in drawn)
        assert len({tuple(sorted(draw.items())) for draw, _ in drawn}) == len(drawn)
    assert len(list(resamples(range(10)))) == RESAMPLES


@pytest.mark.parametrize("seeds", [3, 5])
def test_two_equal_methods_get_an_answer_in_a_tenth_of_all_cases(seeds):
    draws, weights = zip(*resamples(range(seeds)), strict=True)
    shares = np.array([[draw[seed] / (seeds - 1) for seed in range(seeds)] for draw in draws])
    gaps = np.random.default_rng(0).normal(size=(10_000, seeds))
    means = gaps.mean(1, keepdims=True)
    resampled = means + widening(seeds) * (gaps @ shares.T - means)
    agree = (resampled > 0) @ np.array(weights) / sum(weights)
    assert np.mean((agree >= FIRM) | (agree <= 1 - FIRM)) == pytest.approx(0.1, abs=0.02)


def test_the_share_of_the_resamples_is_exact():
    # Two draws of three seeds: the gaps 1, 0.5 and -2 have a widened mean of at least 0 in 4 of 9 resamples.
    (tested,) = claimed({"kind": "best"}, local=(69.0, 69.5, 72.0), pfedsim=(70.0, 70.0, 70.0))
    assert tested.ours.shown.endswith("but in only 55.6 % of resamples")


def test_findings_written_by_hand_are_part_of_the_report():
    TABLES.mkdir()
    (TABLES / "fake.md").write_text("FedAvg is *far* above, <b>and</b> this is why.\n")
    assert "## Findings\n\nFedAvg is *far* above" in small()
    page = Path("results/fake/report/index.html").read_text()
    assert "<p>FedAvg is <em>far</em> above, &lt;b&gt;and&lt;/b&gt; this is why.</p>" in page


FINDINGS = sorted([*(ROOT / TABLES).glob("*.md"), *(ROOT / PAPERS).glob("*/tables/*.md")])


@pytest.mark.parametrize("file", FINDINGS, ids=lambda file: file.stem)
def test_each_finding_has_three_lines_at_most_and_no_command(file):
    text = file.read_text()
    sections = re.split(r"^### .*$", text.partition("\n### Details\n")[0], flags=re.MULTILINE)
    findings = [
        finding
        for section in sections
        for finding in re.split(r"^- ", section.rstrip(), flags=re.MULTILINE)[1:]
    ]
    assert findings
    assert all(len(finding.splitlines()) <= 3 for finding in findings)
    assert all(len(line) <= 120 for line in text.splitlines())
    assert not re.search(r"`(pfl|dvc|python|git) ", text)


@pytest.mark.parametrize(("absent", "why"), [([], "Not run yet"), (["cinic10"], "Data not available")])
def test_columns_that_have_not_been_tried_are_named_with_the_reason_and_not_printed(absent, why):
    results = fake_results(methods=2, settings=2, seeds=1)
    results["config"]["settings"]["cifar10-0.5"]["dataset"] = "cinic10"
    results["cells"] = [cell for cell in results["cells"] if cell["setting"] == "cifar10-0.1"]
    results["manifest"]["absent"] = absent
    folder = report_of(results)
    readme = (folder / "README.md").read_text()
    assert "| Method | CIFAR-10, Dir(0.1) |" in readme
    assert f"{why}: CIFAR-10, Dir(0.5)." in readme
    assert f"{why}: CIFAR-10, Dir(0.5)." in (folder / "index.html").read_text()
    assert "cifar10-0.5" in (folder / "table.csv").read_text()
