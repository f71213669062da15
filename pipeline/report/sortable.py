"""Sortable and filterable tables, as a page that embeds DataTables and needs no network."""

from __future__ import annotations

import io
from typing import Any

LEFT_OUT = ("table", "method", "parameters", "rank", "cause", "data", "keys")
"""Columns that the page leaves out: constant, repeated, or too long to read in a table."""


def page(templates: Any, title: str, name: str, methods: str, cells: str) -> str:
    """The leaderboard of a table as HTML.

    Args:
        templates: the environment of the report's templates.
        title, name: the table's title and name.
        methods: the content of leaderboard.csv.
        cells: the content of table.csv.
    """
    from itables import options
    from itables.javascript import generate_init_offline_itables_html

    context = {
        "title": title,
        "overline": name,
        "subtitle": "",
        "notices": [],
        "library": generate_init_offline_itables_html(options.dt_bundle),
        "tables": {"Methods": _table(methods, "methods"), "Numbers": _table(cells, "cells")},
    }
    return str(templates.get_template("sortable.html.j2").render(context))


def _table(content: str, name: str) -> str:
    """A CSV file as an HTML element with a filter above each column."""
    import itables
    import pandas

    # A row may be called "None" or "NA": only an empty text is a missing value.
    frame = pandas.read_csv(io.StringIO(content), keep_default_na=False, na_values=[""])
    frame = frame.dropna(axis="columns", how="all").round(2)
    frame = frame.drop(columns=[column for column in LEFT_OUT if column in frame])
    html = itables.to_html_datatable(
        frame,
        table_id=name,
        connected=False,
        showIndex=False,
        column_filters="header",
        paging=False,
        scrollX=True,
        maxBytes=0,
        display_logo_when_loading=False,
    )
    return str(html)
