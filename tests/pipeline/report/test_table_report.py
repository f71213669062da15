"""The report of a table: the table itself and the files."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import chdir
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from pfl.core.errors import InvalidInput
from pfl.core.files import folder_lock
from pipeline.report.table_report import publish, write_report
from pipeline.store.results import load_results
from tests.pipeline.fake_results import (
    cell_of,
    diverge,
    fail,
    fake_results,
    ledger_row,
    ledger_rows,
    write_results,
)
from tests.pipeline.report.conftest import line_of, realistic, report_of, small
from tests.pipeline.running import csv_lines

# ---- the table -----------------------------------------------------------------------------------------


def test_the_published_number_and_the_difference_are_beside_ours(readme):
    assert line_of(readme, "Local")[0] == "**81.00** ± 1.41<br><sub>▽ 84.30 ± 0.81 (−3.30)</sub>"


def test_what_a_table_says_is_text_and_never_html():
    results = fake_results(methods=2, settings=1, seeds=1)
    harm = '"><img src=x onerror=alert(1)> a|b'
    results["config"]["title"] = results["config"]["note"] = harm
    results["config"]["settings"]["cifar10-0.1"]["label"] = harm
    results["config"]["methods"][0]["label"] = harm
    results["config"]["sources"] = {"lr": harm}
    readme = small(config=results["config"])
    page = Path("results/fake/report/index.html").read_text()
    assert "<img src=x" not in readme + page
    header, rule, line = readme[readme.index("| Method |") :].splitlines()[:3]
    cells = [text.replace("\\|", "").count("|") for text in (header, rule, line)]
    assert cells == [3, 3, 3]
    assert "&lt;img src=x onerror=alert(1)> a\\|b" in line


def test_the_names_of_a_table_are_shown_as_they_are_and_are_no_formulas():
    results = fake_results(methods=2, settings=1, seeds=1, search=2)
    title, column, row = "Cost in $ and $x$", "`w_i` [a](b) | *c*", r"_ours_ ~~$\alpha$~~ &lt; \*"
    results["config"]["title"] = title
    results["config"]["settings"]["cifar10-0.1"]["label"] = column
    results["config"]["methods"][0]["label"] = row
    readme = small(config=results["config"], cells=results["cells"])
    page = MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(readme)
    for tag, text in (("h1", title), ("th", column), ("td", row)):
        shown = escape(text, quote=False).replace("$", "<span>$</span>")
        assert re.search(rf"<{tag}[^>]*>{re.escape(shown)}</{tag}>", page)
    assert "$" not in page.replace("<span>$</span>", "")


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
        assert "FedAvg, pinned configuration partial: seed 1: out of memory." in text


def test_the_report_of_a_part_of_a_table_touches_no_published_page():
    results = fake_results(methods=3, settings=2, seeds=1)
    results["subset"] = {"settings": ["cifar10-0.1"], "methods": ["local", "fedavg"], "seeds": []}
    results["cells"] = [cell_of(results, "cifar10-0.1/local")]
    published = [Path("reports", name) for name in ("README.md", "tables/fake/README.md")]
    for page in published:
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text("of the whole table")
    write_results(results)
    before = {path for path in Path().rglob("*") if path.is_file()}
    write_report("fake")
    assert [page.read_text() for page in published] == ["of the whole table"] * 2
    written = {path for path in Path().rglob("*") if path.is_file()} - before
    assert written
    assert all(path.is_relative_to("results") for path in written)


def test_what_params_yaml_left_out_is_not_selected_and_not_missing():
    results = fake_results(methods=3, settings=2, seeds=1)
    part = {"settings": ["cifar10-0.1"], "methods": ["local", "fedavg"], "seeds": []}
    cells = [cell_of(results, "cifar10-0.1/local")]
    readme = small(config=results["config"], subset=part, cells=cells)
    assert [line_of(readme, label)[0] for label in ("FedAvg", "pFedSim")] == ["*not run*", "*not selected*"]
    assert "Not selected: CIFAR-10, Dir(0.5)." in readme
    assert "Of 6 entries: 1 not run, 4 not selected." in readme


def test_hyperparameters_of_the_selected_configuration_are_shown(readme):
    selected = cell_of(realistic(), "cifar10-0.1/pfedsim")["selected"]
    assert f"rho = 0.5, lr = {selected['params']['lr']:.3g}" in readme


def test_the_csv_has_a_line_per_entry(folder):
    entries = csv_lines(folder / "table.csv")
    assert len(entries) == 4 * 2 * 2
    local = entries[0]
    assert (local["row"], local["mean"], local["seeds"]) == ("local", "81.0000", "2")
    assert (local["published_mean"], local["difference"]) == ("84.3", "-3.3000")
    assert (local["verdict"], local["provisional"]) == ("lower", "True")
    assert {entry["status"] for entry in entries} == {"done", "partial", "failed", "not run"}
    assert local["data"] == "digits: original pixels"
    assert local["keys"].split() == [ledger_row("cifar10-0.1/local", seed)["key"] for seed in (0, 1)]
    assert all(len(entry["keys"].split()) == int(entry["seeds"]) for entry in entries)


def test_records_of_a_data_set_that_has_been_renamed_since_are_of_the_one_with_the_new_name():
    results = fake_results(methods=2, settings=1, seeds=1)
    for cell in results["cells"]:
        cell["pinned"]["records"][0]["dataset"] = "former/digits.npz"
    assert {row["data"] for row in csv_lines(report_of(results) / "table.csv")} == {"digits: original pixels"}


def test_the_latex_table_is_booktabs_with_as_many_columns_as_settings(folder):
    text = (folder / "table.tex").read_text()
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert all(row.count(" & ") == 2 for row in rows)
    assert [text.count(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule")] == [1, 2, 1]
    assert r"Local & \textbf{81.00} $\pm$ 1.41 & \emph{not run} \\" in text
    assert r"\quad published & 84.30 $\pm$ 0.81 ($-3.30$) &  \\" in text


def test_latex_labels_are_escaped():
    results = fake_results(methods=2, settings=1, seeds=1)
    results["config"]["methods"][0]["label"] = "50%_&^~\\"
    escaped = r"50\%\_\&\textasciicircum{}\textasciitilde{}\textbackslash{}"
    assert escaped in (report_of(results) / "table.tex").read_text()


# ---- the files -----------------------------------------------------------------------------------------


def test_every_link_of_the_readme_leads_to_a_file(readme, folder):
    targets = re.findall(r'\]\(([^)]+)\)|src="([^"]+)"', readme)
    assert len(targets) >= 6
    assert all((folder / (link or image)).is_file() for link, image in targets)


@pytest.mark.parametrize("ended", ["diverged", "failed"])
def test_a_search_has_its_section_and_file_also_if_no_pinned_run_or_no_trial_has_a_result(ended):
    results = fake_results(methods=2, settings=1, seeds=1, search=3)
    for cell in results["cells"]:
        if ended == "diverged":
            diverge(cell["pinned"])
            selected = {"number": 1, "params": cell["searched"][1]["params"]}
            cell["selected"] = selected | {"records": ledger_rows(cell["cell"], [60.0], lr=0.1)}
            cell["selection"] = {"trial": 1, "comparisons": []}
        else:
            for trial in cell["searched"]:
                fail(trial, 0)
            cell |= {"selection": None, "selected": cell["pinned"]}
    folder = report_of(results)
    readme = (folder / "README.md").read_text()
    assert "## Search" in readme and "[search.csv](search.csv)" in readme
    assert ("](search.svg)" in readme) == (ended == "diverged")
    links = re.findall(r"\]\(([^)]+)\)", readme)
    assert [link for link in links if not (folder / link).is_file()] == []
    assert len(csv_lines(folder / "search.csv")) == 6


def test_the_page_needs_no_network(page):
    assert set(re.findall(r"https?://[^\s\"'<>)]+", page)) <= {"http://www.w3.org/2000/svg"}
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


def test_the_page_has_the_sections_of_the_readme_and_links_to_each(readme, page):
    sections = re.findall("^## (.+)", readme, re.MULTILINE)
    assert "Convergence" in sections
    listed = re.findall('<a href="#[^"]+">([A-Z][^<]+)</a>\n', page)
    assert [section for section in listed if section != "Clients"] == sections
    assert "Clients" in listed  # its picture is on the page only
    assert set(re.findall(r'<a [^>]*href="#([^"]+)"', page)) <= set(re.findall(r'\bid="([^"]+)"', page))


def test_the_same_results_give_the_same_files(root, folder):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with chdir(root):
        write_report("paper-table3")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_table_without_any_result_still_has_a_report():
    readme = small(cells=[])
    assert "| Local | *not run* |" in readme
    assert "Convergence" not in readme
    (plots,) = Path().glob("results/*/plots")
    assert not list(plots.iterdir())  # DVC expects the folder


def test_the_partition_of_a_row_that_departs_from_its_setting_is_listed():
    results = fake_results(methods=2, settings=2, seeds=1)
    results["config"]["methods"][1]["settings"] = {"cifar10-0.1": {"partition": "pathological:5"}}
    write_results(results)
    partitions = Path("data/partitions/fake")
    for suffix in ("json", "svg"):
        text = (partitions / f"cifar10-0.1.{suffix}").read_text()
        (partitions / f"cifar10-0.1.pfedsim.{suffix}").write_text(
            text.replace("dirichlet:0.1", "pathological:5")
        )
    folder = write_report("fake")
    readme = (folder / "README.md").read_text()
    listed = [line.split(" | ")[:2] for line in readme.splitlines() if ",min=10,test=0.25" in line]
    assert listed == [
        ["| CIFAR-10, Dir(0.1)", "dirichlet:0.1,min=10,test=0.25,seed=0"],
        ["| CIFAR-10, Dir(0.1), pFedSim", "pathological:5,min=10,test=0.25,seed=0"],
        ["| CIFAR-10, Dir(0.5)", "dirichlet:0.5,min=10,test=0.25,seed=0"],
    ]
    assert (folder / "partition-cifar10-0.1.pfedsim.svg").exists()
    assert 'aria-label="Partition CIFAR-10, Dir(0.1), pFedSim"' in (folder / "index.html").read_text()


def test_plots_of_a_setting_that_is_gone_do_not_stay():
    small()
    gone = Path("results/fake/report/partition-gone.svg")
    gone.touch()
    small()
    assert not gone.exists()


# ---- mistakes ------------------------------------------------------------------------------------------


def test_a_folder_that_cannot_be_written_is_one_clear_line():
    write_results(fake_results(methods=2, settings=1, seeds=1))
    Path("results/fake/report").write_text("a file in the way")
    with pytest.raises(InvalidInput, match="a file that can be written"):
        write_report("fake")


def test_a_published_report_that_cannot_be_replaced_stays(monkeypatch):
    def full(path: Path, _text: str) -> None:
        raise InvalidInput("file", str(path), "a file that can be written (No space left on device)")

    small()
    folder = publish("fake")
    files = {path: path.read_bytes() for path in folder.iterdir()}
    monkeypatch.setattr("pipeline.report.table_report.write_text", full)
    with pytest.raises(InvalidInput, match="No space left"):
        publish("fake")
    assert {path: path.read_bytes() for path in folder.iterdir()} == files


def test_processes_that_publish_one_report_take_turns():
    small()
    folder = publish("fake")
    stale = folder / "stale.svg"
    stale.touch()
    with ThreadPoolExecutor() as pool:
        with folder_lock(folder):
            other = pool.submit(publish, "fake")
            wait([other], timeout=0.2)
            assert stale.exists()
        other.result()
    assert not stale.exists()


def test_a_minus_is_one_in_latex():
    results = fake_results(2, 1, seeds=1, table="fake")
    results["config"]["evaluation"] = {"metric": "similarity", "measure": "mdb"}
    for cell in results["cells"]:
        for row in cell["pinned"]["records"]:
            row["metrics"]["similarities"] = {"mdb": [[1.0, -0.25], [-0.25, 1.0]]}
    assert "$-$0.25" in (report_of(results) / "table.tex").read_text()


def test_a_table_of_times_draws_no_accuracies():
    results = fake_results(3, 1, seeds=1, table="times")
    results["config"]["evaluation"] = {"metric": "seconds_per_sample"}
    folder = report_of(results)
    assert not list(folder.glob("convergence.svg"))
    for name in ("README.md", "index.html"):
        text = (folder / name).read_text()
        assert "Clients and costs" in text
        assert "Accuracy by" not in text


def test_the_note_of_a_table_is_markdown_on_the_page_too():
    results = fake_results(1, 1, seeds=1, table="fake")
    results["config"]["note"] = "With `precision: bf16` and <b>nothing</b> else."
    page = (report_of(results) / "index.html").read_text()
    assert "With <code>precision: bf16</code> and &lt;b&gt;nothing&lt;/b&gt; else." in page


def test_published_ranks_are_shown_where_a_paper_prints_the_numbers(readme, page):
    assert "Rank published" in readme
    assert "Rank published" in page
    folder = report_of(fake_results(2, 1, seeds=2, search=3, table="fake"))
    for name in ("README.md", "index.html"):
        text = (folder / name).read_text()
        assert "Rank tuned" in text
        assert "Rank published" not in text


@pytest.mark.parametrize(
    "damage", [lambda rows: rows.replace(b"60", b"61"), lambda rows: rows.splitlines()[0]]
)
def test_records_that_are_damaged_or_missing_are_one_clear_line(damage):
    results = fake_results(2, 1, seeds=1)
    write_results(results)
    rows = Path("results/fake/rows.jsonl")
    rows.write_bytes(damage(rows.read_bytes()))
    said = r"results/fake/results\.json is not accepted; expected files that"
    with pytest.raises(InvalidInput, match=said):
        load_results("fake")
