"""The printed table in other formats."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pfl.core.text import distinct
from pipeline.columns import Column, columns_of
from pipeline.formatting import points, signed
from pipeline.report.agreement import Ranking, Tested
from pipeline.report.amounts import csv_of, decimals, quantity
from pipeline.report.moments import MOMENTS, at_moment
from pipeline.report.summary import Entry, Line, Summary
from pipeline.spec.claims import Finding

DAGGER = "†"
"""Marks a doubtful published number."""


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
    r"""A text as a cell of a Markdown table.

    >>> cell("P(A|B)")
    'P(A\\|B)'
    """
    return " ".join(str(text).split()).replace("|", "\\|")


def literal(text: Any) -> str:
    r"""A user's name as Markdown that shows it literally, also in a cell of a table.

    >>> literal("*ours* | w_i")
    '\\*ours\\* \\| w_i'
    """
    return cell(re.sub(r"[\\`*~\[\]]|(?<!\w)_|_(?!\w)|&(?=[\w#])", r"\\\g<0>", str(text)))


def aligned(grid: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table for a terminal.

    >>> aligned([("", "lr"), ("fedavg", "0.1")])
    ['        lr', 'fedavg  0.1']
    """
    widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in grid]


def grouped(pairs: Iterable[tuple[str, str]]) -> str:
    """Each text once, followed by all its parts in brackets.

    >>> grouped([("FedAvg", "IID"), ("FedPer", "IID"), ("FedAvg", "Dir(0.1)")])
    'FedAvg (IID, Dir(0.1)); FedPer (IID)'
    """
    groups: dict[str, dict[str, None]] = {}
    for text, part in pairs:
        groups.setdefault(text, {})[part] = None
    return "; ".join(f"{text} ({', '.join(parts)})" for text, parts in groups.items())


DOLLAR = "<span>$</span>"
"""A dollar sign that does not begin a formula on GitHub, where a backslash does not escape it."""


def without_tags(text: str) -> str:
    """Markdown with HTML tags and dollar signs escaped.

    >>> without_tags("α < 1, <b>bold</b>, $x$")
    'α < 1, &lt;b>bold&lt;/b>, <span>$</span>x<span>$</span>'
    """
    escaped = {"<": "&lt;", "$": DOLLAR, DOLLAR: DOLLAR}
    return re.sub(rf"{re.escape(DOLLAR)}|<(?=[A-Za-z/!?])|\$", lambda match: escaped[match[0]], text)


def plain(entry: Entry) -> str:
    """An entry's score without its rank, or else its status."""
    return points(entry.score.mean) + _spread(entry) if entry.score else entry.status


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
    """CSV text with a line per entry: accuracies in percent, and the report columns (`columns_of`).

    ``post_local`` and ``post_aggregation`` are the mean accuracies at these moments of the last evaluation,
    ``data`` identifies the entry's data set, and ``keys`` the ledger's records behind its numbers.
    """
    columns = columns_of(summary.records)
    return csv_of(
        _csv_row(summary, line, entry, columns) for line in summary.lines for entry in line.entries.values()
    )


def _csv_row(summary: Summary, line: Line, entry: Entry, columns: Mapping[str, Column]) -> dict[str, object]:
    first: dict[str, object] = {
        "table": summary.id,
        "setting": entry.setting,
        "row": line.row,
        "method": line.method,
        "configuration": line.configuration,
        "status": entry.status,
        "mean": decimals(entry.mean),
        "std": decimals(entry.score.std if entry.score else None),
        "seeds": entry.score.seeds if entry.score else 0,
        "published_mean": entry.published and entry.published.mean,
        "published_std": entry.published and entry.published.std,
        "metric": entry.published and entry.published.metric,
        "difference": decimals(entry.difference),
        "verdict": entry.verdict and entry.verdict.name,
        "provisional": entry.verdict and entry.verdict.provisional,
        "rank": entry.rank,
        **{moment: decimals(at_moment(entry, moment).mean) for moment in MOMENTS},
        "parameters": json.dumps(entry.parameters),
    }
    last = {
        "cause": entry.cause,
        "data": data(summary, entry) if entry.simulated else "",
        "keys": " ".join(entry.keys),
    }
    quantities = {name: decimals(quantity(entry, column)) for name, column in columns.items()}
    return {**first, **distinct("column_", quantities, {*first, *last}), **last}


def metrics(summary: Summary) -> str:
    """CSV text with a line per entry, metric other than accuracy, average and index; empty without metrics.

    ``place`` is empty for a scalar metric; otherwise, it has the indices from 0: the class of a recall, the
    label and the prediction of a confusion matrix. ``mean`` is over the seeds with a defined number.
    """
    rows = []
    for entry in summary.entries:
        of_runs = [record.metrics.client_metrics for record in entry.successes]
        for name in sorted({name for metrics in of_runs for name in metrics}):
            for average in ("pooled", "client_mean"):
                values = np.array([getattr(metrics[name], average) for metrics in of_runs if name in metrics])
                defined = np.isfinite(values)
                for place in np.ndindex(values.shape[1:]):
                    known = values[:, *place][defined[:, *place]]
                    rows.append(
                        {
                            "table": summary.id,
                            "setting": entry.setting,
                            "row": entry.row,
                            "configuration": entry.configuration,
                            "metric": name,
                            "average": average,
                            "place": " ".join(map(str, place)),
                            "mean": decimals(float(known.mean()) if len(known) else None),
                            "seeds": len(known),
                        }
                    )
    return csv_of(rows)


def data(summary: Summary, entry: Entry) -> str:
    """The data set of an entry that was run and its identity, as in "cifar10: original pixels".

    The records may call it by another name, if they are of another or of an edited table.
    """
    name = summary.table.datasets[entry.setting]
    return f"{name}: {summary.results.manifest['datasets'][name]['identity']}"


def claims(tested: Sequence[Tested]) -> str:
    """CSV text with a line per claim."""
    tuned = any(claim.tuned for claim in tested)
    return csv_of(_claim_row(claim, tuned) for claim in tested)


def _claim_row(tested: Tested, tuned: bool) -> dict[str, object]:
    row: dict[str, object] = {"claim": tested.claim.says, "place": tested.claim.place}
    for source in ("published", "ours", *(["tuned"] if tuned else [])):
        finding: Finding = getattr(tested, source)
        row |= {source: finding.answer, f"{source}_shown": finding.shown}
    held, run = tested.ours.held or ("", "")
    undecided = tested.ours.undecided or ""
    return {**row, "held": held, "run": run, "undecided": undecided, "few_seeds": tested.ours.seeds}


def _spread(entry: Entry, sign: str = "±") -> str:
    assert entry.score is not None
    std = "" if entry.score.std is None else f" {sign} {points(entry.score.std)}"
    return std + ("*" if entry.status == "partial" else "")


def _published(entry: Entry, sign: str, difference: Any) -> str:
    """The published number and, in brackets, our number minus it (divided by it if not an accuracy)."""
    assert entry.published is not None
    std = "" if entry.published.std is None else f" {sign} {points(entry.published.std)}"
    gap = "" if entry.difference is None else f" ({difference(entry.difference)})"
    if entry.ratio is not None and not entry.published.is_accuracy:
        gap = f" (×{points(entry.ratio)})"
    doubt = DAGGER if entry.published.doubt else ""
    return f"{points(entry.published.mean)}{std}{doubt}{gap}"


def _tex_line(line: Line) -> list[str]:
    rows = [_tex_row(_escaped(line.heading), map(_tex_entry, line.entries.values()))]
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
