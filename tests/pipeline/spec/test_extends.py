"""Tables that extend another: what they inherit, and what they may not say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.spec.table import Table, load_table
from pipeline.spec.yaml import dumped
from tests.refusal import refusal

pytestmark = pytest.mark.usefixtures("project")

BASE = """\
title: A paper's table
dataset: digits
model: cnn_digits
clients: 5
schedule: {rounds: 2, lr: 0.05, momentum: 0.9}
settings:
  dir: {partition: "dirichlet:0.5", label: Dirichlet, schedule: {lr: 0.2}}
  two: "pathological:2"
methods:
- fedavg
- {method: fedprox, label: FedProx, params: {mu: 0.1}}
- {method: fedprox, as: strong, params: {mu: 1}}
seeds: [0, 1]
reference: fedavg
sources:
  schedule: "paper"
  settings.two: "paper"
  settings.label: "paper"
  methods.fedprox: "paper"
  methods.strong.mu: "paper"
"""


@pytest.fixture(autouse=True)
def base(project: Path) -> Path:
    file = project / "papers/mine/tables/mine-table1.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(BASE)
    return file


def study(**content: Any) -> Table:
    """The table that extends the base and has this content besides."""
    Path("tables/study.yaml").write_text(dumped({"extends": "mine-table1", **content}))
    return load_table("study")


def test_a_table_that_only_extends_another_is_equal_to_it():
    assert study() == load_table("mine-table1")


def test_a_mapping_is_merged_and_another_value_replaces_the_base_s():
    table = study(title="A study", schedule={"rounds": 3}, seeds=[7])
    assert (table.title, table.seeds, table.dataset) == ("A study", [7], "digits")
    assert (table.schedule.rounds, table.schedule.lr) == (3, 0.05)


def test_null_removes_a_key():
    table = study(schedule={"momentum": None}, reference=None, sources={"schedule": None})
    assert (table.schedule.momentum, table.schedule.lr) == (None, 0.05)
    assert table.reference is None
    assert "schedule" not in table.sources


def test_a_table_has_the_settings_that_it_lists_and_one_of_the_base_s_name_begins_with_it():
    table = study(settings={"new": "pathological:3", "dir": {"schedule": {"momentum": 0.5}}})
    assert list(table.settings) == ["new", "dir"]
    assert (table.settings["dir"].label, table.settings["dir"].partition) == ("Dirichlet", "dirichlet:0.5")
    assert (table.settings["dir"].schedule.lr, table.settings["dir"].schedule.momentum) == (0.2, 0.5)


def test_a_setting_in_short_form_changes_the_partition_alone():
    setting = study(settings={"dir": "dirichlet:0.1"}).settings["dir"]
    assert (setting.partition, setting.label) == ("dirichlet:0.1", "Dirichlet")


def test_a_table_has_the_rows_that_it_lists_and_one_of_the_base_s_name_begins_with_it():
    rows = ["local", "strong", {"method": "fedprox", "params": {"mu": 2}}]
    table = study(methods=rows, reference=None)
    assert [(row.id, row.method, row.label, row.params) for row in table.methods] == [
        ("local", "local", None, {}),
        ("strong", "fedprox", None, {"mu": 1}),
        ("fedprox", "fedprox", "FedProx", {"mu": 2}),
    ]


def test_sources_of_what_the_table_no_longer_has_are_not_inherited():
    table = study(settings={"two": {}}, methods=["fedavg"], reference=None, sources={"seeds": "our choice"})
    assert table.sources == {"schedule": "paper", "settings.two": "paper", "seeds": "our choice"}
    unset = study(methods=[{"as": "strong", "params": {"mu": None}}], reference=None).sources.keys()
    assert "methods.strong.mu" not in unset
    kept = study(methods=["strong"], reference=None).sources.keys()
    assert kept >= {"methods.fedprox", "methods.strong.mu"}


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("methods.fedporx.mu", "sources: methods.fedporx.mu is not accepted; expected a key, a row"),
        (
            "methods.strong.nu",
            "sources: methods.strong.nu is not accepted; expected a key, a row or a column",
        ),
        (
            "methods.fedavg.mu",
            "sources: methods.fedavg.mu is not accepted; expected a key, a row or a column",
        ),
        ("settings.dir.clients", "sources: settings.dir.clients is not accepted; expected a key, a row"),
        ("settings.two.lr", "sources: settings.two.lr is not accepted; expected a key, a row or a column"),
        ("settings.one", "sources: settings.one is not accepted; expected a key, a row or a column"),
        ("search", "sources: search is not accepted; expected a key, a row or a column of the table"),
        ("scheduel", "sources: scheduel is not accepted; expected a key, a row or a column"),
        ("schedule.lrr", "sources: schedule: lrr is not accepted; expected one of "),
    ],
)
def test_a_source_of_nothing_in_the_table_is_refused(base: Path, key, said):
    assert refusal(study, sources={key: "paper"}).startswith(f"tables/study.yaml: {said}")
    base.write_text(f'{BASE}  {key}: "paper"\n')
    assert refusal(load_table, "mine-table1").startswith(f"{base.relative_to(Path.cwd())}: {said}")


def test_a_source_may_name_what_a_row_or_a_setting_states():
    keys = [
        "methods.strong.params.mu",
        "methods.fedprox.label",
        "settings.dir.schedule.lr",
        "settings.schedule",
    ]
    assert study(sources=dict.fromkeys(keys, "paper")).sources.keys() >= {*keys}


def test_a_value_by_default_may_have_a_source():
    sources = {"schedule.epochs": "paper", "evaluation.which": "our choice"}
    assert study(sources=sources).sources.items() >= sources.items()


def test_sources_of_a_row_with_a_dot_in_its_name_are_inherited(project: Path):
    rows = [{"method": "fedprox", "as": "mu-0.1"}]
    study(methods=rows, reference=None, sources={"methods.mu-0.1": "our choice"})
    (project / "tables/third.yaml").write_text("extends: study\n")
    assert load_table("third").sources["methods.mu-0.1"] == "our choice"


def test_a_table_may_extend_one_that_extends_another(project: Path):
    study(schedule={"rounds": 3}, methods=["fedavg"])
    (project / "tables/third.yaml").write_text("extends: study\nschedule: {lr: 1}\n")
    table = load_table("third")
    assert (table.schedule.rounds, table.schedule.lr, table.schedule.momentum) == (3, 1, 0.9)
    assert [row.id for row in table.methods] == ["fedavg"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"extends": "mine-table2"}, "extends: mine-table2 is not accepted; expected one of mine-table1, "),
        ({"extends": ["mine-table1"]}, "extends: ['mine-table1'] is not accepted; expected one of mine-"),
        ({"extends": "study"}, "extends: study is not accepted; expected a table that does not extend this"),
        ({"search": None}, "search: null is not accepted; expected a key of mine-table1, which null removes"),
        ({"schedule": {"epochs": None}}, "schedule.epochs: null is not accepted; expected a key of mine-"),
        ({"evaluation": {"every": None}}, "evaluation.every: null is not accepted; expected a key of mine-"),
        ({"settings": {"new": {"label": None}}}, "settings.new.label: null is not accepted; expected a key"),
        ({"methods": [{"as": "strong", "label": None}]}, "methods.strong.label: null is not accepted; "),
        ({"settings": {"dir": 5}}, "settings.dir: 5 is not accepted; expected a mapping"),
        ({"methods": [["fedavg"]]}, "methods.0: ['fedavg'] is not accepted; expected a mapping"),
        ({"settings": {"dir": None}}, "settings.dir: None is not accepted; expected a mapping"),
        ({"methods": None}, "methods: nothing is not accepted; expected a value"),
        ({"methods": 5}, "methods: 5 is not accepted; expected a"),
        ({"settings": ["dir"]}, "settings: ['dir'] is not accepted; expected a"),
        ({"schedule": {"ephocs": 1}}, "schedule: key: ephocs is not accepted; expected one of"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_file_and_the_key(content, said):
    assert refusal(study, **content).startswith(f"tables/study.yaml: {said}")


def test_tables_that_extend_each_other_are_one_line(base: Path):
    base.write_text(f"extends: study\n{BASE}")
    assert refusal(study) == (
        "papers/mine/tables/mine-table1.yaml: extends: study is not accepted; expected a table that does not "
        "extend this one"
    )


@pytest.mark.parametrize(("old", "new"), [("lr: 0.05", "lr: fast"), (BASE, "- a list\n")])
def test_a_mistake_in_the_base_is_reported_with_the_base_s_file(base: Path, old, new):
    base.write_text(BASE.replace(old, new))
    assert refusal(study).startswith("papers/mine/tables/mine-table1.yaml: ")


def test_two_files_of_one_name_are_one_line(project: Path):
    (project / "tables/mine-table1.yaml").write_text(BASE)
    assert refusal(study) == (
        "tables/mine-table1.yaml: 'mine-table1' is not accepted; expected another name than that of "
        "papers/mine/tables/mine-table1.yaml"
    )
