"""The content of a figure's file: the runs, declared as in a table, the plot, and the paper's claims."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from pfl.core.errors import InvalidInput, Missing, check_names, unknown_name
from pipeline.figures.figure_claims import SeriesClaim
from pipeline.spec.paths import figure_names
from pipeline.spec.table import Subset, Table, load_as


class Figure(Table):
    """A figure: a table of runs, and how they are drawn."""

    draw: str
    """The name of a file in `pipeline/figures/plots`."""
    shows: str
    """What the figure shows, for the caption."""
    x: str | None = None
    """The x axis of a sweep: a hyperparameter, or clients."""
    at: list[Annotated[int, Field(ge=1)]] = Field(default_factory=list)
    """The rounds whose distances are drawn; the last one if a run has none of them."""
    claims: list[SeriesClaim] = Field(min_length=1)  # type: ignore[assignment]  # about series


@dataclass(frozen=True)
class FigureChanges:
    """Changes to a figure's pinned runs, to draw it with less compute; None means as pinned."""

    rounds: int | None = None
    epochs: int | None = None
    dataset: str | None = None
    model: str | None = None
    clients: int | None = None
    subset: Subset = field(default_factory=Subset)

    @property
    def options(self) -> str:
        """The changes as options of `pfl figure`, with a space before each."""
        runs = {name: value for name, value in vars(self).items() if name != "subset" and value is not None}
        parts = {name: ",".join(map(str, names)) for name, names in self.subset if names}
        return "".join(f" --{name} {shlex.quote(str(value))}" for name, value in (runs | parts).items())


def parts_of(name: str) -> list[str]:
    """The figure called ``name``, or its parts: "fedcac-figure1" has the parts "a" and "b".

    Raises:
        InvalidInput: there is no such figure.
    """
    if not (names := figure_names()):
        accepted = "a checkout of pfl-repro, which has the papers' figures"
        raise Missing(f"figure {name}", "this project has no figures", accepted)
    parts = [known for known in names if re.fullmatch(rf"{re.escape(name)}[a-z]?", known)]
    if not parts:
        raise unknown_name("figure", name, names)
    return parts


def load_figure(name: str) -> Figure:
    """A figure with all that it inherits.

    Raises:
        InvalidInput: there is no such figure, or its file is not valid; the message is one line.
    """
    check_names("figure", [name], figure_names())
    return load_as(Figure, name)


def changed(figure: Figure, changes: FigureChanges) -> tuple[Figure, list[str]]:
    """The figure with its runs changed, and a short line for each change.

    Raises:
        InvalidInput: the figure does not have a setting, row or seed; a number is below 1; or one data set
            would replace several.
    """
    try:
        part = figure.part(changes.subset)
    except InvalidInput as error:
        option = error.parameter.replace("subset.", "--")
        raise InvalidInput(option, error.shown, error.accepted) from None
    content = part.model_dump(by_alias=True)
    settings, rows = [*content["settings"].values()], content["methods"]
    for row in rows:
        row["settings"] = {key: value for key, value in row["settings"].items() if key in part.settings}
    notes = [
        f"{noun} {', '.join(now)} only"
        for noun, now, were in (
            ("settings", [*part.settings], [*figure.settings]),
            ("methods", [row.id for row in part.methods], [row.id for row in figure.methods]),
            ("seeds", [*map(str, part.seeds)], [*map(str, figure.seeds)]),
        )
        if len(now) < len(were)
    ]
    overrides = [override for row in rows for override in row["settings"].values()]
    schedules = [level["schedule"] for level in (content, *settings, *rows, *overrides)]
    places = {name: [content, *settings] for name in ("dataset", "model", "clients")}
    places |= dict.fromkeys(("rounds", "epochs"), schedules)
    for name, (first, *others) in places.items():
        value = getattr(changes, name)
        if value is None:
            continue
        if isinstance(value, int) and value < 1:
            raise InvalidInput(name, value, "a positive integer")
        before = sorted({str(level[name] or first[name]) for level in others})
        if name == "dataset" and len(before) > 1:
            raise InvalidInput(name, value, f"settings of one data set to change, not of {', '.join(before)}")
        for level in others:
            level[name] = None
        first[name] = value
        if before != [str(value)]:
            notes.append(f"{name} {value} instead of {', '.join(before)}")
    return Figure.model_validate(content), notes
