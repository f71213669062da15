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
    return compact(_CIRCLE.sub(_circle, svg))


def compact(svg: str) -> str:
    """The same picture in two thirds of the characters; what is compact already stays as it is."""
    svg = re.sub(r" font-family: '?DejaVu Sans'?[^;\"]*;?", "", svg)  # at each text
    svg = re.sub(r"butt}</style>", f"butt}} text{{font-family: {FONTS}}}</style>", svg)
    svg = re.sub(r"^ +", "", svg, flags=re.MULTILINE)
    svg = re.sub(r'<g id="[^"]*">', "<g>", svg)  # to which nothing refers
    svg = re.sub(r"M (\S+) (\S+) \nL \1 (\S+) \n", r"M\1 \2V\3\n", svg)
    return re.sub(r"M (\S+) (\S+) \nL (\S+) \2 \n", r"M\1 \2H\3\n", svg)


_CIRCLE = re.compile(
    r'<path d="M (\S+) (\S+) \n(?:C .* \n){3}C \S+ \S+ \S+ \S+ \1 (\S+) \n(?:C .* \n){4}z\n"'
)
"""A circle as matplotlib writes it: eight curves, from its lowest point over its highest."""


def _circle(path: re.Match[str]) -> str:
    low, high = float(path[2]), float(path[3])
    return f'<circle cx="{path[1]}" cy="{(low + high) / 2:.2f}" r="{(low - high) / 2:.2f}"'
