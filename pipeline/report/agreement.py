"""Agreement with a paper's table: counts of verdicts, comparison of rankings, tests of claims."""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from typing import get_args

from pfl.core.text import amount
from pipeline.report.summary import Entry, Line, Summary
from pipeline.report.verdicts import JUDGED, NAMES, POINTS, SEEDS, Name, Verdict, kendall
from pipeline.spec.claims import Answer, Finding
from pipeline.spec.published import Published
from pipeline.spec.table_claims import Labels, Place, TableClaim, Values

RESAMPLES = 1000
"""Resamples of the seeds are enumerated up to this number; if there are more, this many are sampled."""
FIRM = 0.95
"""Share of the resamples that must agree with a claim's answer."""

CLAIM_RULE = (
    "Our answers are those of the unrounded means over the seeds. A margin may fall short of the paper's by "
    f"{POINTS:g} points, like the numbers behind it, but must have the same sign. With {SEEDS} seeds or "
    f"more, an answer requires that at least {FIRM:.0%} of all bootstrap resamples of the seeds agree, and "
    "is open otherwise; their deviations are widened as Student's t requires for so few seeds. With fewer, "
    "the answer states the number of seeds. If a claim is about columns that have not run, the answer states "
    "in how many of the others it holds, and in how many it is undecided; two columns that it compares count "
    "as one. It is open while a number that it compares is missing or lacks a seed that diverged."
).replace("%", " %")


@dataclass(frozen=True)
class CellOutcome:
    """The verdict on a printed cell.

    Attributes:
        published: the cell.
        ours: our number; None if it has not run.
        keys: ledger keys of the simulations behind our number.
        whole: whether our number is over all clients.
    """

    published: Published
    verdict: Verdict
    ours: float | None = None
    keys: frozenset[str] = frozenset()
    whole: bool = True


def one_per_simulation(outcomes: Iterable[CellOutcome]) -> list[CellOutcome]:
    """All cells but those that are reproduced, higher or lower and share a simulation with another such cell.
    Of these, the first one over all clients is included, or else the first one.
    """
    included = []
    simulations: set[str] = set()
    for outcome in sorted(outcomes, key=lambda outcome: not outcome.whole):
        if outcome.verdict.name in JUDGED:
            if outcome.keys & simulations:
                continue
            simulations |= outcome.keys
        included.append(outcome)
    return included


@dataclass(frozen=True)
class Tally:
    """The number of cells per verdict; a simulation counts once.

    Attributes:
        counts: cells by verdict, in the order of `NAMES`, without verdicts that no cell has.
        provisional: number of provisional cells among those reproduced, higher or lower.
        shared: number of cells not counted because another has the same simulations (`one_per_simulation`).
    """

    counts: dict[Name, int]
    provisional: int
    shared: int = 0

    @classmethod
    def of(cls, outcomes: Iterable[CellOutcome]) -> Tally:
        listed = list(outcomes)
        counted = one_per_simulation(listed)
        counts = Counter(outcome.verdict.name for outcome in counted)
        provisional = sum(outcome.verdict.provisional for outcome in counted)
        in_order: dict[Name, int] = {name: counts[name] for name in NAMES if counts[name]}
        return cls(in_order, provisional, len(listed) - len(counted))

    def count(self, name: Name) -> int:
        return self.counts.get(name, 0)

    @property
    def total(self) -> int:
        return sum(self.counts.values()) + self.shared

    @property
    def judged(self) -> int:
        return sum(map(self.count, JUDGED))

    @property
    def run(self) -> int:
        """Number of cells whose simulations ended, converged or not."""
        return self.total - self.count("not run") - self.count("not selected") - self.count("failed")

    @property
    def uncounted(self) -> str:
        """Describes the cells with a number of ours but no counted verdict; empty if there are none.

        >>> Tally({"reproduced": 2, "not comparable": 1}, provisional=0, shared=3).uncounted
        '1 cannot be compared, 3 share a simulation with a number that is counted'
        """
        parts = []
        if incomparable := self.count("not comparable"):
            parts.append(f"{incomparable} cannot be compared")
        if self.shared:
            verb = "shares" if self.shared == 1 else "share"
            parts.append(f"{self.shared} {verb} a simulation with a number that is counted")
        return ", ".join(parts)


@dataclass(frozen=True)
class Ranking:
    """Kendall's tau between our ranking of a column's methods and the paper's; None if there are too few."""

    tau: float | None
    methods: int


@dataclass(frozen=True)
class Tested:
    """A claim of the paper, tested on its own numbers, on ours, and on ours after a search, if any."""

    claim: TableClaim
    published: Finding
    ours: Finding
    tuned: Finding | None


def tally(summary: Summary) -> Tally:
    """The verdicts on all cells that have a printed number."""
    return Tally.of(_outcomes(summary.compared))


def _outcomes(entries: Iterable[Entry]) -> list[CellOutcome]:
    return [
        CellOutcome(
            entry.published,
            entry.verdict,
            entry.mean,
            frozenset(entry.keys),
            entry.evaluation.clients is None,
        )
        for entry in entries
        if entry.published and entry.verdict
    ]


