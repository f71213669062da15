"""The first line of a report: which method is first, by how much and how surely; and mean ranks."""

from __future__ import annotations

import re

import numpy as np
import pytest
from scipy.stats import chi2, studentized_range

from pipeline.report.leads import diagram, leads, mean_ranks, ranks_of
from tests.pipeline.fake_results import fake_results, results_by_row, search_only, summary_of
from tests.pipeline.report.conftest import readme_of, report_of

SETTING = "cifar10-0.1"


def test_the_first_leads_by_its_distance_to_the_second_with_an_interval_over_the_seeds():
    results = results_by_row(local=(50.0, 51.0, 52.0), fedavg=(69.0, 72.0, 69.0), pfedsim=(70.0, 71.0, 72.0))
    (lead,) = leads(summary_of(results))
    assert (lead.best, lead.second, lead.level) == (("pFedSim",), "FedAvg", ("FedAvg",))
    assert lead.score == pytest.approx(71.0)
    # Differences of 1, -1 and 3: the mean is 1, the deviation 2, and t(0.975, 2) = 4.3027.
    assert lead.text == (
        "First, with 71.00 %: pFedSim by 1.00 over FedAvg (95 % interval −3.97 to +5.97 over 3 paired "
        "seeds). Not significantly different from it: FedAvg."
    )


def test_exact_ties_are_ties_and_nothing_else_is():
    results = results_by_row(local=(50.0,) * 3, fedavg=(70.0, 71.0, 72.0), pfedsim=(70.0, 71.0, 72.0))
    (lead,) = leads(summary_of(results))
    assert lead.best == ("FedAvg", "pFedSim")
    assert "FedAvg and pFedSim (level at 71.00) by" in lead.text
    close = results_by_row(local=(50.0,) * 3, fedavg=(70.0, 71.0, 72.0), pfedsim=(70.0, 71.0, 72.001))
    summary = summary_of(close)
    assert leads(summary)[0].best == ("pFedSim",)
    assert [line.entries[SETTING].rank for line in summary.pinned] == [None, 2, 1]


def test_all_methods_level_have_no_second():
    (lead,) = leads(summary_of(results_by_row(fedavg=(70.0,), local=(70.0,), pfedsim=(70.0,))))
    assert lead.best == ("Local", "FedAvg", "pFedSim")
    assert lead.gap is None


def test_with_one_seed_the_clients_are_paired():
    readme = readme_of(results_by_row(local=(50.0,), pfedsim=(71.0,)))
    first = readme.partition("| Method |")[0]
    assert "**First, with 71.00 %: pFedSim by 21.00 over Local (95 % interval" in first
    assert "over 20 paired clients)" in first


def test_single_clients_and_repeated_simulations_are_no_methods():
    results = results_by_row(local=(90.0,), fedavg=(60.0,), pfedsim=(71.0,))
    results["config"]["methods"][0]["evaluation"] = {"clients": [0, 0]}
    results["cells"][1]["pinned"]["records"] = results["cells"][2]["pinned"]["records"]
    assert leads(summary_of(results)) == []


def test_rows_without_a_search_are_compared_with_what_the_searches_of_others_selected():
    levels = {"local": (81.0,) * 3, "fedavg": (71.0,) * 3, "fedprox": (61.0,) * 3, "pfedsim": (51.0,) * 3}
    results = results_by_row(3, **levels)
    searched = fake_results(4, 3, search=3)
    results["config"]["search"] = searched["config"]["search"]
    for cell, other in zip(results["cells"], searched["cells"], strict=True):
        cell |= {"selection": other["selection"], "selected": cell["pinned"], "searched": other["searched"]}
    search_only(results, "fedprox", "pfedsim")
    summary = summary_of(results)
    (lead, *_) = leads(summary)
    assert (lead.best, lead.second) == (("Local",), "FedAvg")
    assert lead.text.startswith("First after tuning, with 81.00 %: Local by 10.00 over FedAvg")
    assert list(mean_ranks(summary).means) == ["Local", "FedAvg", "FedProx", "pFedSim"]


