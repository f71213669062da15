"""The overview of all papers' tables."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from pipeline.report.overview import write_overview
from pipeline.report.table_report import publish
from tests.pipeline.fake_results import diverge, fake_results, reach
from tests.pipeline.report.conftest import PUBLISHED, line_of, report_of

TABLE = """\
title: pFedSim, Table 3
dataset: digits
model: cnn_digits
clients: 100
settings:
  cifar10-0.1:
    partition: "dirichlet:0.1"
    published: {dataset: cifar10, partition: dirichlet, partition_arg: alpha=0.1, clients: 100}
  cifar10-0.5:
    partition: "dirichlet:0.5"
    published: {dataset: cifar10, partition: dirichlet, partition_arg: alpha=0.5, clients: 100}
methods: [local, fedavg, pfedsim]
seeds: [0]
published: {paper: pfedsim, table: "3"}
"""
LINK = "[pFedSim, Table 3](tables/pfedsim-table3/README.md)"
CLAIM = "claims: [{says: best, place: Section 5, kind: best, row: pfedsim}]\n"


@pytest.fixture(autouse=True)
def root(project: Path) -> Path:
    """A project with a paper's table of six cells, of which three have been run, and two of its own."""
    (project / "tables/pfedsim-table3.yaml").write_text(TABLE + CLAIM)
    again = TABLE.replace("Table 3", "Table 3, again").replace("[local, fedavg, pfedsim]", "[fedavg]")
    (project / "tables/pfedsim-table3-again.yaml").write_text(again)
    publish_report(paper_results())
    publish_report(fake_results(2, 1, seeds=1, table="small"))
    return project


def paper_results() -> dict:
    """Those of the paper's table."""
    published = {"paper": "pfedsim", "table": "3"}
    results = fake_results(3, 1, seeds=1, table="pfedsim-table3", published=published)
    results["config"]["settings"]["cifar10-0.1"]["published"] = PUBLISHED
    results["config"]["claims"] = [{"says": "best", "place": "Section 5", "kind": "best", "row": "pfedsim"}]
    return results


def publish_report(results: dict) -> None:
    """Publish a report of some results."""
    report_of(results)
    publish(results["table"])


def test_a_table_has_its_cells_simulations_verdicts_and_claims_in_five_columns():
    text = write_overview().read_text()
    # Ours are 35 (local), 40 (fedavg) and 45 (pfedsim) by and large; printed are 84.30, 24.77 and 86.76.
    columns = line_of(text, LINK)
    assert columns == ["3 of 6 (3 simulations)", "", "1", "2", "1 confirmed (one seed)"]
    assert "| Table | Pinned cells run | Reproduced | Higher | Lower | Claims |" in text


def test_a_paper_s_row_is_the_sum_of_its_tables():
    text = write_overview().read_text()
    expected = ["3 of 6 (3 simulations)", "", "1", "2", "1 confirmed (one seed)"]
    assert line_of(text, "[pFedSim](#pfedsim)") == line_of(text, "**All**") == expected


def test_a_table_that_only_repeats_cells_of_another_is_a_study():
    counted, studies = write_overview().read_text().split("## Studies")
    assert "Table 3, again" not in counted
    assert line_of(studies, "pFedSim, Table 3, again") == ["0 of 2", "", "", "", ""]


def test_a_plot_stays_until_it_is_drawn_again_and_is_removed_once_it_has_no_points(root, monkeypatch):
    plot = write_overview().with_name("overview.svg")
    before = plot.read_bytes()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("pipeline.report.overview.scatter", interrupted)
        write_overview()
    assert plot.read_bytes() == before
    shutil.rmtree(root / "reports/tables/pfedsim-table3")
    assert "overview.svg" not in write_overview().read_text()
    assert not plot.exists()


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_simulation_behind_several_cells_counts_once(root):
    report = root / "reports/tables/pfedsim-table3/table.csv"
    first, second = (line.rpartition(",")[2] for line in report.read_text().splitlines()[1:3])
    report.write_text(report.read_text().replace(first, second))
    assert line_of(write_overview().read_text(), "**All**")[0] == "3 of 6 (2 simulations, 1 shared)"


