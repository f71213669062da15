"""The commands of ``pfl export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pfl.core.text import amount
from pipeline.cli.stage import TableName

OutFolder = Annotated[Path, typer.Option(metavar="FOLDER", resolve_path=True, help="Output folder.")]
OutFile = Annotated[Path, typer.Option(metavar="FILE", resolve_path=True, help="Output file.")]


def rocrate(table: TableName, out: OutFolder) -> None:
    """Write a table's results as a Workflow Run RO-Crate.

    The folder gets the expanded table, the records, partitions, lock file and report, with their metadata in
    ro-crate-metadata.json. The table needs a report: `pfl report TABLE`.
    """
    from pipeline.evidence.rocrate import write_crate

    print(f"{out}: {amount(write_crate(table, out), 'file')}")


def croissant(table: TableName, out: OutFolder) -> None:
    """Describe a table's data and partitions in Croissant metadata."""
    from pipeline.evidence.croissant import write_croissant

    print(f"{out}: {', '.join(write_croissant(table, out))}")


def claims(out: OutFile) -> None:
    """Write the claims of all papers and their answers as JSON."""
    from pipeline.evidence.answered_claims import write_claims

    print(f"{out}: {amount(write_claims(out), 'claim')}")
