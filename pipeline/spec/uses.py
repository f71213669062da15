"""Which papers' tables use each method, in Markdown; a part of the documentation's page of methods.

`make docs` prints it.
"""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.spec.files import table_names
from pipeline.spec.table import load_table


def uses() -> Mapping[str, list[str]]:
    """Method to the papers' tables that have a row of it, as in "Tan et al., 2023, Table 3"."""
    by_method: dict[str, list[str]] = {}
    for table in map(load_table, table_names()):
        for method in {row.method: None for row in table.methods}:
            tables = by_method.setdefault(method, [])
            if table.paper and table.paper not in tables:
                tables.append(table.paper)
    return {method: sorted(by_method[method]) for method in sorted(by_method) if by_method[method]}


def page() -> str:
    """The section of the page."""
    rows = "\n".join(f"| `{method}` | {'<br>'.join(tables)} |" for method, tables in uses().items())
    return f"## In the papers' tables\n\n| method | tables |\n| --- | --- |\n{rows}\n"


if __name__ == "__main__":
    print(page())
