"""The report on data: plots of partitions, and the papers' figures beside ours.

``python -m benchmarks.data``. Reads the available data sets and writes ``reports/engineering/data/``.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import jinja2
import numpy as np
import PIL
import typer
from matplotlib import rc_context

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
from pfl.data.datasets import DATASETS
from pfl.data.locate import locate, source_place
from pfl.data.partition import Partition, make_partition
from pfl.data.partitions import PARTITIONS
from pfl.data.plot import plot
from pfl.run.sources import Sources, commit
from pipeline.report.amounts import statistics_columns
from pipeline.report.notices import copies
from pipeline.report.plots import STYLE
from pipeline.report.provenance import data_facts
from pipeline.report.table_report import environment, write_files
from pipeline.spec.published import Published, published_cells
from pipeline.svg import svg_text

DRAWN_ON = "cifar10"
SEEDS = range(100)
RAW = Path("data/raw")


@dataclass(frozen=True)
class Example:
    """A rule as a paper uses it."""

    label: str
    spec: str
    clients: int

    @property
    def rule(self) -> str:
        return self.spec.partition(":")[0]


EXAMPLES = {
    "pfedsim-dir-0.1": Example("pFedSim, Dir(0.1)", f"dirichlet:0.1,{PFEDSIM_OPTIONS}", 100),
    "pfedsim-dir-0.5": Example("pFedSim, Dir(0.5)", f"dirichlet:0.5,{PFEDSIM_OPTIONS}", 100),
    "uncapped-dir-0.1": Example(
        "As pFedSim without the cap, Dir(0.1)", f"dirichlet:0.1,uncapped,{PFEDSIM_OPTIONS}", 100
    ),
    "fedsimsup-dir-0.1": Example("FedSimSup, Dir(0.1)", "dirichlet:0.1,min=20", 50),
    "fedsimsup-training": Example(
        "FedSimSup, read as the training set alone, Dir(0.1)", "dirichlet_train:0.1,min=20", 50
    ),
    "fedsimsup-classes": Example("FedSimSup, 2 classes", "pathological:2,min=20", 50),
    "fedsimsup-shards": Example("FedSimSup, read as 2 shards", "shards:2,min=20", 50),
    "fedcac-dir-0.1": Example("FedCAC, Dir(0.1)", "dirichlet_client:0.1", 40),
    "fedcac-classes": Example("FedCAC, 2 classes", "classes_client:2", 40),
    "pfedcs-dir-0.1": Example("PFedCS, Dir(0.1)", "dirichlet:0.1,min=40,unstratified", 20),
    "pfedcs-blocks": Example("PFedCS, 2 classes", "blocks:2,min=40,unstratified", 20),
    "spfl-iid": Example("SPFL and PLGA, 6 classes, IID", "classes_iid:6,test=0.2", 10),
    "spfl-noniid": Example("SPFL and PLGA, 6 classes, non-IID", "classes_noniid:6,test=0.2", 10),
}
NEEDS = {
    "by": "a data set with columns, such as smartwatch",
    "class_sets": "the classes of every client, as in toy studies",
    "domain": "a data set with domains, such as domainnet",
    "file": "a JSON file with index lists of every client",
}
"""What the rules without an example need."""


def main(
    out: Annotated[Path, typer.Option(help="Folder that is written.")] = Path("reports/engineering/data"),
) -> None:
    """Draw the partition rules on CIFAR-10, and compare them with the papers' figures."""
    write_data_report(out)
    print(f"written to {out}/README.md")


