"""All methods at the same moment: after local training on a client's own data, and as received.

A method reports the moment that its paper names; a simulation's last evaluation includes all moments.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pfl.run.trials import Record
from pfl.run.validation import of_record, train_alike
from pipeline.report.amounts import csv_of, decimals, difference_columns, spread
from pipeline.report.pairs import PairedDifference, difference
from pipeline.report.summary import Entry, Line, LineKey, Summary
from pipeline.spec.reported import At
from pipeline.store.scores import score

MOMENTS: Mapping[At, str] = {
    "post_local": "After local training on the client's own data",
    "post_aggregation": "As received, before local training",
}


@dataclass(frozen=True)
class AtMoment:
    """An entry at one moment of the last evaluation (`at_moment`), compared with another.

    Attributes:
        against: the row of the entry that the others are compared with.
        gap: difference from that entry; None for that entry itself.
    """

    entry: Entry
    against: str = ""
    gap: PairedDifference | None = None

    @property
    def markdown(self) -> str:
        if self.entry.score is None:
            return "*not recorded*" if self.entry.successes else f"*{self.entry.status}*"
        text = spread(self.entry.score)
        if self.gap is None:
            return f"**{text}**" if self.against else text
        return f"{text}<br><sub>{self.gap.shown}</sub>"


@dataclass(frozen=True)
class Block:
    """The table at one moment.

    Attributes:
        settings: those in which a method has run.
        lines: each row's heading and its entries by setting.
    """

    moment: At
    title: str
    settings: Sequence[str]
    lines: Sequence[tuple[str, Mapping[str, AtMoment]]]


def blocks(summary: Summary) -> list[Block]:
    """One block for each moment; none if nothing has run, or the table reports no accuracies."""
    lines = _methods(summary)
    if not any(entry.successes for line in lines for entry in line.entries.values()):
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
    """CSV text with a line for each method, column and moment; table.csv has the ledger keys."""
    return csv_of(
        {
            "table": summary.id,
            "setting": at.entry.setting,
            "row": at.entry.row,
            "label": label,
            "configuration": at.entry.configuration,
            "moment": block.moment,
            "mean": decimals(reached.mean),
            "std": decimals(reached.std),
            "seeds": reached.seeds,
            "against": at.against,
            **difference_columns(at.gap),
            "pairs": at.gap and at.gap.pairs,
            "over": at.gap and at.gap.over,
        }
        for block in shown
        for label, entries in block.lines
        for at in entries.values()
        if (reached := at.entry.score)
    )


def _methods(summary: Summary) -> list[Line]:
    """The lines over all clients; of those with the same models, only the first and the reference."""
    lines: list[Line] = []
    for line in summary.lines:
        entries = {
            name: entry
            for name, entry in line.entries.items()
            if name in summary.settings and entry.is_of_all
        }
        new = dataclasses.replace(line, entries=entries)
        is_reference = line.key == (summary.table.reference, "pinned")
        is_new = is_reference or not any(_same_models(new, old) for old in lines)
        if is_new and any(entry.successes for entry in entries.values()):
            lines.append(new)
    return lines


def _same_models(line: Line, other: Line) -> bool:
    """Whether the same training produced the models of both lines in every column, before any adaptation."""
    ours, theirs = ({name: entry.successes for name, entry in each.entries.items()} for each in (line, other))
    return ours.keys() == theirs.keys() and all(
        len(ours[name]) == len(theirs[name]) and all(map(_trained_alike, ours[name], theirs[name]))
        for name in ours
    )


def _trained_alike(record: Record, other: Record) -> bool:
    """Whether the same training serves both simulations; the table ensures that the code was the same."""
    data, other_data = ((run.seed, run.data_checksum, run.partition_checksum) for run in (record, other))
    return record.key == other.key or (
        data == other_data and train_alike([of_record(record.config), of_record(other.config)])
    )


def _block(summary: Summary, lines: Sequence[Line], moment: At) -> Block:
    columns: dict[str, dict[LineKey, AtMoment]] = {}
    for setting in summary.settings:
        entries = {
            line.key: at_moment(line.entries[setting], moment) for line in lines if setting in line.entries
        }
        if any(entry.successes for entry in entries.values()):
            columns[setting] = _compared(summary, entries)
    return Block(
        moment,
        MOMENTS[moment],
        list(columns),
        [
            (line.heading, {name: column[line.key] for name, column in columns.items() if line.key in column})
            for line in lines
        ],
    )


def _compared(summary: Summary, entries: Mapping[LineKey, Entry]) -> dict[LineKey, AtMoment]:
    """The entries of a column at a moment, minus the table's reference or, without one, the best."""
    means = {key: entry.score.mean for key, entry in entries.items() if entry.score and entry.complete}
    best = max(means, key=lambda key: means[key], default=None)
    against: LineKey | None = (summary.table.reference, "pinned") if summary.table.reference else best
    if against not in means:
        return {key: AtMoment(entry) for key, entry in entries.items()}
    other = entries[against]
    return {
        key: AtMoment(entry, other.row, difference(entry, other) if key != against and entry.score else None)
        for key, entry in entries.items()
    }


def at_moment(entry: Entry, moment: At) -> Entry:
    """An entry at a moment of the last evaluation, over all clients of its group.

    Its score is None if no accuracy at the moment is recorded.
    """
    reported = entry.evaluation.model_copy(update={"moment": moment, "which": "last", "clients": None})
    recorded = entry.evaluation.is_accuracy and all(
        moment in record.metrics.rounds[-1].of(reported.group) for record in entry.successes
    )
    reached = score(entry.successes, reported) if recorded else None
    return dataclasses.replace(entry, evaluation=reported, score=reached)
