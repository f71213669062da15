"""The best method and the significance of its lead: per column, and over all columns by mean ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pfl.core.text import amount
from pipeline.formatting import enumeration, points
from pipeline.report.pairs import PairedDifference, difference
from pipeline.report.plots import as_svg, wide_figure
from pipeline.report.summary import Entry, Summary
from pipeline.svg import Canvas

if TYPE_CHECKING:
    from pandas import DataFrame

SIGNIFICANT = 0.05
COLUMNS = 3
"""Smallest number of columns for which mean ranks are informative."""

RANK_RULE = (
    "Mean ranks over the columns in which all methods have run, 1 being the highest accuracy, ties sharing "
    "their mean. Methods on one bar do not differ significantly by Nemenyi's test "
    f"({100 * SIGNIFICANT:.0f} %)."
)


@dataclass(frozen=True)
class Lead:
    """The best method of a column, and its lead.

    Attributes:
        column: the column's label.
        best: labels of the best; several if they tie exactly.
        score: their accuracy, in percent.
        second: label of the next, or "no other".
        gap: the best minus the second.
        level: labels of the methods that do not differ significantly from the best, possibly the second.
        unknown: labels of those without an interval.
        tuned: whether the configurations of searched rows are those that their searches selected.
    """

    column: str
    best: tuple[str, ...]
    score: float
    second: str
    gap: PairedDifference | None
    level: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    tuned: bool = False

    @property
    def _short(self) -> str:
        """For example "FedPer by 0.36 over FedRep (95 % interval −1.10 to +1.82 over 5 paired seeds)"."""
        names = enumeration(self.best)
        level = f" (level at {points(self.score)})" if len(self.best) > 1 else ""
        if self.gap is None:
            return f"{names}{level}, then {self.second}"
        sure = (
            f"95 % interval {self.gap.interval} over {self.gap.basis}"
            if self.gap.interval
            else "one seed, no interval"
        )
        return f"{names}{level} by {points(self.gap.mean)} over {self.second} ({sure})"

    @property
    def text(self) -> str:
        """The lead in sentences."""
        first = "it" if len(self.best) == 1 else "them"
        tuned = " after tuning" if self.tuned else ""
        sentences = [f"First{tuned}, with {points(self.score)} %: {self._short}."]
        if self.level:
            sentences.append(f"Not significantly different from {first}: {enumeration(self.level)}.")
        if self.unknown:
            sentences.append(f"Without an interval: {enumeration(self.unknown)}.")
        if self.gap and not self.level and not self.unknown:
            sentences.append(f"Every other method differs significantly from {first}.")
        return " ".join(sentences)


def leads(summary: Summary) -> list[Lead]:
    """The leads of the columns with at least two methods, those of `Summary.tuned_lines`."""
    return [lead for name in summary.settings if (lead := _lead(summary, name))]


def methods(summary: Summary, setting: str) -> dict[str, tuple[Entry, float]]:
    """The methods of a column that are done and can be ranked, by label, with accuracies in percent.

    Of methods with the same simulations and evaluation, only the first is included.
    """
    chosen: dict[tuple[object, ...], tuple[str, tuple[Entry, float]]] = {}
    for line in summary.tuned_lines:
        entry = line.entries[setting]
        if entry.is_ranked and entry.score:
            reading = entry.keys, entry.evaluation.model_dump_json()
            chosen.setdefault(reading, (line.label, (entry, entry.score.mean)))
    return dict(chosen.values())


def _lead(summary: Summary, setting: str) -> Lead | None:
    there = methods(summary, setting)
    if len(there) < 2:
        return None
    ordered = sorted(there, key=lambda label: -there[label][1])
    first, top = there[ordered[0]]
    best = [label for label in ordered if there[label][1] == top]
    gaps = {label: difference(first, there[label][0]) for label in ordered[len(best) :]}
    second = next(iter(gaps), "no other")
    return Lead(
        column=summary.columns[setting],
        best=tuple(best),
        score=top,
        second=second,
        gap=gaps.get(second),
        level=tuple(label for label, gap in gaps.items() if gap and gap.sign == 0),
        unknown=tuple(label for label, gap in gaps.items() if gap is None or gap.sign is None),
        tuned=bool(summary.selected),
    )


@dataclass(frozen=True)
class Ranks:
    """Mean ranks of a table's methods over its columns.

    Attributes:
        means: mean ranks by label, the best first, equal ones by label.
        over: what they are averaged over, as in "3 columns".
        friedman: the p-value of Friedman's test that all methods are equal.
        nemenyi: the p-values of Nemenyi's test for each pair.
    """

    means: Mapping[str, float]
    over: str
    friedman: float
    nemenyi: DataFrame

    @property
    def best(self) -> tuple[str, ...]:
        """The methods with the best mean rank; several if they tie."""
        least = min(self.means.values())
        return tuple(label for label, rank in self.means.items() if rank == least)

    def level(self, method: str) -> list[str]:
        """The other methods that do not differ significantly from ``method``, the best first."""
        others = (label for label in self.means if label != method)
        return [label for label in others if self.nemenyi.loc[method, label] >= SIGNIFICANT]

    @property
    def text(self) -> str:
        """A sentence about the best."""
        first = self.best[0]
        level = (first, *self.level(first))
        inferior = enumeration([label for label in self.means if label not in level]) or "none of the others"
        have, differ = ("has", "it differs") if len(self.best) == 1 else ("have", "they differ")
        return (
            f"Over {self.over}, {enumeration(self.best)} {have} the best mean rank, "
            f"{points(self.means[first])} among {len(self.means)} methods (Friedman's test: "
            f"p = {self.friedman:.2g}); by Nemenyi's test {differ} significantly from {inferior}."
        )


def mean_ranks(summary: Summary) -> Ranks | None:
    """Mean ranks over the columns in which all methods that have run anywhere are done; None for fewer than
    three columns or methods."""
    by_column = {
        name: {label: mean for label, (_, mean) in methods(summary, name).items()}
        for name in summary.settings
    }
    labels = list(dict.fromkeys(label for column in by_column.values() for label in column))
    whole = [column for column in by_column.values() if len(column) == len(labels)]
    if len(whole) < COLUMNS or len(labels) < COLUMNS:
        return None
    accuracies = np.array([[column[label] for label in labels] for column in whole])
    return ranks_of(labels, accuracies, amount(len(whole), "column"))


def ranks_of(labels: Sequence[str], accuracies: np.ndarray, over: str) -> Ranks | None:
    """Mean ranks and tests of an array (columns, methods); None if all mean ranks are equal.

    Args:
        over: describes the columns, as in `Ranks`.

    Source: J. Demšar, "Statistical comparisons of classifiers over multiple data sets", JMLR 7, 2006.
    """
    from scikit_posthocs import posthoc_nemenyi_friedman
    from scipy.stats import friedmanchisquare, rankdata

    ranks = rankdata(-accuracies, axis=1)
    means = dict(zip(labels, map(float, ranks.mean(axis=0)), strict=True))
    if len(set(means.values())) == 1:
        return None
    nemenyi = posthoc_nemenyi_friedman(accuracies)
    nemenyi.index = nemenyi.columns = list(labels)
    friedman = float(friedmanchisquare(*accuracies.T).pvalue)
    ordered = dict(sorted(means.items(), key=lambda item: (item[1], item[0])))
    return Ranks(ordered, over, friedman, nemenyi)


@as_svg
def diagram(ranks: Ranks) -> Canvas:
    """The critical-difference diagram."""
    from scikit_posthocs import critical_difference_diagram

    figure = wide_figure(1.2 + 0.16 * len(ranks.means))
    axes = figure.subplots()
    axes.grid(visible=False)
    critical_difference_diagram(dict(ranks.means), ranks.nemenyi, ax=axes, alpha=SIGNIFICANT)
    for line in axes.lines:  # a bar visits its methods in the order of a set, which varies between runs
        x, y = map(np.asarray, line.get_data())
        if len(set(y)) == 1:
            line.set_data([x.min(), x.max()], [y[0], y[0]])
    axes.set_xlabel("Mean rank")
    axes.xaxis.set_label_position("top")
    return figure
