"""Figures as SVG text."""

from __future__ import annotations

import re

from matplotlib.figure import Figure

from pipeline.svg import svg_text


def test_coordinates_are_rounded_and_what_is_written_is_not():
    figure = Figure()
    figure.text(1 / 3, 1 / 7, "from 0.0001 to 0.3")
    svg = svg_text(figure)
    assert ">from 0.0001 to 0.3<" in svg
    assert re.search(r"\.\d{3}", svg.replace("0.0001", "")) is None
