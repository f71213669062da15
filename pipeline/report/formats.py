"""The printed table in other formats."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from pfl.core.text import csv_text, points, signed
from pipeline.columns import columns_of
from pipeline.report.agreement import Ranking, Tested
from pipeline.report.amounts import quantity
from pipeline.report.moments import MOMENTS, scored_at
from pipeline.report.summary import Entry, Line, Summary
from pipeline.store.scores import Score

DAGGER = "†"
"""Marks a doubtful published number."""

METRIC_HEADINGS = ("table", "setting", "row", "configuration", "metric", "average", "place", "mean", "seeds")

HEADINGS = (
    *("table", "setting", "row", "method", "configuration", "status", "mean", "std", "seeds"),
    *("published_mean", "published_std", "metric", "difference", "verdict", "provisional"),
    *("rank", "post_local", "post_aggregation", "parameters"),
)


def markdown(entry: Entry) -> str:
    """An entry in GitHub's Markdown: the best bold, the second underlined, the published number below."""
    if entry.score is None:
        text = f"*{entry.status}*"
    else:
        mean = points(entry.score.mean)
        text = {1: f"**{mean}**", 2: f"<ins>{mean}</ins>"}.get(entry.rank or 0, mean) + _spread(entry)
    if entry.published is None:
        return text
    symbol = f"{entry.verdict.symbol} " if entry.verdict and entry.verdict.symbol else ""
    return f"{text}<br><sub>{symbol}{_published(entry, '±', signed)}</sub>"


def cell(text: Any) -> str:
    r"""A text as one cell of a table in Markdown.

    >>> cell("P(A|B)")
    'P(A\\|B)'
    """
    return " ".join(str(text).split()).replace("|", "\\|")


def without_tags(text: str) -> str:
    """Markdown in which HTML is text.

    >>> without_tags("α < 1, <b>bold</b>")
    'α < 1, &lt;b>bold&lt;/b>'
    """
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", text)


def plain(entry: Entry) -> str:
    """A score without rank."""
    return points(entry.score.mean) + _spread(entry) if entry.score else entry.status


def spread(score: Score) -> str:
    """A mean and its standard deviation over the seeds.

    >>> spread(Score(82.4051, 1.5, 3)), spread(Score(82.4051, None, 1))
    ('82.41 ± 1.50', '82.41')
    """
    return points(score.mean) + ("" if score.std is None else f" ± {points(score.std)}")


def ranking(agreement: Ranking) -> str:
    """Kendall's tau, and the number of methods that it is computed over.

    >>> ranking(Ranking(0.6061, 12))
    '0.61 (12)'
    """
    return (
        "–" if agreement.tau is None else f"{signed(agreement.tau).removeprefix('+')} ({agreement.methods})"
    )


def tex(summary: Summary, reported: str) -> str:
    """A booktabs table; the selected configurations follow below a rule."""
    rows = [
        f"% {summary.table.title}: {reported}",
        "\\begin{tabular}{l" + "c" * len(summary.columns) + "}",
        "\\toprule",
        _tex_row("Method", map(_escaped, summary.columns.values())),
        "\\midrule",
        *(row for line in summary.pinned for row in _tex_line(line)),
    ]
    if summary.selected:
        rows += ["\\midrule", *(row for line in summary.selected for row in _tex_line(line))]
    return "\n".join([*rows, "\\bottomrule", "\\end{tabular}", ""])


def comma_separated(summary: Summary) -> str:
    """A line per entry: accuracies in percent, and the `columns_of` the records, by name.

    ``post_local`` and ``post_aggregation`` are the mean accuracies at these moments of the last evaluation,
    ``data`` is what the entry's data set is, and ``keys`` names the ledger rows behind its numbers.
    """
    rows, columns = [], columns_of(summary.rows)
    for line in summary.lines:
        for entry in line.entries.values():
            score, printed, verdict = entry.score, entry.published, entry.verdict
            rows.append(
                [
                    summary.id,
                    entry.setting,
                    line.row,
                    line.method,
                    line.configuration,
                    entry.status,
                    *([f"{score.mean:.4f}", _decimals(score.std), score.seeds] if score else ["", "", 0]),
                    *([printed.mean, printed.std, printed.metric] if printed else ["", "", ""]),
                    _decimals(entry.difference),
                    *([verdict.name, verdict.provisional] if verdict else ["", ""]),
                    entry.rank,
                    *(_decimals(at.mean if at else None) for at in map(partial(scored_at, entry), MOMENTS)),
                    json.dumps(entry.parameters),
                    *(_decimals(quantity(entry, column)) for column in columns.values()),
                    entry.cause,
                    data(summary, entry) if entry.simulated else "",
                    " ".join(record.key for record in entry.simulated),
                ]
            )
    return csv_text((*HEADINGS, *columns, "cause", "data", "keys"), rows)


