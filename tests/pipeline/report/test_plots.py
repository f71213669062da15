"""The report's plots."""

from __future__ import annotations

import copy
import re
from operator import attrgetter

import numpy as np
import pytest
from matplotlib.figure import Figure

from pipeline.report.plots import clients, communication, convergence, draw, inline, looks
from pipeline.report.summary import Summary
from pipeline.svg import svg_text
from tests.pipeline.fake_results import cell_of, diverge, fail, fake_results, reach, summary_of


@pytest.fixture(scope="module")
def drawn() -> dict[str, str]:
    return draw(summary_of(fake_results(seeds=2, search=3)))


def test_results_give_every_plot(drawn):
    assert list(drawn) == ["convergence", "clients", "communication"]


def test_dollar_signs_in_labels_are_drawn_and_begin_no_formula():
    results = fake_results(seeds=2)
    results["config"]["settings"]["cifar10-0.1"]["label"] = r"$\frac{$"
    results["config"]["methods"][0]["label"] = "a$b$c"
    for svg in draw(summary_of(results)).values():
        drawn = re.findall(">([^<>]*)</text>", svg)
        assert {r"$\frac{$", "a$b$c"} <= set(drawn)


def test_where_all_pinned_runs_failed_nothing_is_drawn():
    results = fake_results(settings=1, seeds=1)
    for cell in results["cells"]:
        fail(cell["pinned"], 0)
    assert draw(summary_of(results)) == {}


@pytest.mark.parametrize("plot", [convergence, communication])
def test_only_accuracies_are_on_an_axis_of_accuracies(plot):
    results = fake_results(settings=2, seeds=1)
    results["config"]["methods"][0]["evaluation"] = {"metric": "seconds_per_sample"}
    _, second = results["config"]["settings"].values()
    second["evaluation"] = {"metric": "seconds_per_sample"}
    figure = plot(summary_of(results))
    drawn, empty = ({line.get_color() for line in axes.lines} for axes in figure.axes)
    assert (len(drawn), len(empty)) == (2, 0)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["FedAvg", "pFedSim"]


def test_twelve_methods_look_different_and_do_so_in_every_plot(drawn):
    twelve = looks(summary_of(fake_results(methods=12, seeds=1)), attrgetter("successes"))
    assert len(set(twelve.values())) == 12
    for look in list(twelve.values())[:3]:
        assert all(look.colour in svg for svg in drawn.values())


def large_table() -> Summary:
    """48 rows; the twelve with the highest accuracies are every fourth one."""
    results = fake_results(methods=12, settings=1, seeds=1)
    rows, cells = results["config"]["methods"], results["cells"]
    results["config"]["methods"] = [
        {**row, "as": f"{row['as']}{i}", "label": f"{row['label']} {i}"} for i in range(4) for row in rows
    ]
    results["cells"] = []
    for place, row in enumerate(results["config"]["methods"]):
        name = f"cifar10-0.1/{row['as']}"
        cell = copy.deepcopy(cells[place % 12]) | {"cell": name, "row": row["as"]}
        reach(cell, 90.0 if place % 4 == 0 else 50.0)
        results["cells"].append(cell)
    return summary_of(results)


@pytest.mark.parametrize(("plot", "looks"), [(convergence, ["color"]), (communication, ["color", "marker"])])
def test_rows_of_a_large_table_are_drawn_differently(plot, looks):
    (legend,) = plot(large_table()).legends
    drawn = [tuple(getattr(line, f"get_{name}")() for name in looks) for line in legend.legend_handles]
    assert len(drawn) == len(set(drawn)) == (12 if plot is convergence else 48)


def test_a_curve_is_the_mean_over_the_seeds():
    results = fake_results(methods=2, settings=1, seeds=3)
    rows = cell_of(results, "cifar10-0.1/local")["pinned"]["records"]
    (axes,) = convergence(summary_of(results)).axes
    expected = np.mean(
        [[r["post_aggregation"]["pooled"] for r in row["metrics"]["rounds"]] for row in rows], axis=0
    )
    np.testing.assert_allclose(axes.lines[0].get_ydata(), expected)
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), [5, 10, 15, 20, 25, 30])