def write_data_report(out: Path, seeds: Sequence[int] = SEEDS) -> None:
    """Write README.md and a plot for each of `EXAMPLES` to a folder.

    Args:
        out: the folder; other files in it are kept.
        seeds: seeds of the partitions that are compared with printed numbers.

    Raises:
        InvalidInput: the folder cannot be written, the printed figures are missing, or CIFAR-10 is neither in
            DATA_SOURCE nor in data/raw. Nothing is downloaded.
    """
    names = _present()
    check_writable(out / "README.md", "out")
    printed = {paper: published_cells(paper) for paper in ("pfedsim", "spfl")}
    datasets = {name: load(name) for name in names}
    dataset = datasets[DRAWN_ON]
    partitions = {name: make_partition(e.spec, dataset, e.clients) for name, e in EXAMPLES.items()}
    statistics = {name: _columns(partition, dataset) for name, partition in partitions.items()}
    plots = _draw(partitions, dataset)
    compared = {
        "pfedsim": pfedsim_table4(printed["pfedsim"], datasets, seeds),
        "spfl": spfl_table5(printed["spfl"], datasets, seeds),
    }
    uncapped = pfedsim_table4(printed["pfedsim"], datasets, seeds, f"uncapped,{PFEDSIM_OPTIONS}")
    code = commit()
    context = {
        "drawn_on": DRAWN_ON,
        "notices": _notices(datasets, [*compared["pfedsim"], *compared["spfl"]], code.dirty),
        "rules": PARTITIONS,
        "needs": NEEDS,
        "examples": EXAMPLES,
        "labels": {name: example.label for name, example in EXAMPLES.items()},
        "statistics": statistics,
        "plots": plots,
        "compared": compared,
        "uncapped": [comparison for comparison in uncapped if comparison.quantity == SPREAD],
        "absent_of": {
            "pfedsim": _absent(printed["pfedsim"], "4", datasets),
            "spfl": _absent(printed["spfl"], "5", datasets),
        },
        "deviations": DEVIATIONS,
        "options": PFEDSIM_OPTIONS,
        "seeds": len(seeds),
        "cut_to_hundreds": all(row.mean // 100 * 100 == row.printed for row in compared["spfl"]),
        "absent": [name for name in DATASETS if name not in datasets],
        "provenance": _provenance(datasets, code),
        "commit": code.commit,
        "source": os.environ.get("DATA_SOURCE"),
    }
    readme = _environment().get_template("data.md.j2").render(context)
    write_files(out, {"README.md": readme} | {f"partition-{name}.svg": svg for name, svg in plots.items()})


def _environment() -> jinja2.Environment:
    """The reports' templates and filters, with the templates beside this file."""
    templates: jinja2.Environment = environment()
    assert templates.loader
    templates.loader = jinja2.ChoiceLoader([jinja2.FileSystemLoader(Path(__file__).parent), templates.loader])
    return templates


def _present() -> list[str]:
    """The names of the available data sets, including the one that is drawn."""
    source = source_place()
    if source and source.is_file():
        raise InvalidInput("DATA_SOURCE", str(source), "a folder: every data set is looked for there")
    names = [name for name in DATASETS if locate(name, source, RAW)]
    if DRAWN_ON not in names:
        place = f"in the folder DATA_SOURCE or in {RAW / DRAWN_ON}"
        raise InvalidInput("data sets", ", ".join(names), f"{DRAWN_ON}, too: put its archive {place}")
    return names


# ---- partitions ----------------------------------------------------------------------------------------


def _columns(partition: Partition, dataset: Dataset) -> dict[str, str]:
    described = partition.statistics(dataset.labels, len(dataset.classes))
    return statistics_columns({"spec": partition.spec, "notes": partition.notes, **described})


def _draw(partitions: Mapping[str, Partition], dataset: Dataset) -> dict[str, str]:
    """The plot of each partition as SVG text."""
    with rc_context({**STYLE, "axes.grid": False}):
        return {
            name: svg_text(plot(partition, dataset.labels, dataset.classes, EXAMPLES[name].label))
            for name, partition in partitions.items()
        }


def _absent(cells: Sequence[Published], table: str, datasets: Mapping[str, Dataset]) -> list[str]:
    """The data sets of a paper's table that are not present."""
    names = dict.fromkeys(our_name(cell) for cell in cells if cell.table == table)
    return [name for name in names if name not in datasets]


# ---- provenance ----------------------------------------------------------------------------------------


def _notices(
    datasets: Mapping[str, Dataset], comparisons: Sequence[FigureComparison], dirty: bool
) -> list[str]:
    """What a reader must know first."""
    said = copies({name: dataset.identity for name, dataset in datasets.items()})
    misses = [comparison for comparison in comparisons if not comparison.matches]
    if misses:
        where = "; ".join(f"{miss.dataset}, {miss.setting}: {miss.quantity}" for miss in misses)
        said.append(f"Of {len(comparisons)} printed numbers, {len(misses)} do not match ours: {where}.")
    if dirty:
        said.append("Drawn by code that is in no commit.")
    return said


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
