"""The leaderboard: mean ranks over settings and seeds, gains from tuning, and which method to try first."""

from __future__ import annotations

import re

import pytest

from pipeline.report.leaderboard import board, comma_separated
from tests.pipeline.fake_results import (
    cell_of,
    diverge,
    fake_results,
    ledger_row,
    ledger_rows,
    reach,
    results_by_row,
    summary_of,
)
from tests.pipeline.report.conftest import report_of
from tests.pipeline.running import csv_lines

ROWS = ("local", "fedavg", "fedprox", "pfedsim")
PINNED = dict(zip(ROWS, (50.0, 60.0, 62.0, 70.0), strict=True))
SELECTED = PINNED | {"fedavg": 71.0}
"""A trial of FedAvg is selected, and puts it in the first place."""


def leaderboard(**changes: object) -> dict:
    """Results of four methods in three settings with three seeds, each of which adds a point."""
    results = fake_results(4, 3, seeds=3, search=3)
    results["config"] |= {"report": "leaderboard"} | changes
    for cell in results["cells"]:
        for name, accuracies in (("pinned", PINNED), ("selected", SELECTED)):
            accuracy = accuracies[cell["row"]]
            lr = 0.05 if accuracy == PINNED[cell["row"]] else 0.1
            reached = [accuracy + seed for seed in range(3)]
            cell[name] = {**cell[name], "records": ledger_rows(cell["cell"], reached, lr=lr)}
        changed = PINNED[cell["row"]] != SELECTED[cell["row"]]
        cell["selection"] = {"trial": int(changed), "comparisons": []}
    return results


def test_methods_are_ranked_over_settings_and_seeds_by_their_selected_configurations():
    ranked = board(summary_of(leaderboard()))
    assert [(standing.place, standing.row, standing.rank) for standing in ranked.standings] == [
        (1, "fedavg", 1.0),
        (2, "pfedsim", 2.0),
        (3, "fedprox", 3.0),
        (4, "local", 4.0),
    ]
    assert [standing.accuracy for standing in ranked.standings] == pytest.approx([72.0, 71.0, 63.0, 51.0])


def test_a_method_that_is_printed_under_the_name_of_another_has_a_place_of_its_own():
    results = leaderboard()
    rows = results["config"]["methods"]
    results["config"]["methods"] = [
        {**row, "label": "FedAvg"} if row["method"] == "fedprox" else row for row in rows
    ]
    assert [(standing.place, standing.label) for standing in board(summary_of(results)).standings] == [
        (1, "FedAvg (fedavg)"),
        (2, "pFedSim"),
        (3, "FedAvg (fedprox)"),
        (4, "Local"),
    ]


def test_a_name_with_dollar_signs_is_the_same_in_both_reports():
    results = leaderboard()
    rows = results["config"]["methods"]
    results["config"]["methods"] = [{**row, "label": f"${row['method']}$"} for row in rows]
    folder = report_of(results)
    assert "<span>$</span>fedavg<span>$</span>" in (folder / "README.md").read_text()
    page = (folder / "index.html").read_text()
    assert "Try $fedavg$ first" in page
    assert "$&lt;" not in page


def test_the_gain_from_tuning_is_the_selected_minus_the_pinned_configuration():
    first, second, *_ = board(summary_of(leaderboard())).standings
    assert (first.gain.mean, first.gain.pairs, first.gain.over) == (pytest.approx(11.0), 3, "seed")
    assert second.gain.mean == 0
    assert (first.tuned, second.tuned) == (3, 0)


def test_a_search_over_training_options_alone_counts_as_tuning():
    results = leaderboard()
    for cell in results["cells"]:
        for record in cell["selected"]["records"]:
            record["config"]["lr"] = 0.05
    assert board(summary_of(results)).standings[0].tuned == 3


def test_settings_may_have_seeds_of_their_own():
    results = fake_results(4, 2, seeds=3)
    seeds = dict(zip(results["config"]["settings"], ((0, 1, 2), (1, 5)), strict=True))
    for cell in results["cells"]:
        cell["pinned"]["records"] = [
            ledger_row(cell["cell"], seed, accuracy=PINNED[cell["row"]] + seed)
            for seed in seeds[cell["setting"]]
        ]
    ranked = board(summary_of(results))
    first, second, *_ = ranked.standings
    assert (first.row, first.rank, first.accuracy) == ("pfedsim", 1.0, pytest.approx((71 + 73) / 2))
    assert (second.difference.mean, second.difference.pairs) == (-8.0, 1)  # seed 1
    assert "With 5 ranks per method" in ranked.advice
    assert "with 2 to 3 seeds each" in ranked.limits[0]


def test_a_seed_that_diverged_only_before_tuning_is_not_paired():
    results = leaderboard()
    diverge(next(cell["pinned"] for cell in results["cells"] if cell["row"] == "fedavg"))
    first = board(summary_of(results)).standings[0]
    assert (first.gain.mean, first.gain.pairs) == (11.0, 2)


def test_the_advice_follows_from_the_numbers():
    advice = board(summary_of(leaderboard())).advice
    assert advice.startswith(
        "Try FedAvg first: it has the best mean rank of 4 methods, 1.00, and 72.00 % on average over the "
        "settings."
    )
    assert "it differs significantly from " in advice
    assert "Without tuning, pFedSim is first." in advice


