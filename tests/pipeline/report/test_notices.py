"""What a report says before its numbers, and where these come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.report.provenance import changed_since, plugins
from tests.pipeline.fake_results import (
    DIGITS,
    SOURCES,
    cell_of,
    fake_results,
    ledger_row,
    reach,
    record_of,
)
from tests.pipeline.report.conftest import PUBLISHED, readme_of, realistic, report_of, small


def test_a_network_that_started_from_scratch_for_want_of_weights_is_said_first():
    results = fake_results(methods=2, settings=1, seeds=1)
    row = results["cells"][0]["pinned"]["records"][0]
    row["metrics"]["pretrained"] = False
    row["config"]["model"] = "mobilenet_v2"
    readme = readme_of(results)
    assert "mobilenet_v2 started from scratch" in readme.partition("## ")[0]


def test_other_data_than_the_original_pixels_are_said_first():
    files = [{"name": "copy.zip", "bytes": 7, "sha256": "ab" * 32}]
    identity = "a copy that differs from the original pixels (jpg files)"
    described = {"checksum": "cd" * 32, "content": "ef" * 32, "identity": identity}
    source = {"kind": "image-folder", "files": files}
    datasets = {"cifar10": described | {"source": source}, "digits": DIGITS}
    readme = small(manifest={"datasets": datasets, "absent": []})
    assert f"> cifar10 is {identity}." in readme.partition("| Method |")[0]
    assert f"cifar10: {identity}; content sha256 {'ef' * 32}, in this order {'cd' * 32}" in readme
    assert "DATA_SOURCE=/path/to/copy.zip dvc exp run -S 'tables=[fake]'" in readme


def test_quantities_other_than_accuracies_are_divided_and_not_ranked():
    results = fake_results(methods=2, settings=1, seeds=1, published={"paper": "pfedsim", "table": "7"})
    results["config"]["evaluation"]["metric"] = "seconds_per_sample"
    place = {**PUBLISHED, "metric": "seconds_per_sample"}
    results["config"]["settings"]["cifar10-0.1"]["published"] = place
    folder = report_of(results)
    for name in ("README.md", "index.html"):
        text = (folder / name).read_text()
        assert "the published number, and ours divided by it (×)." in text
        assert not any(words in text for words in ("Best</b>", "**Best**", "minus it", "Reproduced: within"))


def judged(assumed, **published):
    """The report of a table whose row Local has three seeds, 4.3 points below the printed number."""
    published = {"paper": "pfedsim", "table": "3", "seeds": 5, "assumed": assumed, **published}
    results = fake_results(methods=2, settings=1, seeds=3, published=published)
    results["config"]["settings"]["cifar10-0.1"]["published"] = PUBLISHED
    reach(cell_of(results, "cifar10-0.1/local"), 75, 80, 85)
    folder = report_of(results)
    return (folder / "README.md").read_text(), (folder / "index.html").read_text()


def test_verdicts_that_hang_on_an_assumed_number_of_seeds_are_listed():
    for text in judged(assumed=True):
        said = text.partition("That number of seeds is our assumption; without it, ")[2].partition(".")[0]
        assert "verdict" in said
        assert "Local in CIFAR-10" in said


def test_no_verdict_on_a_row_that_cannot_be_compared_hangs_on_an_assumption():
    for text in judged(assumed=True, incomparable=[{"rows": ["local"], "why": "Other clients."}]):
        assert "That number of seeds is our assumption; no verdict depends on it." in text


def test_a_number_of_seeds_that_the_paper_states_is_no_assumption():
    for text in judged(assumed=False):
        assert "our assumption" not in text


def test_doubtful_published_numbers_are_marked_and_the_doubt_is_said():
    results = fake_results(methods=2, settings=1, seeds=1, published={"paper": "spfl", "table": "1"})
    column = {"dataset": "cifar10", "partition": "iid", "partition_arg": "classes=6", "clients": 10}
    results["config"]["settings"]["cifar10-0.1"]["published"] = column
    for row, printed in zip(results["config"]["methods"], ("fedavg", "perfedavg"), strict=True):
        row["published"] = {"method": printed}
    folder = report_of(results)
    for name in ("README.md", "index.html"):
        text = (folder / name).read_text()
        assert "† Doubtful published numbers: reassembled from scattered text (pFedSim)." in text
        assert "74.00 ± 3.04†" in text
        assert "67.00 ± 3.38†" not in text


def test_each_seed_s_own_partition_is_said():
    results = fake_results(methods=2, settings=1, seeds=2)
    assert "a column has one partition" in small()
    results["config"]["settings"]["cifar10-0.1"]["partition"] = "dirichlet:0.1,seed=run"
    assert "each has its own partitions" in small(config=results["config"])


def test_the_table_s_own_note_is_said_first():
    config = fake_results(methods=2, settings=1, seeds=1)["config"] | {"note": "20 rounds, not 200."}
    assert "> 20 rounds, not 200." in small(config=config).partition("| Method |")[0]


def test_what_columns_and_rows_report_otherwise_is_said_first():
    config = fake_results(methods=2, settings=2, seeds=1)["config"]
    config["settings"]["cifar10-0.5"]["evaluation"] = {"which": "best"}
    config["methods"][0]["evaluation"] = {"which": "best"}
    config["methods"][1]["evaluation"] = {"which": "last"}  # as the table
    results = fake_results(methods=2, settings=2, seeds=1) | {"config": config}
    notices = readme_of(results).partition("| Method |")[0]
    assert (
        "CIFAR-10, Dir(0.5); Local: accuracy (%) over the test samples of all clients, in its best round, "
        "after aggregation, local training or adaptation, as each method reports it.\n"
    ) in notices


def test_the_precision_is_said_first_of_what_is_not_in_fp32():
    results = fake_results(methods=2, settings=2, seeds=1)
    for cell in results["cells"]:
        half = cell["row"] == "pfedsim"
        cell["pinned"]["records"][0]["config"]["precision"] = "bf16" if half else "fp32"
    notices = readme_of(results).partition(" First, with ")[0]
    assert "head and losses in float32): pFedSim (CIFAR-10, Dir(0.1), CIFAR-10, Dir(0.5))." in notices
    assert "Local" not in notices


def test_seeds_that_stopped_early_are_said_with_their_rounds():
    results = fake_results(methods=2, settings=1, seeds=2)
    for record, last in zip(
        cell_of(results, "cifar10-0.1/local")["pinned"]["records"], (10, 15), strict=True
    ):
        record["metrics"]["stopped_at"] = last
    readme = readme_of(results)
    assert "Some or all seeds stopped early" in readme
    assert "Local (" in readme.partition("stopped early")[2]
    assert "after 10, 15 of " in readme


def test_numbers_of_an_edited_tree_are_marked():
    assert "computed from uncommitted files" in small(sources={**SOURCES, "dirty": True})


def test_a_complete_table_on_original_data_has_no_notice():
    assert "NOTE" not in small()


def test_provenance_is_complete(readme, page):
    results = realistic()
    for fact in (
        SOURCES["commit"],
        results["manifest"]["datasets"]["digits"]["content"],
        "digits: original pixels",
        "dirichlet:0.1,min=10,test=0.25,seed=0",
        "python 3.11.9, torch 2.15.0, pfl 0.1.0",
        "Example CPU @ 2.60GHz, 4 cores, 1 thread per trial, loop backend on cpu",
        "2 min 33 s of wall time",
        f"git checkout {SOURCES['commit']}",
        "ours: the paper does not say",
    ):
        assert fact in readme
        assert fact in page


def test_a_report_has_nothing_of_mlflow(readme, page):
    assert "mlflow" not in (readme + page).lower()


def test_a_report_is_computed_anew_in_a_clone_without_the_ledger(readme):
    commands = readme.partition("```sh\n")[2].partition("```")[0].splitlines()
    assert commands[0] == "git clone . ../anew && cd ../anew"
    assert commands.index("rm -rf results/ledger") < len(commands) - 1
    assert commands[-1] == "dvc exp run -S 'tables=[paper-table3]'"


@pytest.mark.parametrize(
    ("code", "installed"),
    [
        ("pfl-repro 0.1.0", "# with pfl-repro 0.1.0 and its extra 'pipeline' installed"),
        ("0" * 40, f"# with pfl-repro at commit {'0' * 40} installed"),
    ],
)
def test_in_another_project_than_ours_the_simulator_is_installed(code, installed):
    commands = (
        small(sources={**SOURCES, "commit": code}).partition("```sh\n")[2].partition("```")[0].splitlines()
    )
    assert commands[1:3] == ["rm -rf results/ledger", installed]


def test_edits_that_are_in_no_commit_are_said_to_be_missing_in_a_clone():
    Path("pfl").mkdir()
    commands = small(sources={**SOURCES, "dirty": True}).partition("```sh\n")[2].splitlines()
    assert commands[2] == "# copy the files here that were not committed"


def test_the_time_of_the_simulations_is_added_up():
    results = fake_results(methods=2, settings=1, seeds=1)
    for cell in results["cells"]:
        cell["pinned"]["records"][0]["measured"]["wall_seconds"] = 1280.0
    readme = small(cells=results["cells"])
    assert "42 min 40 s in the simulations behind it, added up" in readme
    assert "| 0 | 0 | 412 | 1,280 |" in readme


def test_a_report_without_a_sweep_states_no_time_of_one():
    assert "- **Time**: 2 min 33 s of wall time for the sweep;" in small()
    assert "- **Time**: 2 runs computed" in small(wall_seconds=0.0)


def test_a_part_of_a_table_is_said_to_be_one_and_how_it_is_made_again():
    results = fake_results(methods=2, settings=2, seeds=1)
    results["config"]["seeds"] = [0, 1]
    results["subset"] |= {"settings": ["cifar10-0.1"], "seeds": [0]}
    results["cells"] = [cell for cell in results["cells"] if cell["setting"] == "cifar10-0.1"]
    readme = readme_of(results)
    assert "Of 4 entries: 2 not selected." in readme
    assert "Not selected: CIFAR-10, Dir(0.5)." in readme
    assert "-S 'subset.settings=[cifar10-0.1]' -S 'subset.seeds=[0]'" in readme
    assert "seed 1" not in readme


def test_records_of_other_files_that_did_the_same_are_told():
    rows = [record_of({**ledger_row(), "sources": sources}) for sources in ("1", "2")]
    (line,) = changed_since(rows, "1")
    assert line == "1 of 2 records by other versions of pfl/ with the same results in the battery"
    assert changed_since(rows[:1], "1") == []


def test_plugins_are_named_with_version_and_hash():
    plugin = {"name": "mine", "version": "1.0", "digest": "a" * 64}
    rows = [record_of({**ledger_row(), "plugins": used}) for used in ([plugin], [plugin], [])]
    assert plugins(rows) == ["plugin mine 1.0, SHA-256 aaaaaaaaaaaa…"]


def test_rows_of_an_earlier_rule_are_named_first(monkeypatch):
    monkeypatch.setattr(
        "pipeline.report.notices.is_current", lambda config, *_: config["method"] != "pfedsim"
    )
    readme = small().partition("| Method |")[0]
    assert "> Outdated, computed by earlier code; run again: pFedSim." in readme
