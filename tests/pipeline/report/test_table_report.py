"""The report: files, table, notices, provenance."""

from __future__ import annotations

import csv
import re
import shutil
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from pfl.errors import InvalidInput
from pfl.trials import Record
from pipeline.report.agreement import Tally, answer
from pipeline.report.provenance import changed_since, plugins
from pipeline.report.table_report import write_report
from pipeline.spec.published import FOLDER
from pipeline.spec.table import TABLES
from tests.pipeline.fake_results import DIGITS, cell_of, fake_results, ledger_row, summary_of, write_results

PUBLISHED = {"dataset": "cifar10", "partition": "dirichlet", "partition_arg": "alpha=0.1", "clients": 100}


def realistic() -> dict:
    """A paper's table with all that can go wrong in it."""
    results = fake_results(
        methods=4, seeds=2, search=3, published={"file": "pfedsim.csv", "table": "3"}, table="paper-table3"
    )
    results["config"]["title"] = "A table of <Tan> & al."
    results["config"]["claims"] = [
        {"says": "highest in all cases", "place": "Section 5", "kind": "best", "row": "pfedsim"}
        | {"settings": ["cifar10-0.1"]},
        {"says": "by 1.5 points", "place": "Section 5", "kind": "margin", "row": "pfedsim", "at_least": 1.5}
        | {"settings": ["cifar10-0.5"]},
    ]
    results["config"]["settings"]["cifar10-0.1"]["published"] = PUBLISHED
    cell_of(results, "cifar10-0.1/local")["pinned"]["rows"] = [
        ledger_row("cifar10-0.1/local", seed, accuracy=accuracy) for seed, accuracy in enumerate((80, 82))
    ]
    partial, failed = cell_of(results, "cifar10-0.5/fedavg"), cell_of(results, "cifar10-0.5/fedprox")
    del partial["pinned"]["rows"][1]
    partial["errors"] = ["final, seed 1: diverged in round 17"]
    failed |= {"selected": None, "errors": ["final, seed 0: out of memory"]}
    failed["pinned"]["rows"] = []
    results["cells"].remove(cell_of(results, "cifar10-0.5/local"))
    return results


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("project")
    shutil.copytree(FOLDER, root / FOLDER)
    return root


@pytest.fixture(scope="module")
def folder(root) -> Path:
    write_results(realistic(), root)
    return write_report("paper-table3", root)


@pytest.fixture(scope="module")
def readme(folder) -> str:
    return (folder / "README.md").read_text()


@pytest.fixture(scope="module")
def page(folder) -> str:
    return (folder / "index.html").read_text()


def line_of(readme: str, label: str) -> list[str]:
    """The cells of the main table's line that starts with ``label``."""
    line = next(line for line in readme.splitlines() if line.startswith(f"| {label} |"))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def small(tmp_path: Path, **changes: object) -> str:
    """The README of a small table with some keys of its results replaced."""
    write_results(fake_results(methods=2, settings=1, seeds=1) | changes, tmp_path)
    return (write_report("fake", tmp_path) / "README.md").read_text()


# ---- the table -----------------------------------------------------------------------------------------


def test_the_published_number_and_the_difference_are_beside_ours(readme):
    assert line_of(readme, "Local")[0] == "**81.00** ± 1.41<br><sub>▽ 84.30 ± 0.81 (−3.30)</sub>"


def test_the_best_is_bold_and_the_second_underlined(readme, page):
    column = [line_of(readme, label)[0] for label in ("Local", "FedAvg", "FedProx", "pFedSim")]
    assert [cell.startswith("**") for cell in column] == [True, False, False, False]
    assert [cell.startswith("<ins>") for cell in column] == [False, False, False, True]
    assert '<span class="rank1">81.00</span>' in page


def test_a_selected_configuration_has_a_line_of_its_own_without_a_published_number(readme):
    assert "sub" not in line_of(readme, "Local, *selected*")[0]


def test_failed_partial_and_missing_entries_say_what_they_are(readme, page):
    assert line_of(readme, "FedProx")[1] == "*failed*"
    assert line_of(readme, "Local")[1] == "*not run*"
    assert re.fullmatch(r"\d+\.\d\d\*", line_of(readme, "FedAvg")[1])
    for text in (readme, page):
        assert "FedProx, pinned configuration failed: seed 0: out of memory." in text
        assert "FedAvg, pinned configuration partial: seed 1: diverged in round 17." in text


