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
    assert set(re.findall(r"#(a\d+)", svg)) <= names
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


def test_what_neighbours_have_in_common_is_written_at_their_group():
    alone, both = '<circle r="1" class="a"/>\n', '<circle r="2" class="b"/>\n<circle r="3" class="b"/>\n'
    assert compact(alone + both) == alone + '<g class="b">\n<circle r="2"/>\n<circle r="3"/>\n</g>\n'


def test_neighbours_that_are_drawn_alike_are_one_path():
    bars = '<g class="a">\n<path d="M 1 1 L 1 2 z"/>\n<path d="M 3 1 L 3 4 z"/>\n</g>\n'
    assert compact(bars) == '<g class="a">\n<path d="m1 1v1zM3 1v3z"/>\n</g>\n'
    circle = '<circle r="1"/>\n<path d="m1 1v1z"/>\n'
    assert compact(circle) == circle


def test_neighbours_that_are_clipped_alike_are_one_group():
    clip = '<clipPath id="a0"/>\n'
    line = '<path d="m0 0h1" clip-path="url(#a0)"/>\n'
    group = '<g clip-path="url(#a0)">\n<use x="1"/>\n</g>\n'
    both = '<g clip-path="url(#a0)">\n<path d="m0 0h1"/>\n<use x="1"/>\n</g>\n'
    assert compact(clip + line + group) == clip + both
    assert compact(clip + line + "<text/>\n" + group) == clip + line + "<text/>\n" + group


def test_a_shape_is_defined_once_and_takes_the_style_of_its_uses():
    figure = Figure()
    for colour in ("red", "blue"):
        figure.subplots().plot([1], [1], "o", color=colour)
    svg = svg_text(figure)
    shapes = re.findall(r'<path id="[^"]*"( .*)/>', svg)
    assert len(set(shapes)) == len(shapes)
    assert "class" not in "".join(shapes)
    assert "svg{stroke-linejoin: round" in svg  # a rule for all elements would outdo the style of the uses
