"""The leaderboard of a table: methods by mean rank, gains from tuning, and which method to try first."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pfl.core.text import amount, distinct
from pfl.methods import METHODS
from pipeline.columns import Column, columns_of
from pipeline.formatting import enumeration, points, signed
from pipeline.report.amounts import csv_of, decimals, difference_columns, quantity
from pipeline.report.leads import SIGNIFICANT, Ranks, ranks_of
from pipeline.report.moments import MOMENTS, at_moment
from pipeline.report.pairs import PairedDifference, mean_difference
from pipeline.report.summary import Line, Summary
from pipeline.spec.reported import At
from pipeline.spec.search_space import PINNED_TRIAL
from pipeline.store.scores import Score

BASELINE = "fedavg"
"""The row with which the text compares the first."""

LEVEL = "≈"
"""Marks the methods that do not differ significantly from the first."""

RULE = (
    "Means over the settings, of the configuration that the search selected. Each method is evaluated at the "
    "moment that it reports: as received, after local training, or after an adaptation of its own. Two "
    "columns have the same moments for all. The mean rank is over all pairs of a setting and a seed, 1 being "
    "the highest accuracy; ties share their mean. "
    f"{LEVEL}: the method does not differ significantly from the first by Nemenyi's test on these ranks "
    f"({100 * SIGNIFICANT:.0f} %). The seeds of a setting share its partition, so the test is about these "
    "settings and no others. Differences are in percentage points, with Student's t intervals, at 95 %, over "
    "the seeds, each of which counts by its mean over the settings. They are not corrected for multiple "
    "comparisons. The gain from tuning is that of the selected configuration over the pinned one, on test "
    "data and with seeds that the search has not seen."
)

SHOWN = ("megabytes", "seconds")
"""Report columns of the table, besides those whose names begin with "unseen"; leaderboard.csv has all."""


@dataclass(frozen=True)
class Standing:
    """The place of a method; numbers are means over the settings.

    Attributes:
        place: 1 for the best mean rank; methods with the same mean rank share a place.
        level: whether it does not differ significantly from the first.
        accuracy: mean accuracy in percent.
        difference: its accuracy minus that of `Board.against`, over the seeds that both have in all settings;
            None if there are none.
        gain: likewise, the selected configuration minus the pinned one; None without a search.
        tuned: number of settings in which a trial was selected.
        scores: the accuracy in each setting.
        moments: the accuracy at each of the `MOMENTS`; None if it is not recorded.
        quantities: means by report column; None if no record has it.
    """

    place: int
    row: str
    label: str
    method: str
    rank: float
    level: bool
    accuracy: float
    difference: PairedDifference | None
    gain: PairedDifference | None
    tuned: int
    scores: Mapping[str, Score]
    moments: Mapping[str, float | None]
    quantities: Mapping[str, float | None]
    keys: tuple[str, ...]

    @property
    def family(self) -> str:
        return METHODS[self.method].family


@dataclass(frozen=True)
class Board:
    """A leaderboard.

    Attributes:
        standings: in the order of the ranks.
        columns: the report columns, by name.
        against: label of the row that is subtracted from the others: the table's ``reference``, or the first.
        over_baseline: the first minus the `BASELINE`; None if that is the first, or missing.
        untuned: labels of the best mean rank among the pinned configurations; empty without a search.
        unranked: labels of the rows that lack a number in some setting.
        left_out: registered methods without a row.
    """

    summary: Summary
    ranks: Ranks
    standings: tuple[Standing, ...]
    columns: Mapping[str, Column]
    against: str
    over_baseline: PairedDifference | None
    untuned: tuple[str, ...]
    unranked: tuple[str, ...]
    left_out: tuple[str, ...]

    @property
    def shown(self) -> dict[str, Column]:
        """The report columns of the table for which there are numbers."""
        return {
            name: column
            for name, column in self.columns.items()
            if (name in SHOWN or name.startswith("unseen"))
            and any(standing.quantities[name] is not None for standing in self.standings)
        }

    @property
    def advice(self) -> str:
        """Which method to try first, and why."""
        first, *others = self.standings
        shared = f" (shared with {enumeration(self.ranks.best[1:])})" if len(self.ranks.best) > 1 else ""
        sentences = [
            f"Try {first.label} first: it has the best mean rank of {amount(len(self.standings), 'method')}, "
            f"{points(first.rank)}{shared}, and {points(first.accuracy)} % on average over the settings."
        ]
        if gap := self.over_baseline:
            interval = f" (95 % interval {gap.interval})" if gap.interval else ""
            baseline = self.summary.labels[BASELINE]
            sentences.append(f"Its lead over {baseline} is {signed(gap.mean)} points{interval}.")
        level = [standing for standing in others if standing.level]
        if level:
            ranks = amount(sum(score.seeds for score in first.scores.values()), "rank")
            sentences.append(
                f"With {ranks} per method, it differs significantly from {len(others) - len(level)} of the "
                f"{len(others)} others by Nemenyi's test ({LEVEL}: no significant difference)."
            )
        else:
            sentences.append("Every other method has a significantly worse mean rank.")
        if self.untuned:
            are = "is" if len(self.untuned) == 1 else "are"
            same = " as well" if self.untuned == self.ranks.best else ""
            sentences.append(f"Without tuning, {enumeration(self.untuned)} {are} first{same}.")
        highest = [
            f"{best} {title[0].lower()}{title[1:]}"
            for moment, title in MOMENTS.items()
            if (best := self._best_at(moment))
        ]
        if highest:
            sentences.append(
                "With all methods at the same moment, the highest mean is that of "
                f"{', and of '.join(highest)}."
            )
        return " ".join(sentences)

    def _best_at(self, moment: At) -> str:
        """The methods with the highest accuracy at a moment; empty if none has recorded it."""
        known = {s.label: value for s in self.standings if (value := s.moments[moment]) is not None}
        return enumeration([label for label, value in known.items() if value == max(known.values())])

    @property
    def limits(self) -> list[str]:
        """What the page does not show, in sentences."""
        table, records, settings = self.summary.table, self.summary.records, self.summary.settings
        networks = {record.config["model"] for record in records}
        datasets = {table.datasets[name] for name in settings}  # a record keeps the earlier name
        counts = [score.seeds for score in self.standings[0].scores.values()]
        fewest, most = min(counts), max(counts)
        seeds = amount(most, "seed") if fewest == most else f"{fewest} to {most} seeds"
        lines = [
            f"The numbers are of {_all_of('network', networks)} on {_all_of('data set', datasets)}, "
            f"partitioned in {amount(len(settings), 'way')} ({'; '.join(settings.values())}), with {seeds} "
            "each. With other networks, data or numbers of rounds, the methods may rank differently.",
        ]
        if table.search and table.search.budget:
            lines.append(
                f"The budget of a search, for a method in a setting, is the training of "
                f"{table.search.budget * len(table.seeds):g} runs of the pinned configuration. A method with "
                "many hyperparameters may do better with a larger budget."
            )
        if self.unranked:
            lines.append(f"Not ranked, because a result is missing: {', '.join(self.unranked)}.")
        if self.left_out:
            lines.append(f"Methods left out: {', '.join(self.left_out)}.")
        return lines


def board(summary: Summary) -> Board | None:
    """The leaderboard of a table; None if all tie or fewer than three methods have numbers everywhere."""
    summary = summary.without(summary.empty)
    settings = list(summary.settings)
    pinned = {line.row: line for line in summary.pinned}
    complete = {line.label: line for line in summary.tuned_lines if settings and _complete(line, settings)}
    if len(complete) < 3:
        return None
    ranks = _ranks(list(complete.values()), settings)
    if ranks is None:
        return None
    columns = columns_of(summary.records)
    ranked = [complete[label] for label in ranks.means]
    best = ranked[0]
    subtracted = next((line for line in ranked if line.row == summary.table.reference), best)
    level = ranks.level(best.label)
    changed = {
        (cell.setting, cell.row)
        for cell in summary.results.cells
        if cell.selection and cell.selection.trial != PINNED_TRIAL
    }

    def placed(line: Line) -> Standing:
        entries = [line.entries[name] for name in settings]
        before = [pinned[line.row].entries[name] for name in settings]
        gain = None
        if line.configuration == "selected":
            gain = _difference(line, pinned[line.row], settings)
        rank = ranks.means[line.label]
        return Standing(
            place=1 + sum(other < rank for other in ranks.means.values()),
            row=line.row,
            label=line.label,
            method=line.method,
            rank=rank,
            level=line is best or line.label in level,
            accuracy=statistics.fmean(entry.score.mean for entry in entries if entry.score),
            difference=_difference(line, subtracted, settings),
            gain=gain,
            tuned=sum((name, line.row) in changed for name in settings),
            scores={name: score for name in settings if (score := line.entries[name].score)},
            moments={moment: _mean(at_moment(entry, moment).mean for entry in entries) for moment in MOMENTS},
            quantities={
                name: _mean(quantity(entry, column) for entry in entries) for name, column in columns.items()
            },
            keys=tuple(dict.fromkeys(key for entry in (*entries, *before) for key in entry.keys)),
        )

    baseline = next((line for line in ranked if line.row == BASELINE), best)
    before = [line for line in summary.pinned if _complete(line, settings)]
    comparable = summary.selected and len(before) == len(ranked)
    of_pinned = _ranks(before, settings) if comparable else None
    return Board(
        summary=summary,
        ranks=ranks,
        standings=tuple(map(placed, ranked)),
        columns=columns,
        against=subtracted.label,
        over_baseline=None if best is baseline else _difference(best, baseline, settings),
        untuned=of_pinned.best if of_pinned else (),
        unranked=tuple(line.label for line in summary.tuned_lines if line.label not in complete),
        left_out=tuple(name for name in METHODS if name not in {row.method for row in summary.table.methods}),
    )


def comma_separated(board: Board) -> str:
    """CSV text with a line per method, with unrounded numbers and the ledger keys behind them."""
    return csv_of(_csv_row(board, standing) for standing in board.standings)


def _csv_row(board: Board, standing: Standing) -> dict[str, object]:
    own = {
        "table": board.summary.id,
        "place": standing.place,
        "row": standing.row,
        "label": standing.label,
        "method": standing.method,
        "family": standing.family,
        "mean_rank": decimals(standing.rank),
        "level_with_first": standing.level,
        "accuracy": decimals(standing.accuracy),
        "minus": board.against,
        **difference_columns(standing.difference),
        **difference_columns(standing.gain, "gain", "gain_"),
        "tuned_settings": standing.tuned,
        **{moment: decimals(value) for moment, value in standing.moments.items()},
    }
    scores = {name: decimals(standing.scores[name].mean) for name in board.summary.settings}
    scored = {**own, **distinct("setting_", scores, {*own, "keys"})}
    quantities = {name: decimals(standing.quantities[name]) for name in board.columns}
    return {**scored, **distinct("column_", quantities, {*scored, "keys"}), "keys": " ".join(standing.keys)}


def _complete(line: Line, settings: Iterable[str]) -> bool:
    return all(line.entries[name].is_ranked for name in settings)


def _by_seed(line: Line, settings: Iterable[str]) -> list[dict[int, float]]:
    """The accuracies of each setting by seed, in percent."""
    return [line.entries[name].by_seed for name in settings]


def _ranks(lines: Sequence[Line], settings: Sequence[str]) -> Ranks | None:
    """Mean ranks over the pairs of a setting and a seed; all ``lines`` have the seeds of a setting."""
    columns = zip(*(_by_seed(line, settings) for line in lines), strict=True)
    accuracies = [[of_line[seed] for of_line in column] for column in columns for seed in column[0]]
    over = amount(len(accuracies), "pair") + " of a setting and a seed"
    return ranks_of([line.label for line in lines], np.array(accuracies), over)


def _difference(first: Line, second: Line, settings: Sequence[str]) -> PairedDifference | None:
    """The first minus the second, averaged over the settings and paired by the seeds that both have in each;
    None if there is no such seed."""
    ours, theirs = _by_seed(first, settings), _by_seed(second, settings)
    seeds = sorted(set.intersection(*map(set, (*ours, *theirs))))
    gaps = [statistics.fmean(a[seed] - b[seed] for a, b in zip(ours, theirs, strict=True)) for seed in seeds]
    return mean_difference(gaps) if gaps else None


def _mean(values: Iterable[float | None]) -> float | None:
    """The mean of the values; None if one of them is missing."""
    listed = list(values)
    known = [value for value in listed if value is not None]
    return statistics.fmean(known) if len(known) == len(listed) else None


def _all_of(noun: str, names: set[str]) -> str:
    """A number and names, as in "one network (lenet5)"."""
    number = "one" if len(names) == 1 else str(len(names))
    return f"{number} {noun}{'' if len(names) == 1 else 's'} ({', '.join(sorted(names))})"
