"""Command that creates and plots a partition."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pfl.core.errors import InvalidInput
from pfl.core.files import check_writable, replacing, writing
from pfl.core.text import count
from pfl.run.api import load_checked

PICTURES = (".svg", ".png", ".pdf")


def partition(
    spec: Annotated[str, typer.Argument(metavar="RULE:ARG", help="See `pfl partitions`.")],
    dataset: Annotated[str, typer.Option(help="A name of `pfl datasets`, or a path.")] = "digits",
    clients: Annotated[
        int | None, typer.Option(help="Number of clients; by default 20, or as the rule determines.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Plot each client's classes (svg, png, pdf).")
    ] = None,
) -> None:
    """Create a partition; print and optionally plot its statistics."""
    if plot:
        if plot.suffix.lower() not in PICTURES:
            raise InvalidInput("plot", str(plot), f"a file name that ends in {', '.join(PICTURES)}")
        check_writable(plot, "plot")
    from pfl.data.partition import make_partition

    data, clients = load_checked(dataset, spec, clients)
    split = make_partition(spec, data, clients)
    print(split.spec)
    statistics = split.statistics(data.labels, len(data.classes))
    width = max(map(len, statistics)) + 2
    for name, value in statistics.items():
        parts = value.items() if isinstance(value, dict) else [("", value)]
        shown = (f"{part} {_shown(number)}".strip() for part, number in parts)
        print(f"  {name.replace('_', ' '):<{width}}{', '.join(shown)}")
    for note in split.notes:
        print(f"  note: {note}")
    if plot:
        from pfl.data.plot import plot as draw

        figure = draw(split, data.labels, data.classes)
        with writing(plot), replacing(plot) as file:
            figure.savefig(file, format=plot.suffix[1:])
        print(f"  plotted in {plot}")


def _shown(number: float) -> str:
    return count(number) if number >= 1000 else f"{number:.4g}"
