"""How much of the distance to the printed numbers two choices explain."""

from __future__ import annotations

import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pipeline.report.ablation import Effect, Explanation, Gap, explain, findings
from pipeline.report.table_report import write_report
from pipeline.spec.published import FOLDER
from pipeline.spec.table import Table
from tests.pipeline.fake_results import cell_of, fake_results, ledger_row, summary_of, write_results

COMBINATIONS = ("cifar10-0.1", "cifar10-0.5", "cifar100-0.1", "cifar100-0.5")
OURS = {"local": (75.0, 83.0, 75.0, 83.5), "fedavg": (45.0, 42.0, 29.0, 26.0)}


def results() -> dict:
    """Two methods in four settings: neither choice, the first, the second, both; one seed."""
    made = fake_results(
        methods=3, settings=4, seeds=1, published={"file": "pfedsim.csv", "table": "3"}, table="choices"
    )
    made["config"]["methods"] = made["config"]["methods"][:2]
    neither, first, second, both = COMBINATIONS
    made["config"]["choices"] = {
        "neither": neither,
        "alone": {first: {"label": "sizes capped", "why": "clients are alike"}, second: {"label": "local"}},
        "both": both,
    }
    printed = {"dataset": "cifar10", "partition": "dirichlet", "partition_arg": "alpha=0.1", "clients": 100}
    for place, setting in enumerate(COMBINATIONS):
        made["config"]["settings"][setting]["published"] = printed
        for method, accuracies in OURS.items():
            cell = f"{setting}/{method}"
            cell_of(made, cell)["pinned"]["rows"] = [ledger_row(cell, accuracy=accuracies[place])]
    return made


def test_effects_add_up_in_whichever_order_the_choices_are_made():
    explanation = explain(summary_of(results()))
    assert explanation is not None
    assert explanation.choices == ("sizes capped", "local")
    local, fedavg = explanation.gaps
    assert fedavg.published == 24.77
    assert fedavg.effects == (Effect(alone=-3, on_top=-3), Effect(alone=-16, on_top=-16))
    assert [(effect.alone, effect.on_top, effect.mean) for effect in local.effects] == [
        (8.0, 8.5, 8.25),
        (0.0, 0.5, 0.25),
    ]
    for gap in explanation.gaps:
        assert gap.neither + sum(effect.mean for effect in gap.effects) == pytest.approx(gap.both)


def test_what_is_explained_is_the_share_of_the_distance_that_is_gone():
    local, fedavg = explain(summary_of(results())).gaps
    assert fedavg.explained == pytest.approx(1 - (26.0 - 24.77) / (45.0 - 24.77))
    assert local.explained == pytest.approx(1 - (84.30 - 83.5) / (84.30 - 75.0))
    assert Gap("near", 50.0, 51.9, 50.0, local.effects).explained is None


def test_findings_say_what_the_numbers_are():
    fedavg, local, whole = findings(
        Explanation(
            ("sizes capped", "local"),
            (
                Gap("FedAvg", 24.77, 45.0, 26.01, (Effect(-3, -3), Effect(-16, -16))),
                Gap("Local", 84.3, 85.0, 90.0, (Effect(5, 5), Effect(0, 0))),
            ),
            (),
        )
    )
    assert fedavg == (
        "FedAvg: 45.00 with neither choice, 20.23 above the printed 24.77; 26.01 with both, 1.24 above it "
        "(sizes capped −3.00, local −16.00). They explain 94% of the gap."
    )
    assert local.endswith("There was no gap of more than 2 points to explain.")
    assert whole == (
        "With neither choice 1 of 2 methods are within 2 points of the printed number, with both 1; the mean "
        "distance goes from 10.47 points to 3.47."
    )


def test_choices_that_lead_away_from_the_printed_number_are_said_to():
    gap = Gap("FedAvg", 24.0, 30.0, 40.0, (Effect(5, 5), Effect(5, 5)))
    assert findings(Explanation(("a", "b"), (gap,), ()))[0].endswith("The choices widen the gap.")


def test_a_method_without_all_its_runs_is_named_and_left_out():
    made = results()
    made["cells"].remove(cell_of(made, f"{COMBINATIONS[1]}/local"))
    explanation = explain(summary_of(made))
    assert [gap.label for gap in explanation.gaps] == ["FedAvg"]
    assert explanation.missing == ("Local",)
    made["cells"].clear()
    assert explain(summary_of(made)) is None


def test_a_table_without_choices_asks_for_no_explanation():
    assert explain(summary_of(fake_results())) is None


def test_the_report_explains(tmp_path: Path):
    shutil.copytree(FOLDER, tmp_path / FOLDER)
    write_results(results(), tmp_path)
    folder = write_report("choices", tmp_path)
    readme, page = (folder / "README.md").read_text(), (folder / "index.html").read_text()
    line = next(line for line in readme.splitlines() if line.startswith("| FedAvg | 24.77 |"))
    effects = "−3.00 (−3.00, −3.00) | −16.00 (−16.00, −16.00)"
    assert line == f"| FedAvg | 24.77 | 45.00 | +20.23 | {effects} | 26.00 | +1.23 | 94 % |"
    assert "- sizes capped: clients are alike." in readme
    assert "94 %" in page
    ElementTree.fromstring((folder / "gaps.svg").read_text())


def test_a_choice_names_a_setting():
    config = results()["config"]
    config["choices"]["both"] = "cifar10"
    with pytest.raises(ValueError, match="setting of choices: cifar10 is not accepted"):
        Table.model_validate(config)