def rankings(summary: Summary) -> dict[str, Ranking]:
    """The rankings by setting, for settings with a different printed cell for each row.

    Rows that share a simulation count as one, because they are a method's clients or repeat its number.
    """
    rankings = {}
    for setting in summary.columns:
        column = [
            entry
            for entry in summary.compared
            if entry.setting == setting and entry.verdict != Verdict("not comparable")
        ]
        if column and len({entry.published for entry in column}) == len(column):
            pairs = [
                (outcome.ours, outcome.published.mean)
                for outcome in one_per_simulation(_outcomes(column))
                if outcome.ours is not None
            ]
            ours, theirs = zip(*pairs, strict=True) if pairs else ((), ())
            rankings[setting] = Ranking(kendall(ours, theirs), len(pairs))
    return rankings


def claims(summary: Summary) -> list[Tested]:
    """Each claim that the table's file declares, tested on the printed numbers and on ours."""
    printed = {(e.setting, e.row): e.published.mean for e in summary.compared if e.published}
    columns, rows = summary.settings, summary.labels
    pinned, tuned = (_by_seed(lines, columns) for lines in (summary.pinned, summary.tuned_lines))
    return [
        Tested(
            claim,
            claim.test(printed, columns, rows),
            _ours(claim, pinned, columns, rows),
            _ours(claim, tuned, columns, rows) if summary.selected else None,
        )
        for claim in summary.table.claims
    ]


BySeed = Mapping[Place, Mapping[int, float]]
"""Our numbers by seed, for each cell that has a score and no diverged seed."""


def _by_seed(lines: Iterable[Line], settings: Collection[str]) -> BySeed:
    entries = [entry for line in lines for name, entry in line.entries.items() if name in settings]
    return {
        (entry.setting, entry.row): entry.by_seed
        for entry in entries
        if entry.score and not entry.diverged  # the mean of the other seeds would favour the row
    }


def _ours(claim: TableClaim, by_seed: BySeed, columns: Labels, rows: Labels) -> Finding:
    """Outcome of a claim on our numbers: as a whole or, if columns are missing, in each that has run."""
    parts = claim.parts(list(columns))
    run = [part for part in parts if part.compared(columns, rows) <= by_seed.keys()]
    if not run or len(run) == len(parts):
        return _whole(claim, by_seed, columns, rows)
    findings = [_whole(part, by_seed, columns, rows) for part in run]
    held, undecided = (sum(finding.answer == name for finding in findings) for name in ("confirmed", "open"))
    seeds = min((finding.seeds for finding in findings if finding.seeds), default=None)
    against = [finding for finding in findings if finding.answer != "confirmed"]
    shown = "; ".join(finding.shown for finding in (against or findings) if finding.shown)
    shown = shown.replace("not in 1 of 1 column: ", "not ").replace("not in 1 of 1 pair: ", "")
    return Finding("in part", shown, (held, len(run)), seeds, undecided)


def _whole(claim: TableClaim, by_seed: BySeed, columns: Labels, rows: Labels) -> Finding:
    """Outcome of a claim on the means over the seeds, if nearly all resamples agree (`FIRM`)."""
    compared = claim.compared(columns, rows)
    there = {place: values for place, values in by_seed.items() if place in compared}
    seeds = sorted({seed for values in there.values() for seed in values})
    means = _means(there, dict.fromkeys(seeds, 1))
    finding = claim.test(means, columns, rows, POINTS)
    fewest = min(map(len, there.values()), default=0)
    if finding.answer == "open":
        return finding
    if fewest < SEEDS:
        return replace(finding, seeds=fewest)
    agree = total = 0
    wider = widening(fewest)
    for draw, weight in resamples(seeds):
        resampled = {
            place: means[place] + wider * (mean - means[place]) for place, mean in _means(there, draw).items()
        }
        answer = claim.test(resampled, columns, rows, POINTS).answer
        if answer != "open":  # a draw may have no seed of some cell
            total += weight
            agree += weight * (answer == finding.answer)
    if agree >= FIRM * total:
        return finding
    share = 100 * agree / total
    shown = f"{finding.answer} on the means ({finding.shown}), but in only {share:.1f} % of resamples"
    return Finding("open", shown)


def resamples(seeds: Sequence[int]) -> Iterator[tuple[Mapping[int, int], int]]:
    """Bootstrap resamples of the seeds: the counts of the seeds, and the number of orders with these counts.

    The methods of a table share a seed's partition and participants, so a seed is drawn for all cells at
    once. Of n seeds, n - 1 are drawn, so that the deviation of the resampled means is the standard error of
    a mean (J. N. K. Rao and C. F. J. Wu, 1988); with n draws, it would be 0.82 times that for n = 3.
    """
    size = len(seeds) - 1
    if math.comb(len(seeds) + size - 1, size) > RESAMPLES:
        stream = random.Random(0)
        for _ in range(RESAMPLES):
            yield Counter(stream.choices(seeds, k=size)), 1
        return
    for chosen in combinations_with_replacement(seeds, size):
        draw = Counter(chosen)
        yield draw, math.factorial(size) // math.prod(map(math.factorial, draw.values()))


