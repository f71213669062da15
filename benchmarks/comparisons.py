"""Our partitions compared with the figures that papers print for theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pfl.data.dataset import Dataset
from pfl.data.partition import make_partition
from pipeline.spec.published import Published

DEVIATIONS = 2
"""Largest distance of a printed figure from our mean, in standard deviations over partition seeds."""

PFEDSIM_OPTIONS = "min=40,test=0.5,unstratified"
"""Options of pFedSim's Dirichlet partitions, as its tables pin them."""

SIZE, SPREAD = "samples per client, mean", "samples per client, standard deviation"
_NAMES = {("pfedsim", "emnist"): "emnist_byclass", ("spfl", "emnist"): "emnist_balanced"}
_RULES = {"iid": ("classes_iid", "IID"), "noniid_classes": ("classes_noniid", "non-IID")}
_PARTS = {
    "train_samples_per_client": ("train", "training samples per client"),
    "test_samples_per_client": ("test", "test samples per client"),
}


@dataclass(frozen=True)
class FigureComparison:
    """A printed figure and ours.

    Attributes:
        ours: one figure per partition seed; a single one if the seed has no effect.
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
    def deviations(self) -> float | None:
        """The printed figure minus ours, in standard deviations; None if there is no deviation."""
        return (self.printed - self.mean) / self.std if self.std else None

    @property
    def matches(self) -> bool:
        """Whether the printed figure is close enough to ours, or ours rounds to it."""
        gap = abs(self.printed - self.mean)
        return gap <= DEVIATIONS * self.std or gap < 0.5


def pfedsim_table4(
    cells: Sequence[Published],
    datasets: Mapping[str, Dataset],
    seeds: Sequence[int],
    options: str = PFEDSIM_OPTIONS,
) -> list[FigureComparison]:
    """pFedSim's Table 4: samples and classes of each data set, and how clients share the samples.

    Args:
        cells: the paper's printed cells.
        datasets: the available ones, by name; others are left out.
        options: options of our rule besides alpha.
    """
    comparisons = []
    for cell in (cell for cell in cells if cell.table == "4" and our_name(cell) in datasets):
        name = our_name(cell)
        dataset = datasets[name]
        if cell.std is not None:
            alpha = cell.partition_arg.removeprefix("alpha=")
            setting = f"Dir({alpha}), {cell.clients} clients"
            sizes = [s["size"] for s in _over_seeds(f"dirichlet:{alpha},{options}", dataset, cell, seeds)]
            comparisons += [
                FigureComparison(name, setting, SIZE, cell.mean, [size["mean"] for size in sizes]),
                FigureComparison(name, setting, SPREAD, cell.std, [size["std"] for size in sizes]),
            ]
        else:
            what = "samples" if cell.metric == "samples_total" else "classes"
            ours = {"samples": len(dataset.labels), "classes": len(dataset.classes)}[what]
            comparisons.append(FigureComparison(name, "train and test merged", what, cell.mean, [ours]))
    return comparisons


def spfl_table5(
    cells: Sequence[Published], datasets: Mapping[str, Dataset], seeds: Sequence[int]
) -> list[FigureComparison]:
    """SPFL's Table 5: training and test samples of a client.

    The paper prints a setting once for each way of training; it is compared only once.

    Args:
        cells: the paper's printed cells.
        datasets: the available ones, by name; others are left out.
    """
    distinct = {
        (cell.dataset, cell.partition, cell.partition_arg, cell.metric, cell.mean): cell
        for cell in cells
        if cell.table == "5" and cell.metric in _PARTS and our_name(cell) in datasets
    }
    comparisons = []
    for cell in distinct.values():
        name, (rule, kind), (part, quantity) = our_name(cell), _RULES[cell.partition], _PARTS[cell.metric]
        classes = cell.partition_arg.removeprefix("classes=")
        drawn = _over_seeds(f"{rule}:{classes},test=0.2", datasets[name], cell, seeds)
        ours = [statistics[part] / statistics["clients"] for statistics in drawn]
        setting = f"{classes} classes, {kind}, {cell.clients} clients"
        comparisons.append(FigureComparison(name, setting, quantity, cell.mean, ours))
    return comparisons


def our_name(cell: Published) -> str:
    """The registry's name of a cell's data set."""
    return _NAMES.get((cell.paper, cell.dataset), cell.dataset)


def _over_seeds(spec: str, dataset: Dataset, cell: Published, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """The statistics of a partition into the cell's number of clients, for every seed."""
    partitions = (make_partition(f"{spec},seed={seed}", dataset, cell.clients) for seed in seeds)
    return [partition.statistics(dataset.labels, len(dataset.classes)) for partition in partitions]
