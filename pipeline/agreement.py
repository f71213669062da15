"""What a report says of a paper's table as a whole: verdicts counted, rankings compared, claims tested."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pipeline.claims import Answer, Claim, Finding
from pipeline.summary import Summary
from pipeline.verdicts import NAMES, Name, Verdict, kendall


@dataclass(frozen=True)
class Tally:
    """How many cells have which verdict.

    Attributes:
        counts: by verdict, in the order of `NAMES`, without those that no cell has.
        provisional: how many of the cells that are reproduced, higher or lower.
    """

    counts: dict[Name, int]
    provisional: int

    @classmethod
    def of(cls, verdicts: Iterable[Verdict]) -> Tally:
        verdicts = list(verdicts)
        counts = Counter(verdict.name for verdict in verdicts)
        return cls(
            {name: counts[name] for name in NAMES if counts[name]},
            sum(verdict.provisional for verdict in verdicts),
        )

    def count(self, name: Name) -> int:
        return self.counts.get(name, 0)

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def run(self) -> int:
        """Cells that have a number of ours."""
        return self.total - self.count("not run") - self.count("failed")


@dataclass(frozen=True)
class Ranking:
    """Kendall's tau of our ranking of the methods in a column and the paper's; None: too few to say."""

    tau: float | None
    methods: int


@dataclass(frozen=True)
class Tested:
    """A claim of the paper, held against its own numbers and against ours."""

    claim: Claim
    published: Finding
    ours: Finding
    provisional: bool


def tally(summary: Summary) -> Tally:
    """The verdicts on all cells that have a printed number."""
    return Tally.of(entry.verdict for entry in summary.compared if entry.verdict)


def rankings(summary: Summary) -> dict[str, Ranking]:
    """By setting, for those with a printed number."""
    found = {}
    for setting in summary.columns:
        column = [entry for entry in summary.compared if entry.setting == setting]
        if column:
            both = [entry for entry in column if entry.score]
            ours = [round(entry.score.mean, 2) for entry in both if entry.score]
            theirs = [entry.published.mean for entry in both if entry.published]
            found[setting] = Ranking(kendall(ours, theirs), len(both))
    return found


def claims(summary: Summary) -> list[Tested]:
    """Each claim that the table's file declares, tested on the printed numbers and on ours."""
    printed = {(e.setting, e.row): e.published.mean for e in summary.compared if e.published}
    pinned = [entry for line in summary.pinned for entry in line.entries.values()]
    ours = {(entry.setting, entry.row): entry.score.mean for entry in pinned if entry.score}
    provisional = any(entry.verdict and entry.verdict.provisional for entry in summary.compared)
    columns = {name: summary.columns[name] for name in summary.table.settings}
    rows = summary.labels
    return [
        Tested(claim, claim.test(printed, columns, rows), claim.test(ours, columns, rows), provisional)
        for claim in summary.table.claims
    ]


def headline(counted: Tally, tested: Sequence[Tested]) -> str:
    """The outcome in a line or two.

    >>> headline(Tally({"reproduced": 3, "not run": 1}, provisional=3), [])
    'Of 4 published numbers: 3 reproduced, 1 not run. All verdicts are provisional.'
    """
    verdicts = ", ".join(f"{count} {name}" for name, count in counted.counts.items())
    text = f"Of {counted.total} published numbers: {verdicts}.".replace(" ratio", " as a ratio")
    judged = counted.count("reproduced") + counted.count("higher") + counted.count("lower")
    if counted.provisional:
        share = "All" if counted.provisional == judged else counted.provisional
        text += f" {share} verdicts are provisional."
    if tested:
        answers: Counter[Answer] = Counter(one.ours.answer for one in tested)
        order: list[Answer] = ["holds", "does not hold", "cannot be said"]
        found = ", ".join(f"{answer}: {answers[answer]}" for answer in order if answers[answer])
        text += f" The paper's claims on our numbers: {found}."
    return text
