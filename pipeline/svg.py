"""Plots as SVG text."""

from __future__ import annotations

import hashlib
import io
import re
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from matplotlib import axes, figure

Axes: TypeAlias = "axes.Axes"
Canvas: TypeAlias = "figure.Figure"
"""Matplotlib's types for annotations; it is imported only when something is drawn."""

FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def svg_text(figure: Canvas) -> str:
    """A figure as a compact SVG file; equal figures give equal texts.

    Coordinates have one decimal (a tenth of a point); text in the figure is unchanged.
    """
    from matplotlib import rc_context

    text = io.StringIO()
    # Letters as text: as paths, rounding would shrink them. The salt makes equal plots have equal ids.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": ""}):
        figure.savefig(text, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    svg = re.sub(r"<!--.*?-->\s*|<metadata>.*?</metadata>\s*", "", text.getvalue(), flags=re.DOTALL)
    svg = svg[svg.index("<svg") :].replace(' version="1.1"', "", 1)  # only old readers look for it
    svg = re.sub(r"(\.\d\d)\d+(?![^<>]*</text>)", r"\1", svg)  # makes the two ends of a circle equal
    return compact(_CIRCLE.sub(_circle, svg))


def compact(svg: str) -> str:
    """The same picture in less than half the characters; compact text is unchanged."""
    svg = re.sub(r" font-family: '?DejaVu Sans'?[^;\"]*;?", "", svg)  # repeated at each text
    # On the root, not on each element, so that shapes inherit the styles of their uses.
    svg = re.sub(r">\*({.*butt})</style>", rf">svg\1 text{{font-family: {FONTS}}}</style>", svg)
    svg = re.sub(r"^ +", "", svg, flags=re.MULTILINE)
    svg = re.sub(r'<g id="[^"]*"(/?)>', r"<g\1>", svg)  # nothing refers to these ids
    svg = _without_bare_groups(svg)
    svg = re.sub(r' transform="rotate\(-0 [^"]*"', "", svg)
    svg = re.sub(r"(\.\d)\d+(?![^<>]*</text>)", r"\1", svg)
    svg = re.sub(r"\.0(?!\d)(?![^<>]*</text>)", "", svg)
    svg = svg.replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "").replace("xlink:href", "href")
    return _with_classes(re.sub(r' d="[^"]*"', _short_path, svg))


def _without_bare_groups(svg: str) -> str:
    """``svg`` without groups that have no attributes."""
    is_bare: list[bool] = []  # for each open group

    def keep(tag: re.Match[str]) -> str:
        if tag[0].startswith("<g/"):
            return ""
        if tag[0].startswith("<g"):
            is_bare.append(tag[0].startswith("<g>"))
            return "" if is_bare[-1] else tag[0]
        return "" if is_bare.pop() else tag[0]

    return re.sub(r"</?g\b[^>]*>\n", keep, svg)


def _with_classes(svg: str) -> str:
    """``svg`` with a class per style, named by its hash because pages contain several pictures."""
    styles: dict[str, str] = {}

    def named(attribute: re.Match[str]) -> str:
        style = re.sub(r"([:;]) ", r"\1", attribute[1])
        name = f"s{hashlib.sha256(style.encode()).hexdigest()[:6]}"
        styles[name] = style
        return f' class="{name}"'

    svg = re.sub(r' style="([^"]*)"', named, svg)
    rules = "".join(f".{name}{{{style}}}" for name, style in styles.items())
    return svg.replace("</style>", f"{rules}</style>", 1)


def _short_path(path: re.Match[str]) -> str:
    """A path with relative coordinates, and with commands for horizontal and vertical lines."""
    if path[0].startswith(' d="m'):
        return path[0]
    short = before = ""
    start = at = [0, 0]  # tenths of a point: sums of distances stay exact
    for command, text in re.findall(r"([A-Za-z])([^A-Za-z]*)", path[0][4:-1]):
        if command in "Zz":
            letter, distances, at = "z", [], start
        else:
            places = [round(10 * float(number)) for number in text.split()]
            letter, distances = command.lower(), [place - at[i % 2] for i, place in enumerate(places)]
            at = places[-2:]
        if letter == "m":
            start = at
        if letter == "l" and 0 in distances:
            letter, distances = ("h", distances[:1]) if distances[1] == 0 else ("v", distances[1:])
        numbers = " ".join(re.sub(r"\b0\.", ".", f"{distance / 10:g}") for distance in distances)
        short += f" {numbers}" if letter == before and letter in "lhvcq" else letter + numbers
        before = letter
    return f' d="{short.replace(" -", "-")}"'


_CIRCLE = re.compile(
    r'<path d="M (\S+) (\S+) \n(?:C .* \n){3}C \S+ \S+ \S+ \S+ \1 (\S+) \n(?:C .* \n){4}z\n"'
)
"""A circle as matplotlib writes it: eight curves, from its lowest point over its highest."""


def _circle(path: re.Match[str]) -> str:
    low, high = float(path[2]), float(path[3])
    return f'<circle cx="{path[1]}" cy="{(low + high) / 2:.2f}" r="{(low - high) / 2:.2f}"'
