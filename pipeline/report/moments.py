"""All methods at one moment: after local training on a client's own data, and as received.

A method reports the moment that its paper names; the last evaluation of a simulation holds all of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pfl.core.config import Config
from pfl.run.trials import Record
from pfl.run.validation import train_alike
from pipeline.report.amounts import csv_of, decimals, difference_columns, spread
from pipeline.report.pairs import PairedDifference, difference
from pipeline.report.summary import Configuration, Entry, Line, Summary
from pipeline.spec.reported import At, Evaluation
from pipeline.store.scores import Score, score

MOMENTS: Mapping[At, str] = {
    "post_local": "After local training on the client's own data",
    "post_aggregation": "As received, before local training",
}
LineKey = tuple[str, Configuration]
"""A row and its configuration."""


@dataclass(frozen=True)
class AtMoment:
    """An entry at one moment of the last evaluation.

    Attributes:
        score: None where it has not run, or no such moment is recorded.
        gap: the entry minus the one that the others are compared with; None for that one itself.
    """

    entry: Entry
    moment: At
    score: Score | None
    against: str = ""
    gap: PairedDifference | None = None

    @property
    def markdown(self) -> str:
        if self.score is None:
            return "*not recorded*" if self.entry.rows else f"*{self.entry.status}*"
        text = spread(self.score)
        if self.gap is None:
            return f"**{text}**" if self.against else text
        return f"{text}<br><sub>{self.gap.shown}</sub>"


@dataclass(frozen=True)
class Block:
    """The table at one moment.

    Attributes:
        lines: by row, its label and its entries by setting.
    """

    moment: At
    title: str
    lines: Mapping[LineKey, tuple[str, Mapping[str, AtMoment]]]


def blocks(summary: Summary) -> list[Block]:
    """One block for each moment; none if nothing has run, or the table reports no accuracies."""
    lines = _methods(summary)
    if not any(entry.rows for line in lines for entry in line.entries.values()):
        return []
    return [_block(summary, lines, moment) for moment in MOMENTS]


def caption(summary: Summary) -> str:
    """What the blocks show."""
    table = summary.table
    against = summary.labels[table.reference] if table.reference else "the best of the column"
    return (
        "Methods report the moment that their papers name; here, all are compared at the same moment of the "
        f"last evaluation. Below an accuracy: the difference to {against} (bold), with a 95 % interval over "
        "paired seeds or, with one seed, over clients if their accuracies at this moment were recorded."
    )


def comma_separated(summary: Summary, shown: Sequence[Block]) -> str:
    """A line for each method, column and moment."""
    return csv_of(
        _csv_row(summary.id, label, at, at.score)
        for block in shown
        for label, entries in block.lines.values()
        for at in entries.values()
        if at.score
    )


def _csv_row(table: str, label: str, at: AtMoment, score: Score) -> dict[str, object]:
    gap = at.gap
    return {
        "table": table,
        "setting": at.entry.setting,
        "row": at.entry.row,
        "label": label,
        "configuration": at.entry.configuration,
        "moment": at.moment,
        "mean": decimals(score.mean),
        "std": decimals(score.std),
        "seeds": score.seeds,
        "against": at.against,
        **difference_columns(gap),
        "pairs": gap and gap.pairs,
        "over": gap and gap.over,
        "keys": " ".join(record.key for record in at.entry.rows),
    }


def _methods(summary: Summary) -> list[Line]:
    """The lines of all clients; of those with the same models, the first, and the one compared with."""
    lines: list[Line] = []
    for line in summary.lines:
        entries = {
            name: entry
            for name, entry in line.entries.items()
            if name in summary.settings and entry.is_of_all
        }
        new = dataclasses.replace(line, entries=entries)
        is_reference = (line.row, line.configuration) == (summary.table.reference, "pinned")
        is_new = is_reference or not any(_same_models(new, old) for old in lines)
        if is_new and any(entry.rows for entry in entries.values()):
            lines.append(new)
    return lines


def _same_models(line: Line, other: Line) -> bool:
    """Whether one training gave the models of both lines in every column, before any adaptation."""
    ours, theirs = ({name: entry.rows for name, entry in of.entries.items()} for of in (line, other))
    return ours.keys() == theirs.keys() and all(
        len(ours[name]) == len(theirs[name]) and all(map(_trained_alike, ours[name], theirs[name]))
        for name in ours
    )


def _trained_alike(record: Record, other: Record) -> bool:
    """Whether one training serves both simulations; that the code was the same, the table requires."""
    data, other_data = ((of.seed, of.data_checksum, of.partition_checksum) for of in (record, other))
    return record.key == other.key or (
        data == other_data and train_alike([Config.from_dict(record.config), Config.from_dict(other.config)])
    )


def at_moment(evaluation: Evaluation, moment: At) -> Evaluation:
    """What is reported at a moment of the last evaluation, of all clients that count."""
    return evaluation.model_copy(update={"moment": moment, "which": "last", "clients": None})


def _block(summary: Summary, lines: Sequence[Line], moment: At) -> Block:
    by_setting: dict[str, dict[LineKey, AtMoment]] = {}
    for setting in summary.settings:
        column = {
            (line.row, line.configuration): line.entries[setting] for line in lines if setting in line.entries
        }
        if not any(entry.rows for entry in column.values()):
            continue
        scored = {key: scored_at(entry, moment) for key, entry in column.items()}
        against = _reference(summary, column, scored)
        by_setting[setting] = {
            key: AtMoment(
                entry,
                moment,
                scored[key],
                column[against].row if against else "",
                _gap(entry, column[against], moment) if against and key != against and scored[key] else None,
            )
            for key, entry in column.items()
        }
    return Block(
        moment,
        MOMENTS[moment],
        {
            (line.row, line.configuration): (
                line.label + (", selected" if line.configuration == "selected" else ""),
                {name: column[line.row, line.configuration] for name, column in by_setting.items()},
            )
            for line in lines
        },
    )


def _reference(
    summary: Summary, column: Mapping[LineKey, Entry], scored: Mapping[LineKey, Score | None]
) -> LineKey | None:
    """The line of a column with which the others are compared: the table's, or else the best."""
    there = {key: reached.mean for key, reached in scored.items() if reached and column[key].complete}
    if summary.table.reference:
        key: LineKey = (summary.table.reference, "pinned")
        return key if key in there else None
    return max(there, key=lambda key: there[key], default=None)


def scored_at(entry: Entry, moment: At) -> Score | None:
    """An entry's accuracy at a moment of the last evaluation; None where it is not recorded."""
    if not entry.evaluation.is_accuracy:
        return None
    evaluation = at_moment(entry.evaluation, moment)
    if not all(moment in record.metrics.rounds[-1].of(evaluation.group) for record in entry.rows):
        return None
    return score(entry.rows, evaluation)


def _gap(entry: Entry, other: Entry, moment: At) -> PairedDifference | None:
    first, second = ((compared.rows, at_moment(compared.evaluation, moment)) for compared in (entry, other))
    return difference(first, second)