def test_a_simulation_behind_cells_of_two_tables_is_counted_at_the_first(root):
    for table in ("pfedsim-table3", "pfedsim-table3-more"):
        file = root / f"tables/{table}.yaml"
        fewer = TABLE.replace("Table 3", table).replace("[local, fedavg, pfedsim]", "[local, fedavg]")
        file.write_text(fewer if table == "pfedsim-table3" else TABLE.replace("Table 3", table))
    shutil.copytree(root / "reports/tables/pfedsim-table3", root / "reports/tables/pfedsim-table3-more")
    report = root / "reports/tables/pfedsim-table3-more/table.csv"
    local, fedavg, pfedsim = (line.rpartition(",")[2] for line in report.read_text().splitlines()[1:4])
    report.write_text(report.read_text().replace(pfedsim, fedavg))
    assert local != fedavg
    columns = line_of(write_overview().read_text(), "**All**")
    # Of the six cells, three have run; pFedSim's is from the simulation of FedAvg's, which is counted.
    assert columns[:4] == ["3 of 6 (2 simulations, 1 shared)", "", "1", "1"]


def test_rows_that_cannot_be_compared_are_counted_by_themselves():
    content = paper_results()
    content["config"]["published"]["incomparable"] = [{"rows": ["local"], "why": "Other clients."}]
    publish_report(content)
    text = write_overview().read_text()
    assert line_of(text, "**All**")[:4] == ["3 of 6 (3 simulations, 1 not comparable)", "", "1", "1"]
    assert (
        "3 cells from 3 simulations, of which 1 cannot be compared. 2 of 2 verdicts are provisional" in text
    )


def test_the_paper_s_own_method_is_compared_with_the_others_at_one_moment(root):
    file = root / "tables/pfedsim-table3.yaml"
    file.write_text(file.read_text() + "reference: pfedsim\n")
    content = paper_results()
    content["config"]["reference"] = "pfedsim"
    for cell, accuracies in zip(content["cells"], ((50, 51), (81, 82.1), (70, 71)), strict=True):
        reach(cell, *accuracies)
    content["config"]["seeds"] = [0, 1]
    publish_report(content)
    block = (
        write_overview().read_text().partition("## All methods at the same moment")[2].partition("\n## ")[0]
    )
    trained, received = [line for line in block.splitlines() if line.startswith("| [pFedSim, Table 3]")]
    cells = [cell.strip() for cell in trained.strip("|").split("|")]
    assert cells[1:] == [
        "cifar10-0.1",
        "After local training on the client's own data",
        "pFedSim 75.50",
        "FedAvg +11.05",
        "",
        "Local −20.00",
        "",
    ]
    assert "| As received, before local training | pFedSim 70.50 |" in received


def test_a_claim_in_part_and_one_of_few_seeds_are_named_in_the_overview(root):
    (root / "reports/tables/pfedsim-table3/claims.csv").write_text(
        "claim,place,published,published_shown,ours,ours_shown,held,run,undecided,few_seeds\n"
        "a,here,confirmed,,in part,,2,4,1,1\nb,here,confirmed,,refuted,,,,,\nc,here,confirmed,,open,,,,,\n"
    )
    answers = line_of(write_overview().read_text(), LINK)[-1]
    assert answers == "1 refuted, 1 in part (in 2 of 4 columns run, undecided in 1, one seed), 1 open"


def test_a_cell_that_diverged_is_run_and_neither_higher_nor_lower():
    content = paper_results()
    diverge(content["cells"][2]["pinned"])
    publish_report(content)
    columns = line_of(write_overview().read_text(), "**All**")
    assert columns[:4] == ["3 of 6 (3 simulations, 1 diverged)", "", "1", "1"]


def test_verdicts_of_fewer_than_three_seeds_are_said_to_be_provisional():
    text = write_overview().read_text()
    assert text.count("3 cells from 3 simulations. 3 of 3 verdicts are provisional: fewer than 3 seeds.") == 2


def test_printed_cells_that_describe_data_are_counted_apart():
    text = write_overview().read_text()
    assert "The papers print 294 cells: 272 are results of runs, and 22 describe data." in text