def test_a_report_of_several_columns_names_the_first_of_each_and_the_best_mean_rank():
    results = results_by_row(3, local=(50.0, 52.0), fedavg=(60.0, 63.0), pfedsim=(71.0, 71.5))
    folder = report_of(results)
    readme = (folder / "README.md").read_text()
    first, *_ = leading = [line for line in readme.splitlines() if ". First, with " in line]
    assert len(leading) == 3
    assert first.startswith("- CIFAR-10, Dir(0.1). First, with 71.25 %: pFedSim by 9.75 over FedAvg (95 % ")
    assert readme.count("pFedSim by 9.75 over FedAvg") == 3
    assert readme.count("Over 3 columns, pFedSim has the best mean rank, 1.00 among 3 methods") == 1
    assert "![Critical-difference diagram](ranks.svg)" in readme
    assert "<svg" in (folder / "ranks.svg").read_text()


def test_two_columns_have_no_mean_ranks():
    summary = summary_of(results_by_row(2, local=(50.0,), fedavg=(60.0,), pfedsim=(71.0,)))
    assert mean_ranks(summary) is None


def test_mean_ranks_and_tests_agree_with_their_definitions():
    accuracies = np.array([[80.0, 70.0, 60.0, 60.0], [81.0, 75.0, 76.0, 50.0], [90.0, 91.0, 85.0, 80.0]])
    ranks = ranks_of(list("ABCD"), accuracies, "3 columns")
    # By hand: A 1, 1, 2; B 2, 3, 1; C 3.5, 2, 3; D 3.5, 4, 4.
    expected = {"A": 4 / 3, "B": 2.0, "C": 8.5 / 3, "D": 11.5 / 3}
    assert list(ranks.means) == list(expected)
    assert ranks.means == pytest.approx(expected)
    # Nemenyi: q = |R_i - R_j| / sqrt(k (k + 1) / (6 N)), by the studentised range of infinite freedom.
    error = (4 * 5 / (6 * 3)) ** 0.5
    p = studentized_range.sf((expected["D"] - expected["A"]) / error * 2**0.5, 4, np.inf)
    assert ranks.nemenyi.loc["A", "D"] == pytest.approx(p, abs=1e-4)
    # Friedman's statistic with ties, by the sum of squares of the mean ranks (W. J. Conover, 1999).
    table = np.array([[1, 2, 3.5, 3.5], [1, 3, 2, 4], [2, 1, 3, 4]])
    sums = table.sum(axis=0)
    statistic = 3 * ((sums - 3 * 2.5) ** 2).sum() / ((table**2).sum() - 3 * 4 * 25 / 4)
    assert ranks.friedman == pytest.approx(chi2.sf(statistic, 3), rel=1e-6)


def test_all_methods_with_the_best_mean_rank_are_named():
    accuracies = np.array([[70.0, 80.0, 60.0], [80.0, 70.0, 60.0], [75.0, 75.0, 60.0]])
    ranks = ranks_of(["FedPer", "Aardvark", "Local"], accuracies, "3 columns")
    assert ranks.best == ("Aardvark", "FedPer")
    assert ranks.text.startswith("Over 3 columns, Aardvark and FedPer have the best mean rank, 1.50 among 3")
    assert ranks.text.endswith("by Nemenyi's test they differ significantly from none of the others.")


def test_a_bar_of_the_diagram_does_not_depend_on_the_order_of_its_methods():
    drawn = diagram(ranks_of(list("ABCD"), np.random.default_rng(0).normal(size=(3, 4)), "3 columns"))
    assert drawn.startswith("<svg")
    assert not re.search(r'd="M[\d. ]+H[\d.]+H', drawn)


def test_methods_without_an_interval_are_not_said_to_be_told_apart():
    results = results_by_row(local=(50.0,), fedavg=(60.0,), pfedsim=(71.0,))
    results["config"]["methods"][0]["evaluation"] = {"moment": "post_local"}
    (lead,) = leads(summary_of(results))
    assert (lead.level, lead.unknown) == ((), ("Local",))
    assert lead.text.endswith("over 20 paired clients). Without an interval: Local.")
