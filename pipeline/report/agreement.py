"""A paper's table as a whole: verdicts are counted, rankings compared and claims tested."""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from pfl.text import amount
from pipeline.report.summary import Line, Summary
from pipeline.report.verdicts import NAMES, SEEDS, Name, Verdict, kendall
from pipeline.spec.claims import Answer, Finding
from pipeline.spec.table_claims import Place, TableClaim, Values
from pipeline.store.scores import reported

JUDGED: tuple[Name, ...] = ("reproduced", "higher", "lower")

RESAMPLES = 500
FIRM = 0.95
"""Share of the resamples that must give a claim's answer, too."""

CLAIM_RULE = (
    f"Our answers are those of the means over the seeds. With {SEEDS} seeds or more, an answer stands if at "
    f"least {FIRM:.0%} of {RESAMPLES} bootstrap resamples of the seeds give it; otherwise the claim is open. "
    "With fewer seeds, the answer is provisional."
).replace("%", " %")


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
    def judged(self) -> int:
        return sum(map(self.count, JUDGED))

    @property
    def run(self) -> int:
        """Cells whose simulations ended, converged or not."""
        return self.total - self.count("not run") - self.count("failed")


@dataclass(frozen=True)
class Ranking:
    """Kendall's tau between our ranking of a column's methods and the paper's; None for too few methods."""

    tau: float | None
    methods: int


@dataclass(frozen=True)
class OurFinding(Finding):
    """What a claim comes to on our numbers.

    Attributes:
        provisional: the answer rests on fewer seeds than `SEEDS`.
    """

    provisional: bool = False


@dataclass(frozen=True)
class Tested:
    """A claim of the paper, tested on its own numbers, on ours, and on ours after a search, if any."""

    claim: TableClaim
    published: Finding
    ours: OurFinding
    tuned: OurFinding | None


def tally(summary: Summary) -> Tally:
    """The verdicts on all cells that have a printed number."""
    return Tally.of(entry.verdict for entry in summary.compared if entry.verdict)


def rankings(summary: Summary) -> dict[str, Ranking]:
    """By setting, for those with printed numbers; none where rows share one, as in a study of one cell."""
    rankings = {}
    for setting in summary.columns:
        column = [entry for entry in summary.compared if entry.setting == setting]
        if column and len({entry.published for entry in column}) == len(column):
            both = [entry for entry in column if entry.score]
            ours = [round(entry.score.mean, 2) for entry in both if entry.score]
            theirs = [entry.published.mean for entry in both if entry.published]
            rankings[setting] = Ranking(kendall(ours, theirs), len(both))
    return rankings


def claims(summary: Summary) -> list[Tested]:
    """Each claim that the table's file declares, tested on the printed numbers and on ours."""
    printed = {(e.setting, e.row): e.published.mean for e in summary.compared if e.published}
    columns = {name: summary.columns[name] for name in summary.table.settings}
    rows = summary.labels
    pinned, selected = (_by_seed(lines, columns) for lines in (summary.pinned, summary.selected))
    return [
        Tested(
            claim,
            claim.test(printed, columns, rows),
            _ours(claim, pinned, columns, rows),
            _ours(claim, selected, columns, rows) if selected else None,
        )
        for claim in summary.table.claims
    ]


BySeed = Mapping[Place, Mapping[int, float]]
"""Our numbers of each place that has a score, by seed."""


def _by_seed(lines: Iterable[Line], settings: Collection[str]) -> BySeed:
    entries = [e for line in lines for e in line.entries.values() if e.score and e.setting in settings]
    return {
        (entry.setting, entry.row): {record.seed: reported(record, entry.evaluation) for record in entry.rows}
        for entry in entries
    }


def _ours(
    claim: TableClaim, by_seed: BySeed, columns: Mapping[str, str], rows: Mapping[str, str]
) -> OurFinding:
    """What a claim comes to on the means over the seeds, if nearly all resamples agree (`FIRM`)."""
    compared = claim.compared(columns, rows)
    means, *resamples = _means({place: values for place, values in by_seed.items() if place in compared})
    finding = claim.test(means, columns, rows)
    if finding.answer == "open" or not resamples:
        return OurFinding(finding.answer, finding.shown, provisional=finding.answer != "open")
    answers = Counter(claim.test(values, columns, rows).answer for values in resamples)
    share = answers[finding.answer] / len(resamples)
    if share >= FIRM:
        return OurFinding(finding.answer, finding.shown)
    shown = f"{finding.answer} on the means ({finding.shown}), but in only {100 * share:.1f} % of resamples"
    return OurFinding("open", shown)