def widening(seeds: int) -> float:
    """The factor for deviations of resampled means: the quantile of Student's t over that of the normal
    distribution, at the level `FIRM`. Without it, two equal methods would get an answer in 25 % of all cases
    with three seeds and in 18 % with five, not in the 10 % of a two-sided `FIRM`.
    """
    from scipy.special import ndtri, stdtrit

    return float(stdtrit(seeds - 1, FIRM) / ndtri(FIRM))


def _means(by_seed: BySeed, draw: Mapping[int, int]) -> Values:
    """The mean of each cell over those seeds of a resample that it has."""
    means = {}
    for place, values in by_seed.items():
        if there := [seed for seed in draw if seed in values]:
            means[place] = statistics.fmean([values[seed] for seed in there], [draw[seed] for seed in there])
    return means


def answer(summary: Summary, counted: Tally, ranked: Iterable[Ranking], tested: Sequence[Tested]) -> str:
    """The outcome of the table in one or two sentences; empty if nothing was run.

    For example "Of 16 numbers, 3 are reproduced, 3 higher and 10 lower. The ranking of the methods agrees
    with Kendall's τ = 0.36 to 0.71; of 10 claims, 3 refuted, 7 open."
    """
    if not summary.records:
        return ""
    if counted.judged:
        reproduced, higher, lower = (counted.count(name) for name in JUDGED)
        first = (
            f"Of {amount(counted.judged, 'number')}, {reproduced} {_are(reproduced)} reproduced, "
            f"{higher} higher and {lower} lower."
        )
        if counted.uncounted:
            first += f" Of the others that have run, {counted.uncounted}."
    elif ratios := counted.count("ratio"):
        first = f"Numbers shown as ratios to the published ones: {ratios}."
    else:
        first = ""
    more = []
    if diverged := counted.count("diverged"):
        more.append(f"{diverged} of {counted.run} cells diverged")
    if taus := [ranking.tau for ranking in ranked if ranking.tau is not None]:
        shown = " to ".join(dict.fromkeys(f"{tau:.2f}" for tau in (min(taus), max(taus))))
        more.append(f"the ranking of the methods agrees with Kendall's τ = {shown}".replace("-", "−"))
    if tested:
        more.append(f"of {amount(len(tested), 'claim')}, {outcomes(claim.ours for claim in tested)}")
    second = "; ".join(more)
    return f"{first} {second[:1].upper()}{second[1:]}{'.' if second else ''}".strip()


def coverage(summary: Summary, counted: Tally) -> str:
    """A sentence on the cells run, their simulations, and the firmness of the verdicts."""
    entries = summary.compared or summary.entries
    simulated = amount(len({key for entry in entries for key in entry.keys}), "simulation")
    if counted.total:
        run, cells = counted.run, f"{counted.run} of {amount(counted.total, 'published cell')}"
    else:
        run = len({(entry.setting, entry.row) for entry in entries if entry.simulated})
        cells = amount(run, "cell")
    were = "was" if run == 1 else "were"
    return f"{cells} {were} run, from {simulated}. {firmness(counted)}".strip()


def firmness(counted: Tally) -> str:
    """A sentence on how many verdicts are provisional; empty if none is.

    >>> firmness(Tally({"reproduced": 3, "lower": 1}, provisional=4))
    '4 of 4 verdicts are provisional: fewer than 3 seeds.'
    """
    if not counted.provisional:
        return ""
    share = f"{counted.provisional} of {amount(counted.judged, 'verdict')} {_are(counted.provisional)}"
    return f"{share} provisional: fewer than {SEEDS} seeds."


def outcomes(findings: Iterable[Finding]) -> str:
    """The number of claims by their answer on our numbers, in the order of `Answer`.

    >>> outcomes([Finding("refuted", "", seeds=1), Finding("in part", "", (1, 2))])
    '1 refuted (one seed), 1 in part (in 1 of 2 columns run)'
    """
    by_answer: dict[Answer, list[Finding]] = {}
    for finding in findings:
        by_answer.setdefault(finding.answer, []).append(finding)
    return ", ".join(_outcome(name, by_answer[name]) for name in get_args(Answer) if name in by_answer)


def _outcome(name: Answer, findings: Sequence[Finding]) -> str:
    notes = []
    if parts := [finding.held for finding in findings if finding.held]:
        held, run = map(sum, zip(*parts, strict=True))
        notes.append(f"in {held} of {amount(run, 'column')} run")
        if undecided := sum(finding.undecided for finding in findings):
            notes.append(f"undecided in {undecided}")
    if few := [finding.seeds for finding in findings if finding.seeds]:
        seeds = "one seed" if set(few) == {1} else f"fewer than {SEEDS} seeds"
        notes.append(seeds if len(few) == len(findings) else f"{len(few)} of them with {seeds}")
    return f"{len(findings)} {name}" + (f" ({', '.join(notes)})" if notes else "")


def _are(number: int) -> str:
    return "is" if number == 1 else "are"