def test_rounds_have_whole_numbers_as_ticks():
    (axes,) = convergence(summary_of(fake_results(methods=2, settings=1, seeds=1))).axes
    axes.set_xlim(1, 3)
    assert all(tick == int(tick) for tick in axes.get_xticks())


def test_the_curve_of_a_method_that_diverged_ends_with_that_word():
    results = fake_results(methods=2, settings=1, seeds=1)
    diverge(cell_of(results, "cifar10-0.1/pfedsim")["pinned"])
    figure = convergence(summary_of(results))
    (axes,), (legend,) = figure.axes, figure.legends
    assert len(axes.lines) == 2
    (word,) = axes.texts
    assert (word.get_text(), word.xy[0]) == ("diverged", axes.lines[1].get_xdata()[-1])
    assert [text.get_text() for text in legend.get_texts()] == ["Local", "pFedSim"]


def test_a_method_that_diverged_has_no_place_where_final_accuracies_are_drawn():
    results = fake_results(methods=2, settings=1, seeds=1)
    diverge(cell_of(results, "cifar10-0.1/pfedsim")["pinned"])
    (legend,) = communication(summary_of(results)).legends
    assert [text.get_text() for text in legend.get_texts()] == ["Local"]


def test_a_method_that_has_not_run_is_in_no_legend():
    results = fake_results(methods=2, settings=1, seeds=1)
    results["cells"] = [cell_of(results, "cifar10-0.1/local")]
    (legend,) = convergence(summary_of(results)).legends
    assert [text.get_text() for text in legend.get_texts()] == ["Local"]


def test_clients_without_test_samples_are_left_out():
    results = fake_results(methods=2, settings=1, seeds=2, clients=6)
    for row in cell_of(results, "cifar10-0.1/local")["pinned"]["records"]:
        row["metrics"]["per_client"][0]["accuracy"] = None
    (axes,) = clients(summary_of(results)).axes
    ticks = np.unique(axes.lines[0].get_xdata())
    assert len(ticks) == 5


def test_a_setting_without_results_says_so():
    results = fake_results(methods=2, settings=2, seeds=1)
    results["cells"] = [cell for cell in results["cells"] if cell["setting"] == "cifar10-0.1"]
    _, empty = convergence(summary_of(results)).axes
    assert [text.get_text() for text in empty.texts] == ["no results"]


def test_in_a_page_the_text_takes_the_page_s_colours(drawn):
    element = inline(drawn["convergence"], "convergence", "Accuracy by round")
    assert "#1f2328" not in element
    assert "var(--ink)" in element
    assert element.startswith('<svg role="img" aria-label="Accuracy by round"')


def test_every_reference_inside_a_plot_resolves(drawn):
    for svg in drawn.values():
        element = inline(svg, "one", "")
        wanted = set(re.findall(r'(?:href="#|url\(#)([^")]+)', element))
        assert wanted
        assert wanted <= set(re.findall(r'\bid="([^"]+)"', element))


def test_bubbles_of_all_sizes_are_circles_where_they_were():
    figure = Figure(figsize=(2, 2), dpi=72)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, 144), ylim=(144, 0))
    axes.scatter([30, 100], [40, 90], s=np.square([10, 24]), linewidths=0)
    circles = re.findall(r'<circle cx="(.+?)" cy="(.+?)" r="(.+?)"', svg_text(figure))
    assert np.array(circles, float) == pytest.approx(np.array([[30, 40, 5], [100, 90, 12]]), abs=0.02)


def test_a_label_is_escaped(drawn):
    assert 'aria-label="2 &lt; 3 &quot;classes&quot;"' in inline(
        drawn["communication"], "one", '2 < 3 "classes"'
    )
