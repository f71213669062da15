"""The figures' files, and changes of what they run."""

from __future__ import annotations

from pathlib import Path

import pytest

from pfl.core.errors import InvalidInput
from pipeline.figures.figure import FigureChanges, changed, load_figure, parts_of
from pipeline.figures.plots import PLOTS
from pipeline.spec.paths import figure_names, table_file
from pipeline.spec.table import Subset
from pipeline.sweep.check import check_runs
from tests.pipeline.conftest import printed
from tests.repository import replace_text


@pytest.mark.parametrize("name", figure_names())
def test_every_figure_can_be_run_and_drawn_as_far_as_can_be_known_before(name):
    assert name.startswith(f"{table_file(name).parts[1]}-"), "it is in the folder of its paper"
    figure = load_figure(name)
    check_runs(name, figure)
    assert figure.draw in PLOTS
    assert figure.sources
    if figure.draw in ("curves", "sweep", "clients"):
        rows = {row.id for row in figure.methods}
        for claim in figure.claims:
            assert rows.issuperset(claim.series), "claims are about series that the runs have"
            assert set(figure.settings).issuperset(claim.panels)


def test_a_change_reaches_every_setting_and_row_and_is_said():
    figure, notes = changed(
        load_figure("fedcac-figure4"), FigureChanges(rounds=5, dataset="cifar10", model="lenet5")
    )
    assert (figure.schedule.rounds, figure.dataset, figure.model) == (5, "cifar10", "lenet5")
    assert notes == [
        "dataset cifar10 instead of tiny_imagenet",
        "model lenet5 instead of resnet10",
        "rounds 5 instead of 500",
    ]


def test_what_is_as_pinned_is_no_change():
    figure = load_figure("pfedcs-figure1")
    assert changed(figure, FigureChanges()) == (figure, [])
    assert changed(figure, FigureChanges(rounds=10, dataset="cifar10"))[1] == []


def test_a_part_of_a_figure_is_a_change():
    subset = Subset(settings=["cifar10"], methods=["tau-0.1", "tau-0.5"])
    figure, notes = changed(load_figure("fedcac-figure5"), FigureChanges(subset=subset, model="lenet5"))
    assert ([*figure.settings], [row.id for row in figure.methods]) == (["cifar10"], ["tau-0.1", "tau-0.5"])
    assert notes[0] == "settings cifar10 only"
    assert notes[2] == "model lenet5 instead of resnet8"


def test_one_data_set_does_not_take_the_place_of_several():
    with pytest.raises(InvalidInput, match="settings of one data set"):
        changed(load_figure("spfl-figure5"), FigureChanges(dataset="digits"))


def test_an_unknown_figure_or_setting_is_one_clear_line():
    for name in ("fedcac-figure33", "fedcac-figure"):
        with pytest.raises(InvalidInput, match="fedcac-figure3"):
            parts_of(name)
    for name, shown in (("mnist", "mnist"), ("", "''")):
        with pytest.raises(InvalidInput, match=f"--settings: {shown} is not accepted; expected one"):
            changed(load_figure("fedcac-figure5"), FigureChanges(subset=Subset(settings=[name])))


def test_a_wrong_file_is_one_clear_line(project: Path):
    replace_text(project / "papers/fedcac/figures/fedcac-figure5.yaml", "kind: peak", "kind: pique")
    with pytest.raises(InvalidInput, match=r"papers/fedcac/figures/fedcac-figure5\.yaml: claims\.0"):
        load_figure("fedcac-figure5")


def test_the_list_says_how_large_each_figure_is_and_which_runs_nothing():
    listed = printed("figures", "fedcac-figure1", "pfedsim-figure3").splitlines()
    (first,) = (line for line in listed if line.startswith("fedcac-figure1a"))
    assert first.split()[1:4] == ["3", "9", "45,000"]  # cells, runs, client-epochs
    assert any("pfedsim-figure3" in line and "needs no runs" in line for line in listed)


def test_a_project_without_figures_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert (
        printed("figures") == "this project has no figures; a checkout of pfl-repro has those of the papers\n"
    )
    with pytest.raises(
        InvalidInput, match="figure fedcac-figure1: this project has no figures; expected a checkout"
    ):
        parts_of("fedcac-figure1")
