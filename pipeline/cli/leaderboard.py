"""The commands of ``pfl leaderboard``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def add(
    method: Annotated[str, typer.Argument(metavar="METHOD", help="A plugin's method; see `pfl methods`.")],
    table: Annotated[
        str, typer.Option(help="A table with `report: leaderboard`; the default takes minutes.")
    ] = "leaderboard-digits",
) -> None:
    """Rank a method on a leaderboard.

    The method is tuned and run with the same budget and seeds as all others, whose runs come from the
    ledger. The published page of the leaderboard does not change. For example, in a project of
    `pfl init --table leaderboard-digits --results FOLDER`: `pfl leaderboard add mymethod`.
    """
    from pipeline.leaderboard import add, text

    board, folder = add(table, method)
    print(text(board, method), end="")
    shown = folder.relative_to(Path.cwd())
    print(f"Report: {shown}/index.html; columns sort and filter in {shown}/leaderboard.html")
