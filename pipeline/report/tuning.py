"""The gain from tuning: each method's ranks before and after, and its gain on test data."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.formatting import signed
from pipeline.report.pairs import mean_difference
from pipeline.report.summary import Entry, Summary
from pipeline.store.scores import gain


@dataclass(frozen=True)
class Tuned:
    """A method in one setting.

    Attributes:
        published: its rank among the paper's numbers; None if one of them is missing.
        pinned, selected: its rank before and after tuning, among the methods that have both numbers; a row
            without a search keeps its number.
        accuracy: mean test accuracy of the selected configuration over the seeds, in percent.
        gain: mean gain in test accuracy over the pinned configuration, in percentage points.
        error: standard error of the gain; None for one seed.
    """

    setting: str
    label: str
    published: int | None
    pinned: int
    selected: int
    accuracy: float
    gain: float
    error: float | None

    @property
    def changed(self) -> bool:
        """Whether tuning has changed its accuracy or its rank."""
        return bool(self.gain or self.error or self.pinned != self.selected)


def tuned(summary: Summary) -> list[Tuned]:
    """The searched methods that are done before and after tuning, by setting, the best after it first."""
    lines = list(zip(summary.pinned, summary.tuned_lines, strict=True))
    rows = []
    settings = list(summary.settings)
    for setting in settings:
        pairs = [(pinned.entries[setting], tuned.entries[setting]) for pinned, tuned in lines]
        pairs = [pair for pair in pairs if all(e.complete and e.evaluation.is_accuracy for e in pair)]
        before, after = ([_mean(pair[place]) for pair in pairs] for place in (0, 1))
        printed = [pair[0].published.mean for pair in pairs if pair[0].published]
        whole = len(printed) == len(pairs)
        for place, pair in enumerate(pairs):
            if pair[1].configuration == "selected":
                rows.append(
                    Tuned(
                        setting,
                        summary.labels[pair[0].row],
                        _rank(printed, place) if whole else None,
                        _rank(before, place),
                        _rank(after, place),
                        after[place],
                        *_gain(*pair),
                    )
                )
    return sorted(rows, key=lambda method: (settings.index(method.setting), method.selected))


def overall(rows: Sequence[Tuned]) -> str:
    """A sentence on the mean gain from tuning over all settings; empty for fewer than three settings."""
    by_setting: dict[str, list[float]] = {}
    for method in rows:
        by_setting.setdefault(method.setting, []).append(method.gain)
    gains = [statistics.fmean(of_methods) for of_methods in by_setting.values()]
    if len(gains) < 3:
        return ""
    worth = mean_difference(gains, "setting")
    return (
        f"Over the {len(gains)} settings, tuning is worth {signed(worth.mean)} points on test data, on "
        f"average over the methods (95 % interval {worth.interval})."
    )


def _mean(entry: Entry) -> float:
    assert entry.score
    return entry.score.mean


def _rank(values: Sequence[float], place: int) -> int:
    """1 for the highest; values that are equal to two decimals share a rank."""
    return 1 + sum(round(value, 2) > round(values[place], 2) for value in values)


def _gain(pinned: Entry, selected: Entry) -> tuple[float, float | None]:
    after = selected.by_seed
    return gain([after[seed] - before for seed, before in pinned.by_seed.items()])