def _means(by_seed: BySeed) -> list[Values]:
    """The means over our seeds, then those over bootstrap resamples of the seeds.

    The methods of a table share a seed's partition and participants, so a seed is drawn for all places at
    once. One seed less than there are is drawn, so that the deviation of the resampled means is the standard
    error of a mean (J. N. K. Rao and C. F. J. Wu, 1988); n draws of n = 3 seeds would have 0.82 times of it.
    There are no resamples if a place has fewer than `SEEDS` seeds.
    """
    seeds = sorted({seed for values in by_seed.values() for seed in values})
    stream = random.Random(0)
    firm = min(map(len, by_seed.values()), default=0) >= SEEDS
    draws = [stream.choices(seeds, k=len(seeds) - 1) for _ in range(RESAMPLES)] if firm else []
    return [
        {
            place: statistics.fmean(there)
            for place, values in by_seed.items()
            if (there := [values[seed] for seed in draw if seed in values])
        }
        for draw in [seeds, *draws]
    ]


def answer(summary: Summary, counted: Tally, ranked: Iterable[Ranking], tested: Sequence[Tested]) -> str:
    """The outcome of the table in one or two sentences; empty if nothing was run.

    For example "Of 16 numbers, 3 are reproduced, 3 higher and 10 lower. The ranking of the methods agrees
    with Kendall's τ = 0.36 to 0.71; of 10 claims, 3 refuted, 7 open."
    """
    if not summary.rows:
        return ""
    if counted.judged:
        reproduced, higher, lower = (counted.count(name) for name in JUDGED)
        first = (
            f"Of {amount(counted.judged, 'number')}, {reproduced} {_are(reproduced)} reproduced, "
            f"{higher} higher and {lower} lower."
        )
    elif ratios := counted.count("ratio"):
        first = f"Numbers shown as ratios to the published ones: {ratios}."
    else:
        first = _leaders(summary)
    more = []
    if diverged := counted.count("diverged"):
        more.append(f"{diverged} of {counted.run} cells diverged")
    if taus := [ranking.tau for ranking in ranked if ranking.tau is not None]:
        shown = " to ".join(dict.fromkeys(f"{tau:.2f}" for tau in (min(taus), max(taus))))
        more.append(f"the ranking of the methods agrees with Kendall's τ = {shown}".replace("-", "−"))
    if tested:
        answers = Counter[Answer](one.ours.answer for one in tested)
        if len(answers) == 1:
            more.append(f"{_all(len(tested), 'claim')} {tested[0].ours.answer}")
        else:
            more.append(f"of {len(tested)} claims, {outcomes(answers)}")
    second = "; ".join(more)
    return f"{first} {second[:1].upper()}{second[1:]}{'.' if second else ''}".strip()


def coverage(summary: Summary, counted: Tally) -> str:
    """How much was run, from how many simulations, and how firm the verdicts are."""
    entries = summary.compared or summary.entries
    keys = {record.key for entry in entries for record in entry.simulated}
    simulated = amount(len(keys), "simulation")
    if counted.total:
        run, cells = counted.run, f"{counted.run} of {amount(counted.total, 'published cell')}"
    else:
        run = len({(entry.setting, entry.row) for entry in entries if entry.simulated})
        cells = amount(run, "cell")
    were = "was" if run == 1 else "were"
    return f"{cells} {were} run, from {simulated}. {firmness(counted)}".strip()


def firmness(counted: Tally) -> str:
    """How many verdicts are provisional, in a sentence; empty where none is.

    >>> firmness(Tally({"reproduced": 3, "lower": 1}, provisional=4))
    'All 4 verdicts are provisional: fewer than 3 seeds.'
    """
    if not counted.provisional:
        return ""
    share = f"{counted.provisional} of {counted.judged} verdicts {_are(counted.provisional)}"
    if counted.provisional == counted.judged:
        share = _all(counted.judged, "verdict").capitalize()
    return f"{share} provisional: fewer than {SEEDS} seeds."


def outcomes(answers: Mapping[Answer, int]) -> str:
    """The number of claims by their answer on our numbers.

    >>> outcomes({"confirmed": 2, "open": 1})
    '2 confirmed, 1 open'
    """
    return ", ".join(f"{answers[name]} {name}" for name in get_args(Answer) if answers.get(name))


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _all(number: int, noun: str) -> str:
    """The subject of a sentence about all of something, and its verb.

    >>> _all(1, "claim"), _all(2, "claim"), _all(3, "claim")
    ('the claim is', 'both claims are', 'all 3 claims are')
    """
    if number == 1:
        return f"the {noun} is"
    return f"{'both' if number == 2 else f'all {number}'} {noun}s are"


def _leaders(summary: Summary) -> str:
    """Which methods have the highest accuracy in how many columns; empty where nothing is ranked."""
    first = [line.label for line in summary.pinned for entry in line.entries.values() if entry.rank == 1]
    columns = {e.setting for line in summary.pinned for e in line.entries.values() if e.rank == 1}
    if len(columns) == 1:
        return f"Highest accuracy: {' and '.join(first)}."
    shares = [f"{label} in {count}" for label, count in Counter(first).most_common(3)]
    return f"Highest accuracy in {len(columns)} columns: {', '.join(shares)}." if shares else ""