def test_hyperparameters_of_the_selected_configuration_are_shown(readme):
    selected = cell_of(realistic(), "cifar10-0.1/pfedsim")["selected"]
    assert f"rho = 0.5, lr = {selected['lr']:.3g}" in readme


def test_the_csv_has_a_line_per_entry(folder):
    with (folder / "table.csv").open() as lines:
        entries = list(csv.DictReader(lines))
    assert len(entries) == 4 * 2 * 2
    local = entries[0]
    assert (local["row"], local["mean"], local["seeds"]) == ("local", "81.0000", "2")
    assert (local["published_mean"], local["difference"]) == ("84.3", "-3.3000")
    assert (local["verdict"], local["provisional"]) == ("lower", "True")
    assert {entry["status"] for entry in entries} == {"done", "partial", "failed", "not run"}
    assert local["data"] == "digits: original pixels"
    assert local["keys"].split() == [ledger_row("cifar10-0.1/local", seed)["key"] for seed in (0, 1)]
    assert all(len(entry["keys"].split()) == int(entry["seeds"]) for entry in entries)


def test_the_latex_table_is_booktabs_with_as_many_columns_as_settings(folder):
    text = (folder / "table.tex").read_text()
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert all(row.count(" & ") == 2 for row in rows)
    assert [text.count(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule")] == [1, 2, 1]
    assert r"Local & \textbf{81.00} $\pm$ 1.41 & \emph{not run} \\" in text
    assert r"\quad published & 84.30 $\pm$ 0.81 ($-3.30$) &  \\" in text


def test_latex_labels_are_escaped(tmp_path):
    results = fake_results(methods=2, settings=1, seeds=1)
    results["config"]["methods"][0]["label"] = "50%_&"
    write_results(results, tmp_path)
    assert r"50\%\_\&" in (write_report("fake", tmp_path) / "table.tex").read_text()


# ---- what the paper says -------------------------------------------------------------------------------


def test_the_answer_comes_before_the_table(readme, page):
    answer = (
        "Of 4 numbers, 0 are reproduced, 2 higher and 2 lower. The ranking of the methods agrees with "
        "Kendall's τ = 0.67; of 2 claims, 1 refuted, 1 open."
    )
    assert f"**{answer}**" in readme.partition("| Method |")[0]
    assert answer in unescape(page).partition("<table")[0]


def test_cells_and_simulations_are_counted_and_provisional_verdicts_named_before_the_table(readme, page):
    said = "4 of 4 published cells were run, from 8 simulations. All 4 verdicts are provisional"
    assert said in readme.partition("| Method |")[0]
    assert said in page.partition("<table")[0]


def test_cells_that_share_a_simulation_count_it_once(tmp_path):
    results = fake_results(methods=3, settings=1, seeds=1)
    cells = [cell["pinned"] for cell in results["cells"]]
    cells[1]["rows"] = cells[0]["rows"]
    write_results(results, tmp_path)
    assert (
        "3 cells were run, from 2 simulations." in (write_report("fake", tmp_path) / "README.md").read_text()
    )


def test_without_a_paper_the_answer_names_the_methods_with_the_highest_accuracy(tmp_path):
    results = fake_results(methods=2, settings=2, seeds=1)
    for cell in results["cells"]:
        accuracy = 90.0 if cell["row"] == "pfedsim" else 10.0
        cell["pinned"]["rows"] = [ledger_row(cell["cell"], 0, accuracy=accuracy)]
    write_results(results, tmp_path)
    readme = (write_report("fake", tmp_path) / "README.md").read_text()
    assert "**Highest accuracy by column (2 in all): pFedSim in 2.**" in readme


def test_quantities_without_a_verdict_are_counted_as_ratios():
    summary = summary_of(realistic())
    counted = Tally({"ratio": 20}, provisional=0)
    assert answer(summary, counted, [], []) == "20 numbers are shown as ratios to the published ones."


@pytest.mark.parametrize(
    ("seeds", "said"),
    [
        (None, "standard errors are not used, as the paper does not state its number of seeds."),
        (2, "standard errors are not used, as the paper has 2 seeds."),
        (5, "The paper has 5 seeds."),
    ],
)
def test_the_rule_of_the_verdicts_names_the_seeds_of_the_paper(tmp_path, seeds, said):
    shutil.copytree(FOLDER, tmp_path / FOLDER)
    results = realistic()
    results["config"]["published"]["seeds"] = seeds
    write_results(results, tmp_path)
    folder = write_report("paper-table3", tmp_path)
    assert said in (folder / "README.md").read_text()
    assert said in (folder / "index.html").read_text()


def test_the_agreement_of_the_rankings_is_below_each_column(readme):
    # Of the six pairs, one is the other way round: pFedSim is above Local in the paper.
    assert line_of(readme, "*Kendall's τ (methods)*") == ["0.67 (4)", ""]


def test_a_claim_stands_beside_what_it_is_worth_on_either_numbers(readme, folder):
    first, second = [line for line in readme.splitlines() if line.startswith("| “")]
    assert "“highest in all cases” (Section 5)" in first
    assert "**holds**" in first
    assert "**does not hold** (provisional): not in 1 of 1 column: in CIFAR-10, Dir(0.1), Local is" in first
    assert second.count("cannot be said") == 3
    with (folder / "claims.csv").open() as lines:
        answers = [(claim["published"], claim["ours"]) for claim in csv.DictReader(lines)]
    assert answers == [("holds", "does not hold"), ("cannot be said", "cannot be said")]


def test_findings_written_by_hand_are_part_of_the_report(tmp_path):
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables/fake.md").write_text("FedAvg is *far* above, <b>and</b> this is why.\n")
    assert "## Findings\n\nFedAvg is *far* above" in small(tmp_path)
    page = (tmp_path / "reports/tables/fake/index.html").read_text()
    assert "<p>FedAvg is <em>far</em> above, &lt;b&gt;and&lt;/b&gt; this is why.</p>" in page


@pytest.mark.parametrize("file", sorted(TABLES.glob("*.md")), ids=lambda file: file.stem)
def test_each_finding_has_three_lines_at_most_and_no_command(file):
    text = file.read_text()
    findings = re.split(r"^- ", text.partition("\n### Details\n")[0].rstrip(), flags=re.MULTILINE)[1:]
    assert findings
    assert all(len(finding.splitlines()) <= 3 for finding in findings)
    assert all(len(line) <= 120 for line in text.splitlines())
    assert not re.search(r"`(pfl|dvc|python|git) ", text)


@pytest.mark.parametrize(("absent", "why"), [([], "Not run yet"), (["cinic10"], "No data here")])
def test_columns_that_have_not_been_tried_are_named_with_the_reason_and_not_printed(tmp_path, absent, why):
    results = fake_results(methods=2, settings=2, seeds=1)
    results["config"]["settings"]["cifar10-0.5"]["dataset"] = "cinic10"
    results["cells"] = [cell for cell in results["cells"] if cell["setting"] == "cifar10-0.1"]
    results["manifest"]["absent"] = absent
    write_results(results, tmp_path)
    folder = write_report("fake", tmp_path)
    readme = (folder / "README.md").read_text()
    assert "| Method | CIFAR-10, Dir(0.1) |" in readme
    assert f"{why}: CIFAR-10, Dir(0.5)." in readme
    assert f"{why}: CIFAR-10, Dir(0.5)." in (folder / "index.html").read_text()
    assert "cifar10-0.5" in (folder / "table.csv").read_text()


# ---- notices and provenance ----------------------------------------------------------------------------


def test_a_network_that_started_from_scratch_for_want_of_weights_is_said_first(tmp_path):
    results = fake_results(methods=2, settings=1, seeds=1)
    row = results["cells"][0]["pinned"]["rows"][0]
    row["metrics"]["pretrained"] = False
    row["config"]["model"] = "mobilenet_v2"
    write_results(results, tmp_path)
    readme = (write_report("fake", tmp_path) / "README.md").read_text()
    assert "mobilenet_v2 started from scratch" in readme.partition("## ")[0]


def test_other_data_than_the_original_pixels_are_said_first(tmp_path):
    files = [{"name": "copy.zip", "bytes": 7, "sha256": "ab" * 32}]
    identity = "a copy that differs from the original pixels (jpg files)"
    described = {"checksum": "cd" * 32, "content": "ef" * 32, "identity": identity}
    source = {"kind": "image-folder", "files": files}
    datasets = {"cifar10": described | {"source": source}, "digits": DIGITS}
    readme = small(tmp_path, manifest={"datasets": datasets, "absent": []})
    assert f"> cifar10 is {identity}." in readme.partition("| Method |")[0]
    assert f"cifar10: {identity}; content sha256 {'ef' * 32}, in this order {'cd' * 32}" in readme
    assert "DATA_SOURCE=/path/to/copy.zip dvc exp run -S 'tables=[fake]'" in readme


def test_each_seed_s_own_partition_is_said(tmp_path):
    results = fake_results(methods=2, settings=1, seeds=2)
    assert "a column has one partition" in small(tmp_path)
    results["config"]["settings"]["cifar10-0.1"]["partition"] = "dirichlet:0.1,seed=run"
    assert "each has partitions of its own" in small(tmp_path, config=results["config"])


def test_the_table_s_own_note_is_said_first(tmp_path):
    config = fake_results(methods=2, settings=1, seeds=1)["config"] | {"note": "20 rounds, not 200."}
    assert "> 20 rounds, not 200." in small(tmp_path, config=config).partition("| Method |")[0]


def test_the_precision_is_said_first_of_what_is_not_in_fp32(tmp_path):
    results = fake_results(methods=2, settings=2, seeds=1)
    for cell in results["cells"]:
        half = cell["row"] == "pfedsim"
        cell["pinned"]["rows"][0]["config"]["precision"] = "bf16" if half else "fp32"
    write_results(results, tmp_path)
    notices = (write_report("fake", tmp_path) / "README.md").read_text().partition("| Method |")[0]
    assert "head and losses in float32): pFedSim (CIFAR-10, Dir(0.1), CIFAR-10, Dir(0.5))." in notices
    assert "Local" not in notices


def test_numbers_of_an_edited_tree_are_marked(tmp_path):
    assert "computed by code that is in no commit" in small(tmp_path, dirty=True)


def test_a_complete_table_on_original_data_has_no_notice(tmp_path):
    assert "NOTE" not in small(tmp_path)


def test_provenance_is_complete(readme, page):
    results = realistic()
    for fact in (
        results["commit"],
        results["manifest"]["datasets"]["digits"]["content"],
        "digits: original pixels",
        "dirichlet:0.1,min=10,test=0.25,seed=0",
        "python 3.11.9, torch 2.15.0, pfl 0.1.0",
        "Example CPU @ 2.60GHz, 4 cores, 1 thread per trial, loop backend on cpu",
        "2 min 33 s of wall time",
        f"git checkout {results['commit']}",
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


def test_the_time_of_the_simulations_is_added_up(tmp_path):
    results = fake_results(methods=2, settings=1, seeds=1)
    for cell in results["cells"]:
        cell["pinned"]["rows"][0]["measured"]["wall_seconds"] = 1280.0
    readme = small(tmp_path, cells=results["cells"])
    assert "42 min 40 s in the simulations behind it, added up" in readme
    assert "| Local | 0 | 0 | 1,280 |" in readme


def test_a_part_of_a_table_is_said_to_be_one_and_how_it_is_made_again(tmp_path):
    results = fake_results(methods=2, settings=2, seeds=1)
    results["config"]["seeds"] = [0, 1]
    results["subset"] |= {"settings": ["cifar10-0.1"], "seeds": [0]}
    results["cells"] = [cell for cell in results["cells"] if cell["setting"] == "cifar10-0.1"]
    write_results(results, tmp_path)
    readme = (write_report("fake", tmp_path) / "README.md").read_text()
    assert "Of 4 entries: 2 not run." in readme
    assert "-S 'subset.settings=[cifar10-0.1]' -S 'subset.seeds=[0]'" in readme
    assert "seed 1" not in readme


# ---- the files -----------------------------------------------------------------------------------------


def test_every_link_of_the_readme_leads_to_a_file(readme, folder):
    targets = re.findall(r'\]\(([^)]+)\)|src="([^"]+)"', readme)
    assert len(targets) > 8
    assert all((folder / (link or image)).is_file() for link, image in targets)


def test_the_page_needs_no_network(page):
    assert set(re.findall(r"https?://[^\s\"'<>)]+", page)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    assert not re.search(r"<(script|link|iframe|img)\b|@import", page)


def test_the_page_is_well_formed_and_escapes_what_it_is_given(page):
    unclosed, void = [], {"meta", "br"}

    class Tags(HTMLParser):
        def handle_starttag(self, tag, attrs):
            if tag not in void:
                unclosed.append(tag)

        def handle_endtag(self, tag):
            assert unclosed.pop() == tag

    Tags().feed(page)
    assert unclosed == []
    assert "<h1>A table of &lt;Tan&gt; &amp; al.</h1>" in page


def test_the_page_s_ids_are_unique(page):
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_the_same_results_give_the_same_files(root, folder):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    write_report("paper-table3", root)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_table_without_any_result_still_has_a_report(tmp_path):
    readme = small(tmp_path, cells=[])
    assert "| Local | *not run* |" in readme
    assert "Convergence" not in readme


def test_the_partition_of_a_row_that_departs_from_its_setting_is_listed(tmp_path):
    results = fake_results(methods=2, settings=2, seeds=1)
    results["config"]["methods"][1]["settings"] = {"cifar10-0.1": {"partition": "pathological:5"}}
    write_results(results, tmp_path)
    partitions = tmp_path / "data" / "partitions" / "fake"
    for suffix in ("json", "svg"):
        text = (partitions / f"cifar10-0.1.{suffix}").read_text()
        (partitions / f"cifar10-0.1.pfedsim.{suffix}").write_text(
            text.replace("dirichlet:0.1", "pathological:5")
        )
    folder = write_report("fake", tmp_path)
    readme = (folder / "README.md").read_text()
    listed = [line.split(" | ")[:2] for line in readme.splitlines() if ",min=10,test=0.25" in line]
    assert listed == [
        ["| CIFAR-10, Dir(0.1)", "dirichlet:0.1,min=10,test=0.25,seed=0"],
        ["| CIFAR-10, Dir(0.1), pFedSim", "pathological:5,min=10,test=0.25,seed=0"],
        ["| CIFAR-10, Dir(0.5)", "dirichlet:0.5,min=10,test=0.25,seed=0"],
    ]
    assert (folder / "partition-cifar10-0.1.pfedsim.svg").exists()
    assert "partition-cifar10-0.1.pfedsim.svg" in readme


def test_plots_of_a_setting_that_is_gone_do_not_stay(tmp_path):
    small(tmp_path)
    (tmp_path / "reports/tables/fake/partition-gone.svg").touch()
    small(tmp_path)
    assert not (tmp_path / "reports/tables/fake/partition-gone.svg").exists()


# ---- mistakes ------------------------------------------------------------------------------------------


def test_a_table_without_results_is_one_clear_line(tmp_path):
    with pytest.raises(InvalidInput, match="table: digits is not accepted; expected a table with results"):
        write_report("digits", tmp_path)


def test_a_folder_that_cannot_be_written_is_one_clear_line(tmp_path):
    write_results(fake_results(methods=2, settings=1, seeds=1), tmp_path)
    (tmp_path / "reports").write_text("a file in the way")
    with pytest.raises(InvalidInput, match="a folder that can be written"):
        write_report("fake", tmp_path)


def test_a_minus_is_one_in_latex(tmp_path):
    results = fake_results(2, 1, seeds=1, table="fake")
    results["config"]["evaluation"] = {"metric": "similarity", "measure": "mdb"}
    for cell in results["cells"]:
        for row in cell["pinned"]["rows"]:
            row["metrics"]["similarities"] = {"mdb": [[1.0, -0.25], [-0.25, 1.0]]}
    write_results(results, tmp_path)
    assert "$-$0.25" in (write_report("fake", tmp_path) / "table.tex").read_text()


def test_a_table_of_times_draws_no_accuracies(tmp_path):
    results = fake_results(3, 1, seeds=1, table="times")
    results["config"]["evaluation"] = {"metric": "seconds_per_sample"}
    write_results(results, tmp_path)
    folder = write_report("times", tmp_path)
    assert not list(folder.glob("convergence.svg"))
    for name in ("README.md", "index.html"):
        text = (folder / name).read_text()
        assert "Communication and time" in text
        assert "Accuracy by" not in text


def test_rows_of_other_files_that_did_the_same_are_told():
    rows = [Record.from_json({**ledger_row(), "sources": sources}) for sources in ("1", "2")]
    (line,) = changed_since(rows, "1")
    assert line == "1 of 2 rows are of other files of pfl/, which did the same when probed"
    assert changed_since(rows[:1], "1") == []


def test_plugins_are_named_with_version_and_hash():
    plugin = {"name": "mine", "version": "1.0", "digest": "a" * 64}
    rows = [Record.from_json({**ledger_row(), "plugins": used}) for used in ([plugin], [plugin], [])]
    assert plugins(rows) == ["plugin mine 1.0, SHA-256 aaaaaaaaaaaa…"]