def test_the_first_of_several_best_mean_ranks_is_the_same_everywhere_and_the_others_are_named():
    levels = {"local": (50.0,), "fedavg": (60.0,), "fedprox": (70.0,), "pfedsim": (80.0,)}
    results = results_by_row(2, **levels)
    results["config"]["methods"][-1]["label"] = "Aardvark"
    reach(cell_of(results, "cifar10-0.5/fedprox"), 95.0)
    ranked = board(summary_of(results))
    assert [(standing.place, standing.label) for standing in ranked.standings] == [
        *((1, "Aardvark"), (1, "FedProx"), (3, "FedAvg"), (4, "Local"))
    ]
    assert ranked.against == "Aardvark"
    assert ranked.advice.startswith(
        "Try Aardvark first: it has the best mean rank of 4 methods, 1.50 (shared with FedProx), and 80.00 % "
        "on average over the settings. Its lead over FedAvg is +20.00 points"
    )
    assert "the highest mean is that of FedProx " in ranked.advice


def test_all_methods_that_are_first_without_tuning_are_named(monkeypatch):
    monkeypatch.setitem(PINNED, "fedprox", 70.0)
    monkeypatch.setitem(SELECTED, "fedprox", 70.0)
    assert "Without tuning, FedProx and pFedSim are first." in board(summary_of(leaderboard())).advice
    monkeypatch.setitem(SELECTED, "fedavg", 60.0)
    ranked = board(summary_of(leaderboard()))
    assert "Without tuning, FedProx and pFedSim are first as well." in ranked.advice
    assert "is that of FedProx and pFedSim after" in ranked.advice


def test_the_reference_of_a_table_is_subtracted_from_all_others():
    ranked = board(summary_of(leaderboard(reference="fedprox")))
    assert ranked.against == "FedProx"
    assert {standing.row: standing.difference.mean for standing in ranked.standings} == pytest.approx(
        {"fedavg": 9.0, "pfedsim": 8.0, "fedprox": 0.0, "local": -12.0}
    )


def test_a_method_without_a_number_in_every_setting_has_no_place_and_is_named():
    results = leaderboard()
    results["cells"] = [cell for cell in results["cells"] if cell["cell"] != "cifar10-0.1/local"]
    ranked = board(summary_of(results))
    assert "local" not in {standing.row for standing in ranked.standings}
    assert any("Not ranked, because a result is missing: Local." in line for line in ranked.limits)


def test_a_data_set_that_has_been_renamed_since_some_runs_is_one():
    results = leaderboard()
    for cell in results["cells"]:
        cell["selected"]["records"][0]["dataset"] = "former/digits.npz"
    assert "on one data set (digits), partitioned in 3 ways" in board(summary_of(results)).limits[0]


def test_methods_of_the_registry_that_are_no_row_are_listed():
    (line,) = [line for line in board(summary_of(leaderboard())).limits if "left out" in line]
    assert "fedasync" in line
    assert " fedavg," not in line


def test_two_methods_are_no_leaderboard():
    results = leaderboard()
    results["cells"] = [cell for cell in results["cells"] if cell["row"] in ("local", "fedavg")]
    assert board(summary_of(results)) is None


def test_every_number_of_the_csv_names_its_ledger_rows():
    lines = csv_lines(comma_separated(board(summary_of(leaderboard()))))
    assert [line["label"] for line in lines] == ["FedAvg", "pFedSim", "FedProx", "Local"]
    # Pinned and selected, in three settings with three seeds.
    assert len(lines[0]["keys"].split()) == 18
    assert float(lines[0]["gain"]) == 11.0
    assert float(lines[0]["post_local"]) == pytest.approx(77.0)


def test_the_report_has_the_leaderboard_once_and_its_files():
    folder = report_of(leaderboard())
    readme, page = ((folder / name).read_text() for name in ("README.md", "index.html"))
    assert "| 1 | FedAvg | baseline | 1.00 |" in readme
    assert "## Mean ranks" not in readme
    assert all((folder / name).is_file() for name in re.findall(r"\]\(([^)]+)\)", readme))
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_the_sortable_page_has_both_tables_and_needs_no_network():
    page = (report_of(leaderboard()) / "leaderboard.html").read_text()
    assert page.count("new ITable(") == 2
    assert "pFedSim" in page
    assert not re.search(r"<(script|link)[^>]*(src|href)=", page)
    assert not re.search(r"from 'https?:", page)


@pytest.mark.parametrize("label", ["None", "NA", "nan"])
def test_a_label_that_looks_like_a_missing_value_is_on_the_sortable_page(label):
    results = leaderboard()
    results["config"]["methods"][0]["label"] = label
    page = (report_of(results) / "leaderboard.html").read_text()
    assert rf"\"local\", \"{label}\"" in page


def test_other_tables_have_no_leaderboard():
    folder = report_of(leaderboard(report=None))
    assert "Leaderboard" not in (folder / "README.md").read_text()
    assert not (folder / "leaderboard.html").exists()
