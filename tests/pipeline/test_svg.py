"""Figures as SVG text."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from matplotlib.figure import Figure

from pipeline.svg import compact, svg_text


def test_coordinates_are_rounded_and_what_is_written_is_not():
    figure = Figure()
    figure.text(1 / 3, 1 / 7, "from 0.0001 to 0.3")
    svg = svg_text(figure)
    assert ">from 0.0001 to 0.3<" in svg
    assert re.search(r"\.\d{2}", svg.replace("0.0001", "")) is None


def drawn() -> str:
    figure = Figure()
    axes = figure.subplots()
    axes.scatter([1, 2], [1, 3])
    axes.plot([1, 2, 2], [1, 1, 2], label="a.b 1.25 #x")
    axes.legend()
    return svg_text(figure)


def test_a_picture_is_well_formed_and_what_is_compact_stays_as_it_is():
    svg = drawn()
    root = ElementTree.fromstring(svg)
    assert compact(svg) == svg
    names = {element.get("id") for element in root.iter()}
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg))
    assert used and used <= names
    assert ">a.b 1.25 #x<" in svg


def test_a_style_is_written_once_under_a_name_that_is_the_same_in_every_picture():
    first, second = drawn(), drawn().replace("a.b", "c")
    assert " style=" not in first
    rules = re.findall(r"\.(s\w+)\{([^}]*)\}", first)
    assert len({name for name, _ in rules}) == len({style for _, style in rules}) == len(rules)
    assert rules == re.findall(r"\.(s\w+)\{([^}]*)\}", second)
    assert {name for name, _ in rules} == set(re.findall(r'class="(\w+)"', first))


def test_a_path_is_written_as_distances():
    corner = "M 1 1 \nL 3.5 1 \nL 3.5 2.25 \nL 3 3 \nL 4 2.5 \nz\n"
    curve = "M 2 2 \nC 1 2 1.5 1 2.5 2.1 \nL 0 0"
    path = "m1 1h2.5v1.2l-.5 .8 1-.5zm1 1c-1 0-.5-1 .5 .1l-2.5-2.1"
    assert compact(f'<path d="{corner}{curve}"/>') == f'<path d="{path}"/>'
