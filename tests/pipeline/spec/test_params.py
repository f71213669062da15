"""The tables that are made, and the part of them that is run."""

from __future__ import annotations

from pathlib import Path

import pytest

from pfl.core.errors import InvalidInput
from pipeline.spec.cells import cells
from pipeline.spec.params import load_part, selected_tables
from pipeline.spec.paths import table_names
from pipeline.spec.table import Subset, load_table
from pipeline.sweep.check import check_searched, check_tables
from tests.refusal import refusal
from tests.repository import ROOT

pytestmark = pytest.mark.usefixtures("project")


def select(**subset: list) -> None:
    Path("params.yaml").write_text(f"tables: [small]\nsubset: {subset}\n")


def test_without_a_subset_a_table_is_run_whole():
    assert load_part("small") == load_table("small")


def test_a_subset_is_of_settings_rows_and_seeds_in_the_table_s_own_order(edit):
    edit("search: {trials: 4}\n", "")
    select(settings=["two"], methods=["fedprox", "fedavg"], seeds=[0])
    part = load_part("small")
    assert [cell.id for cell in cells("small", part)] == ["two/fedavg", "two/fedprox"]
    assert part.seeds == [0]


def test_data_of_columns_outside_the_subset_need_not_be_there(edit):
    edit('two: "pathological:2"', 'two: {partition: "pathological:2", dataset: nowhere/photos.zip}')
    with pytest.raises(InvalidInput, match=r"nowhere/photos\.zip"):
        check_tables()
    select(settings=["dir"])
    assert check_tables() == ["small: 2 cells, about 32 runs"]


@pytest.mark.parametrize(
    ("subset", "said"),
    [
        ({"settings": ["too"]}, "subset.settings: too is not accepted; expected one of dir, two (did you"),
        ({"methods": ["fedper"]}, "subset.methods: fedper is not accepted; expected one of fedavg, fedprox"),
        ({"seeds": [0, 0]}, "subset.seeds: [0, 0] is not accepted; expected each once"),
        ({"seeds": [0, 7]}, "subset.seeds: 7 is not accepted; expected one of 0, 1"),
        ({"seeds": [1]}, "subset.seeds: [1] is not accepted; expected all seeds, because the"),
        ({"setting": ["dir"]}, "params.yaml: subset: key: setting is not accepted; expected one of methods"),
    ],
)
def test_a_name_that_the_table_does_not_have_is_one_line(subset, said):
    select(**subset)
    assert said in refusal(check_tables)


@pytest.mark.parametrize("table", table_names())
def test_every_row_of_every_table_can_be_run_by_itself(table, monkeypatch):
    monkeypatch.chdir(ROOT)
    whole = load_table(table)
    for row in whole.methods:
        check_searched(table, whole.part(Subset(methods=[row.id])), whole)


def test_a_range_of_a_row_that_is_left_out_is_no_mistake(edit):
    edit("trials: 4}", "trials: 4, space: {mu: [0.1, 1]}}")
    select(methods=["fedavg"])
    assert check_tables()


def test_dvc_leaves_the_comments_of_params_yaml(tmp_path):
    from dvc.utils.hydra import apply_overrides

    file = tmp_path / "params.yaml"
    text = (ROOT / "params.yaml").read_text()
    file.write_text(text)
    apply_overrides(str(file), ["tables=[cifar10-short]", "subset.methods=[fedavg]", "subset.seeds=[0]"])
    comments = [line for line in text.splitlines() if "#" in line]
    assert [line for line in file.read_text().splitlines() if "#" in line] == comments


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("tables: [small, small]", "params.yaml: tables: small is not accepted; expected each table once"),
        ("tables: []", "params.yaml: tables: [] is not accepted; expected at least one"),
        ("tables: small", "params.yaml: tables: small is not accepted; expected a list, as in"),
        ("tables: [smal]", "params.yaml: table: smal is not accepted; * (did you mean 'small'?)"),
        ("tabels: [small]", "params.yaml: key: tabels is not accepted; expected one of subset, tables *"),
        ("tables: [2024-13-45]", "params.yaml: month must be in 1..12 is not accepted; expected YAML"),
        ('tables: [!!int "x"]', "params.yaml: * is not accepted; expected YAML"),
        ("[" * 2000, "params.yaml: * is not accepted; expected YAML"),
        ("[" * 2000 + "]" * 2000, "params.yaml: [[[[[[[...]]]]]]] is not accepted; expected *"),
    ],
)
def test_params_yaml_is_held_to_the_same(project, content, said):
    (project / "params.yaml").write_text(content)
    line = refusal(selected_tables)
    for part in said.split("*"):
        assert part in line