def test_a_report_on_a_copy_of_the_data_counts_nowhere_and_is_listed_as_superseded(root):
    report = root / "reports/tables/pfedsim-table3/table.csv"
    report.write_text(report.read_text().replace("original pixels", "JPEG copy"))
    counted, superseded = write_overview().read_text().split("## Superseded")
    assert (
        line_of(counted, "pFedSim, Table 3")
        == line_of(counted, "**All**")
        == ["0 of 6", "", "", "", "1 open"]
    )
    columns = line_of(superseded, LINK)
    assert columns == ["digits: JPEG copy", "3 of 6 (3 simulations)", "", "1", "2", "1 confirmed (one seed)"]
    assert "overview.svg" not in counted + superseded
    assert not (root / "reports/overview.svg").exists()


def test_tables_of_the_paper_without_runs_are_named_with_the_reason():
    assert "Table 4 has no runs. Describes data" in write_overview().read_text()


def test_tables_without_published_numbers_are_no_part_of_it():
    assert "small" not in write_overview().read_text()


def test_what_was_run_is_drawn_against_what_is_printed(root):
    text = write_overview().read_text()
    assert "(overview.svg)" in text
    plot = (root / "reports/overview.svg").read_text()
    assert "ours, lower (provisional)" in plot
    assert "SPFL" not in plot


def test_every_link_leads_somewhere(root):
    text = write_overview().read_text()
    headings = {heading.lower().replace(" ", "-") for heading in re.findall(r"^## (.+)$", text, re.MULTILINE)}
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if not target.startswith("https://"):  # a paper's
            assert target[1:] in headings if target[0] == "#" else (root / "reports" / target).is_file()


def test_reports_on_the_software_itself_are_listed_by_name(root):
    assert "## Engineering" not in write_overview().read_text()
    for name in ("speed", "faults"):
        (root / "reports/engineering" / name).mkdir(parents=True)
        (root / "reports/engineering" / name / "README.md").touch()
    links = "[faults](engineering/faults/README.md),\n[speed](engineering/speed/README.md).\n"
    assert write_overview().read_text().endswith(links)


def test_it_begins_with_what_was_learnt_over_all_papers(root):
    (root / "tables/overview.md").write_text("- Ask for the split.\n")
    text = write_overview().read_text()
    first, _, rest = text.partition("\n\n")
    assert first == "# The papers' tables"
    picture = "![Our numbers against the published ones](overview.svg)"
    assert rest.startswith(f"{picture}\n\n## Findings\n\n- Ask for the split.\n\n## Progress\n\nThe")


def test_without_any_report_nothing_is_run_and_nothing_drawn(root):
    shutil.rmtree(root / "reports")
    text = write_overview().read_text()
    assert line_of(text, "pFedSim, Table 3")[0] == "0 of 6"
    assert "overview.svg" not in text


PAPER = """\
name: Mine
title: A paper of one's own
authors: [Doe]
venue: arXiv
year: 2026
link: https://example.org
facts: [{place: Section 4, seeds: 1}]
"""


def test_a_folder_adds_a_paper(root):
    folder = root / "papers/mine"
    (folder / "tables").mkdir(parents=True)
    (folder / "paper.yaml").write_text(PAPER)
    shutil.copy(root / "papers/fedcac/published.csv", folder)
    own = TABLE.replace("pFedSim, Table 3", "Mine, Table 1").replace("paper: pfedsim", "paper: mine")
    (folder / "tables/mine-table1.yaml").write_text(own.replace('"3"', '"1"'))
    text = write_overview().read_text()
    assert "## Mine\n\nDoe: [A paper of one's own](https://example.org). arXiv, 2026.\n\n| Table |" in text
    assert text.index("## Mine") < text.index("## pFedSim")


def test_released_results_follow_the_papers_under_their_own_heading(root):
    table = TABLE.replace("paper: pfedsim", "paper: spfl, file: plga_released.csv").replace('"3"', "mnist")
    (root / "tables/released.yaml").write_text(table)
    text = write_overview().read_text()
    assert text.index("## pFedSim") < text.index("## PLGA's released runs\n\n| Table |")
    assert "The papers print 294 cells, and their authors released 14 more: 286 are results of runs" in text
