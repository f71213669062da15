"""The report on data: statistics of partitions that the papers print, beside ours.

``python -m benchmarks.data``. Reads the available data sets and writes ``reports/engineering/data/``.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import jinja2
import numpy as np
import PIL
import typer

import pfl
from benchmarks.comparisons import (
    DEVIATIONS,
    PFEDSIM_OPTIONS,
    SPREAD,
    FigureComparison,
    our_name,
    pfedsim_table4,
    spfl_table5,
)
from benchmarks.workload import run
from pfl.core.errors import InvalidInput
from pfl.core.files import check_writable
from pfl.data.dataset import Dataset, load
from pfl.data.locate import locate, source_place
from pfl.run.sources import Sources, running_code
from pipeline.report.notices import copies
from pipeline.report.provenance import data_facts
from pipeline.report.table_report import environment, write_files
from pipeline.spec.published import Published, published_cells

SEEDS = range(100)
RAW = Path("data/raw")


def main(
    out: Annotated[Path, typer.Option(help="Folder that is written.")] = Path("reports/engineering/data"),
) -> None:
    """Compare our partitions with the statistics that the papers print."""
    write_data_report(out)
    print(f"written to {out}/README.md")


def write_data_report(out: Path, seeds: Sequence[int] = SEEDS) -> None:
    """Write README.md to a folder.

    Args:
        out: the folder; other files in it are kept.
        seeds: seeds of our partitions.

    Raises:
        InvalidInput: the folder cannot be written, the printed figures are missing, or none of their data
            sets is in DATA_SOURCE or data/raw. Nothing is downloaded.
    """
    pfedsim, spfl = _printed("pfedsim", "4"), _printed("spfl", "5")
    wanted = list(dict.fromkeys(our_name(cell) for cell in (*pfedsim, *spfl)))
    names = _present(wanted)
    check_writable(out / "README.md", "out")
    datasets = {name: load(name) for name in names}
    compared = {
        "pfedsim": pfedsim_table4(pfedsim, datasets, seeds),
        "spfl": spfl_table5(spfl, datasets, seeds),
    }
    uncapped = pfedsim_table4(pfedsim, datasets, seeds, f"uncapped,{PFEDSIM_OPTIONS}")
    code = running_code()
    context = {
        "notices": _notices(datasets, [*compared["pfedsim"], *compared["spfl"]], code.dirty),
        "compared": compared,
        "uncapped": [comparison for comparison in uncapped if comparison.quantity == SPREAD],
        "absent": [name for name in wanted if name not in datasets],
        "deviations": DEVIATIONS,
        "options": PFEDSIM_OPTIONS,
        "seeds": len(seeds),
        "cut_to_hundreds": all(row.mean // 100 * 100 == row.printed for row in compared["spfl"]),
        "provenance": _provenance(datasets, code),
        "commit": code.commit,
        "source": os.environ.get("DATA_SOURCE"),
    }
    readme = _environment().get_template("data.md.j2").render(context)
    write_files(out, {"README.md": readme})


def _environment() -> jinja2.Environment:
    """The reports' templates and filters, with the templates beside this file."""
    templates: jinja2.Environment = environment()
    assert templates.loader
    templates.loader = jinja2.ChoiceLoader([jinja2.FileSystemLoader(Path(__file__).parent), templates.loader])
    return templates


def _printed(paper: str, table: str) -> list[Published]:
    """The statistics of partitions that a paper's table prints."""
    return [cell for cell in published_cells(paper) if cell.table == table]


def _present(wanted: Sequence[str]) -> list[str]:
    """Those of the data sets that are available."""
    source = source_place()
    if source and source.is_file():
        raise InvalidInput("DATA_SOURCE", str(source), "a folder: every data set is looked for there")
    names = [name for name in wanted if locate(name, source, RAW)]
    if not names:
        place = f"put its archive in the folder DATA_SOURCE or in {RAW}/NAME"
        raise InvalidInput("data sets", "none", f"one of {', '.join(wanted)}: {place}")
    return names


def _notices(
    datasets: Mapping[str, Dataset], comparisons: Sequence[FigureComparison], dirty: bool
) -> list[str]:
    """What a reader must know first."""
    notices = copies({name: dataset.identity for name, dataset in datasets.items()})
    misses = [comparison for comparison in comparisons if not comparison.matches]
    if misses:
        where = "; ".join(f"{miss.dataset}, {miss.setting}: {miss.quantity}" for miss in misses)
        notices.append(f"Of {len(comparisons)} printed numbers, {len(misses)} do not match ours: {where}.")
    if dirty:
        notices.append("Computed by code that is in no commit.")
    return notices


def _provenance(datasets: Mapping[str, Dataset], code: Sources) -> dict[str, list[str]]:
    versions = {"python": platform.python_version(), "numpy": np.__version__}
    versions |= {"pillow": PIL.__version__, "pfl": pfl.__version__}
    return {
        "Code": [code.name],
        "Data": [line for name, dataset in datasets.items() for line in data_facts(name, vars(dataset))],
        "Versions": [", ".join(f"{name} {version}" for name, version in versions.items())],
        "Written": [datetime.now(UTC).strftime("%Y-%m-%d, %H:%M UTC")],
    }


if __name__ == "__main__":
    run(main)
