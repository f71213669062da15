"""The command that makes and draws a partition."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pfl.errors import InvalidInput
from pfl.files import check_writable, replacing, writing

if TYPE_CHECKING:
    from pfl.data.dataset import Dataset

DEFAULT_CLIENTS = 20
PICTURES = (".svg", ".png", ".pdf")


def partition(
    spec: Annotated[str, typer.Argument(metavar="RULE:ARG", help="See `pfl partitions`.")],
    dataset: Annotated[str, typer.Option(help="A name of `pfl datasets`, or a path.")] = "digits",
    clients: Annotated[
        int | None, typer.Option(help="Number of clients; 20, or what the rule decides.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw classes by client (svg, png, pdf).")
    ] = None,
) -> None:
    """Make a partition, print its statistics, and draw it."""
    if plot:
        if plot.suffix.lower() not in PICTURES:
            raise InvalidInput("plot", str(plot), f"a file name that ends in {', '.join(PICTURES)}")
        check_writable(plot)
    from pfl.data.partition import make_partition

    data, clients = checked(dataset, spec, clients)
    split = make_partition(spec, data, clients)
    print(split.spec)
    for name, value in split.statistics(data.labels, len(data.classes)).items():
        parts = value.items() if isinstance(value, dict) else [("", value)]
        print(
            f"  {name.replace('_', ' '):<22}"
            + ", ".join(f"{part} {number:.4g}".strip() for part, number in parts)
        )
    for note in split.notes:
        print(f"  note: {note}")
    if plot:
        from pfl.data.plot import plot as draw

        figure = draw(split, data.labels, data.classes)
        with writing(plot), replacing(plot) as file:
            figure.savefig(file, format=plot.suffix[1:])
        print(f"  drawn in {plot}")


def checked(dataset: str, spec: str, clients: int | None) -> tuple[Dataset, int | None]:
    """The data set and how many clients divide it; what can be checked is checked before anything is read."""
    from pfl.data.dataset import check_dataset, load
    from pfl.data.partition import check_partition, parse_spec

    if clients is None and not parse_spec(spec)[1].clients_from_data:
        clients = DEFAULT_CLIENTS
    known = check_dataset(dataset)
    check_partition(spec, clients, *((known.samples, known.classes) if known else ()))
    return load(dataset), clients
