"""The report on data: every partition rule drawn, what the papers print of theirs, what loading takes."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import pfl
from pfl.data.datasets import DATASETS
from pfl.data.partitions import PARTITIONS
from pfl.errors import InvalidInput
from pipeline import loading, plots
from pipeline.provenance import OFFICIAL, data_facts, not_official, statistics_columns, value_range
from pipeline.published import FOLDER, Published, published_cells
from pipeline.report import environment, write_files

if TYPE_CHECKING:
    from pfl.data.dataset import Dataset
    from pfl.data.partition import Partition

DRAWN_ON = "cifar10"
SEEDS = range(100)
DEVIATIONS = 2
"""How many standard deviations over partition seeds a printed figure may lie from our mean."""


@dataclass(frozen=True)
class Example:
    """A rule as a paper uses it."""

    label: str
    spec: str
    clients: int


EXAMPLES = {
    "pfedsim-dir-0.1": Example("pFedSim, Dir(0.1)", "dirichlet:0.1,test=0.5", 100),
    "pfedsim-dir-0.5": Example("pFedSim, Dir(0.5)", "dirichlet:0.5,test=0.5", 100),
    "uncapped": Example("The same without the cap, Dir(0.1)", "dirichlet:0.1,uncapped,test=0.5", 100),
    "fedsimsup-dir-0.1": Example("FedSimSup, Dir(0.1)", "dirichlet:0.1,min=20", 50),
    "fedsimsup-2": Example("FedSimSup, 2 classes", "pathological:2,min=20", 50),
    "fedsimsup-shards": Example("FedSimSup, 2 shards", "shards:2,min=20", 50),
    "fedcac-dir-0.1": Example("FedCAC, Dir(0.1)", "dirichlet_client:0.1", 40),
    "fedcac-2": Example("FedCAC, 2 classes", "classes_client:2", 40),
    "pfedcs-dir-0.1": Example("PFedCS, Dir(0.1)", "dirichlet:0.1,min=40", 20),
    "pfedcs-2": Example("PFedCS, 2 classes", "blocks:2,min=40", 20),
    "spfl-iid": Example("SPFL and PLGA, 6 classes, IID", "classes_iid:6,test=0.2", 10),
    "spfl-noniid": Example("SPFL and PLGA, 6 classes, non-IID", "classes_noniid:6,test=0.2", 10),
}
NEEDS = {
    "domain": "a data set with domains, as domainnet",
    "file": "a JSON file of index lists",
    "writer": "a data set with writers, as femnist",
}
"""What the other rules need that CIFAR-10 does not have."""


@dataclass(frozen=True)
class Comparison:
    """A printed figure beside ours.

    Attributes:
        dataset: our name of it.
        ours: a figure a partition seed; one, if the seeds have no say; none, if the data are not present.
    """

    dataset: str
    setting: str
    quantity: str
    printed: float
    ours: Sequence[float]

    @property
    def mean(self) -> float:
        return float(np.mean(self.ours))

    @property
    def std(self) -> float:
        return float(np.std(self.ours, ddof=1)) if len(self.ours) > 1 else 0.0

    @property
    def apart(self) -> float | None:
        """The printed figure less ours in standard deviations; None where the seeds have no say."""
        return (self.printed - self.mean) / self.std if self.std else None

    @property
    def matches(self) -> bool:
        """Whether the printed figure is near enough to ours, or ours rounds to it."""
        gap = abs(self.printed - self.mean)
        return gap <= DEVIATIONS * self.std or gap < 0.5


def write_data_report(out: Path, seeds: Sequence[int] = SEEDS, repeats: int = 3) -> None:
    """Write README.md, index.html and a plot for each of `EXAMPLES` to a folder.

    Args:
        out: the folder; what else is in it stays.
        seeds: of the partitions that are held against printed figures.
        repeats: how often each load is measured.

    Raises:
        InvalidInput: the folder cannot be written, the printed figures are not in `tables/published`, or
            CIFAR-10 is neither in DATA_SOURCE nor in data/raw. Nothing is downloaded.
    """
    from pfl.trials import commit

    write_files(out, {})  # fails before minutes are spent
    published = {paper: published_cells(f"{paper}.csv") for paper in ("pfedsim", "spfl")}
    datasets = _present()
    if DRAWN_ON not in datasets:
        raise InvalidInput("dataset", DRAWN_ON, f"its archive in DATA_SOURCE or in data/raw/{DRAWN_ON}")
    dataset = datasets[DRAWN_ON]
    partitions = {name: _partition(example.spec, dataset, example.clients) for name, example in EXAMPLES.items()}
    drawn = _drawn(partitions, dataset)
    comparisons = {
        "pfedsim": pfedsim_table4(published["pfedsim"], datasets, seeds),
        "uncapped": [
            comparison
            for comparison in pfedsim_table4(published["pfedsim"], datasets, seeds, "uncapped,test=0.5")
            if comparison.quantity == SPREAD
        ],
        "spfl": spfl_table5(published["spfl"], datasets, seeds),
    }
    code = commit()
    context = {
        "drawn_on": DRAWN_ON,
        "notices": _notices(datasets, [*comparisons["pfedsim"], *comparisons["spfl"]], code["dirty"]),
        "rules": _rules(),
        "examples": EXAMPLES,
        "labels": {name: example.label for name, example in EXAMPLES.items()},
        "specs": {name: partition.spec for name, partition in partitions.items()},
        "statistics": {name: _columns(partition, dataset) for name, partition in partitions.items()},
        "plots": drawn,
        "comparisons": comparisons,
        "deviations": DEVIATIONS,
        "seeds": len(seeds),
        "loads": [_load(name, found, repeats) for name, found in datasets.items()],
        "repeats": repeats,
        "absent": [name for name in DATASETS if name not in datasets],
        "provenance": _provenance(datasets, code),
        "commands": _commands(datasets, code),
    }
    templates = environment()
    pages = {"README.md": "data.md.j2", "index.html": "data.html.j2"}
    write_files(
        out,
        {file: templates.get_template(template).render(context) for file, template in pages.items()}
        | {f"partition-{name}.svg": svg for name, svg in drawn.items()},
    )


# ---- the papers' figures -------------------------------------------------------------------------------

SIZE, SPREAD = "samples of a client, mean", "samples of a client, standard deviation"


def pfedsim_table4(
    cells: Sequence[Published],
    datasets: Mapping[str, Dataset],
    seeds: Sequence[int],
    options: str = "test=0.5",
) -> list[Comparison]:
    """pFedSim's Table 4: samples, classes, and how samples are spread over clients.

    Args:
        cells: printed in the paper.
        datasets: those present, by name.
        options: of our rule, beside alpha.
    """
    found = []
    for cell in (cell for cell in cells if cell.table == "4"):
        name = {"emnist": "emnist_byclass"}.get(cell.dataset, cell.dataset)
        dataset = datasets.get(name)
        if cell.metric == "samples_per_client":
            alpha = cell.partition_arg.removeprefix("alpha=")
            spec = f"dirichlet:{alpha},{options}"
            sizes = [statistics["size"] for statistics in _over_seeds(spec, dataset, cell.clients, seeds)]
            setting = f"Dir({alpha}), {cell.clients} clients"
            assert cell.std is not None
            found += [
                Comparison(name, setting, SIZE, cell.mean, [size["mean"] for size in sizes]),
                Comparison(name, setting, SPREAD, cell.std, [size["std"] for size in sizes]),
            ]
        else:
            ours = (
                {"samples_total": len(dataset.labels), "num_classes": len(dataset.classes)} if dataset else {}
            )
            quantity = {"samples_total": "samples", "num_classes": "classes"}[cell.metric]
            found.append(
                Comparison(name, "", quantity, cell.mean, [ours[cell.metric]] if dataset else [])
            )
    return found
