"""Plots as SVG text."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def svg_text(figure: Figure) -> str:
    """A figure as a compact SVG file; equal figures give equal texts.

    Coordinates have two decimals; what is written in the figure stays as it is.
    """
    from matplotlib import rc_context

    text = io.StringIO()
    # Letters as text: as paths, rounding would shrink them. The salt makes equal plots have equal ids.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": ""}):
        figure.savefig(text, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    svg = re.sub(r"<!--.*?-->\s*|<metadata>.*?</metadata>\s*", "", text.getvalue(), flags=re.DOTALL)
    svg = re.sub(r"(\.\d\d)\d+(?![^<>]*</text>)", r"\1", svg)
    svg = _CIRCLE.sub(_circle, svg)
    return re.sub(r"font: ([^;\"]*?)'?DejaVu Sans'?[^;\"]*", rf"font: \1{FONTS}", svg)


_CIRCLE = re.compile(
    r'<path d="M (\S+) (\S+) \n(?:C .* \n){3}C \S+ \S+ \S+ \S+ \1 (\S+) \n(?:C .* \n){4}z\n"'
)
"""A circle as matplotlib writes it: eight curves, from its lowest point over its highest."""


def _circle(path: re.Match[str]) -> str:
    low, high = float(path[2]), float(path[3])
    return f'<circle cx="{path[1]}" cy="{(low + high) / 2:.2f}" r="{(low - high) / 2:.2f}"'