def metrics(summary: Summary) -> str:
    """A line per entry, metric beside accuracy, average and place in its array; empty without such metrics.

    ``place`` is empty for a single number, else the indices from 0: the class of a recall, the label and the
    prediction of a confusion matrix. ``mean`` is over the seeds for which the number is defined.
    """
    rows = []
    for entry in summary.entries:
        of_runs = [record.metrics.client_metrics for record in entry.rows]
        for name in sorted({name for metrics in of_runs for name in metrics}):
            for average in ("pooled", "client_mean"):
                values = np.array([getattr(metrics[name], average) for metrics in of_runs if name in metrics])
                defined = np.isfinite(values)
                for place in np.ndindex(values.shape[1:]):
                    known = values[:, *place][defined[:, *place]]
                    mean = _decimals(float(known.mean()) if len(known) else None)
                    where = (summary.id, entry.setting, entry.row, entry.configuration)
                    rows.append([*where, name, average, " ".join(map(str, place)), mean, len(known)])
    return csv_text(METRIC_HEADINGS, rows) if rows else ""


def data(summary: Summary, entry: Entry) -> str:
    """The data set of an entry that was run and its identity, as in "cifar10: original pixels"."""
    name = entry.simulated[0].dataset
    return f"{name}: {summary.results.manifest['datasets'][name]['identity']}"


def claims(tested: Sequence[Tested]) -> str:
    """A line per claim."""
    sources = (
        ("published", "ours", "tuned") if any(claim.tuned for claim in tested) else ("published", "ours")
    )
    columns = [name for source in sources for name in (source, f"{source}_shown")]
    rows = []
    for claim in tested:
        findings = [finding for finding in (claim.published, claim.ours, claim.tuned) if finding]
        answers = [text for finding in findings for text in (finding.answer, finding.shown)]
        held, run = claim.ours.held or ("", "")
        rows.append((claim.claim.says, claim.claim.place, *answers, held, run, claim.ours.seeds))
    return csv_text(("claim", "place", *columns, "held", "run", "few_seeds"), rows)


def _decimals(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _spread(entry: Entry, sign: str = "±") -> str:
    assert entry.score is not None
    std = "" if entry.score.std is None else f" {sign} {points(entry.score.std)}"
    return std + ("*" if entry.status == "partial" else "")


def _published(entry: Entry, sign: str, difference: Any) -> str:
    """The published number and, in brackets, our number minus it (divided by it if it is no accuracy)."""
    assert entry.published is not None
    std = "" if entry.published.std is None else f" {sign} {points(entry.published.std)}"
    gap = "" if entry.difference is None else f" ({difference(entry.difference)})"
    if entry.ratio is not None and not entry.published.is_accuracy:
        gap = f" (×{points(entry.ratio)})"
    doubt = DAGGER if entry.published.doubt else ""
    return f"{points(entry.published.mean)}{std}{doubt}{gap}"


def _tex_line(line: Line) -> list[str]:
    label = _escaped(line.label) + (", selected" if line.configuration == "selected" else "")
    rows = [_tex_row(label, map(_tex_entry, line.entries.values()))]
    if any(entry.published for entry in line.entries.values()):
        published = (
            _published(entry, "$\\pm$", lambda gap: f"${gap:+.2f}$") if entry.published else ""
            for entry in line.entries.values()
        )
        rows.append(_tex_row("\\quad published", published))
    return rows


def _tex_row(label: str, entries: Iterable[str]) -> str:
    return " & ".join([label, *entries]).replace("−", "$-$") + " \\\\"


def _tex_entry(entry: Entry) -> str:
    if entry.score is None:
        return f"\\emph{{{entry.status}}}"
    mean = points(entry.score.mean)
    mean = {1: f"\\textbf{{{mean}}}", 2: f"\\underline{{{mean}}}"}.get(entry.rank or 0, mean)
    return mean + _spread(entry, "$\\pm$")


def _escaped(text: str) -> str:
    named = {"\\": "backslash", "^": "asciicircum", "~": "asciitilde"}
    special = {ord(character): f"\\{character}" for character in "&%$#_{}"}
    special |= {ord(character): f"\\text{name}{{}}" for character, name in named.items()}
    return text.translate(special)
