"""What a report says tuning is worth."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pipeline.report.agreement import claims
from pipeline.report.tuning import Tuned, overall, tuned
from tests.pipeline.fake_results import cell_of, fail, fake_results, ledger_rows, search_only, summary_of

SETTING = "cifar10-0.1"
ACCURACIES = {"local": ([30, 32], [30, 32]), "fedavg": ([40, 44], [60, 68]), "pfedsim": ([50, 51], [50, 51])}
"""By row: of the pinned and of the selected configuration, by seed."""


def results() -> dict[str, Any]:
    """A searched table of one setting, where tuning moves FedAvg to the first place."""
    content = fake_results(settings=1, seeds=2, search=3)
    for row, both in ACCURACIES.items():
        cell = cell_of(content, f"{SETTING}/{row}")
        for name, accuracies in zip(("pinned", "selected"), both, strict=True):
            cell[name] |= {
                "number": int(name == "selected"),
                "records": ledger_rows(cell["cell"], accuracies, lr=0.1 if name == "selected" else 0.05),
            }
    return content


def test_every_method_has_its_ranks_before_and_after_and_its_gain_over_the_seeds():
    by_label = {entry.label: entry for entry in tuned(summary_of(results()))}
    assert list(by_label) == ["FedAvg", "pFedSim", "Local"]
    assert {label: (entry.pinned, entry.selected) for label, entry in by_label.items()} == {
        "FedAvg": (2, 1),
        "pFedSim": (1, 2),
        "Local": (3, 3),
    }
    assert by_label["FedAvg"].accuracy == pytest.approx(64)
    assert (by_label["FedAvg"].gain, by_label["FedAvg"].error) == pytest.approx((22, 2))
    assert (by_label["Local"].gain, by_label["Local"].error) == (0, 0)


def test_methods_without_a_selected_configuration_are_not_ranked():
    partial = results()
    fail(cell_of(partial, f"{SETTING}/fedavg")["selected"], 0, 1)
    assert [entry.label for entry in tuned(summary_of(partial))] == ["pFedSim", "Local"]
    assert tuned(summary_of(fake_results(seeds=2))) == []


def test_a_row_without_a_search_keeps_its_rank_among_the_others():
    partial = results()
    search_only(partial, "fedavg")
    (entry,) = tuned(summary_of(partial))
    assert (entry.label, entry.pinned, entry.selected) == ("FedAvg", 2, 1)


def test_columns_with_one_label_are_several_settings():
    table = fake_results(settings=3, seeds=2, search=3)
    for setting in table["config"]["settings"].values():
        setting["label"] = "the same"
    rows = tuned(summary_of(table))
    assert [entry.setting for entry in rows] == [
        setting for setting in table["config"]["settings"] for _ in range(3)
    ]
    assert overall(rows).startswith("Over the 3 settings")


def test_a_claim_is_tested_before_and_after_tuning():
    table = results()
    table["config"]["claims"] = [
        {"says": "pFedSim is the best", "place": "Section 1", "kind": "best", "row": "pfedsim"}
    ]
    (tested,) = claims(summary_of(table))
    assert (tested.ours.answer, tested.tuned.answer) == ("confirmed", "refuted")
    search_only(table, "fedavg")
    assert claims(summary_of(table)) == [tested]


def test_over_three_settings_or_more_the_gain_has_an_interval():
    # Means over the methods: 1, 2 and 3 points. Student's t for two degrees of freedom is 4.303.
    gains = {"a": (0, 2), "b": (2, 2), "c": (5, 1)}
    rows = [
        Tuned(name, "FedAvg", None, 1, 1, 64.0, gain, 0.0) for name, both in gains.items() for gain in both
    ]
    assert overall(rows) == (
        "Over the 3 settings, tuning is worth +2.00 points on test data, on average over the methods "
        "(95 % interval −0.48 to +4.48)."
    )
    assert overall(rows[:4]) == ""


def test_methods_that_kept_accuracy_and_rank_are_not_listed():
    kept = Tuned("dir", "Local", None, pinned=2, selected=2, accuracy=80.0, gain=0.0, error=0.0)
    assert not kept.changed
    assert replace(kept, selected=3).changed
    assert replace(kept, gain=1.0).changed
