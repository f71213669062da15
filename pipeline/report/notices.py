"""Notices before a table's numbers: what is reported, on which data, and what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from pfl.core.text import amount
from pipeline.report.formats import DAGGER, grouped
from pipeline.report.summary import Summary
from pipeline.report.verdicts import JUDGED, Status, judge, rule
from pipeline.spec.axes import AVERAGE
from pipeline.spec.fingerprints import is_current
from pipeline.spec.reported import Evaluation
from pipeline.store.results import failures

ORIGINALS = ("original pixels", "read from the official files", "own data")
"""Values of `pfl.data.dataset.Dataset.identity` for original data, not a copy."""

NAMED = 4
"""If there are more rows, only the first and the last are named."""

METRICS = {
    "pooled": "accuracy (%) over the test samples of all clients",
    "client_mean": "accuracy (%) of a client's personal model, averaged over the clients",
    "client_mean_weighted": (
        "accuracy (%) of a client's personal model, averaged over the clients by training samples"
    ),
}
OTHERS = {
    "seconds_per_sample": "time of local training (10⁻⁴ s per training sample)",
    "similarity": "similarity of two clients, after the last round",
}
MOMENTS = {
    "headline": "after aggregation, local training or adaptation, as each method reports it",
    "post_aggregation": "after aggregation",
    "post_local": "after local training",
    "adapted": "after each client's adaptation",
}
PRECISIONS = {
    "tf32": "tf32 (networks' products of float32 numbers rounded to TensorFloat-32)",
    "bf16": "bf16 (networks under bfloat16 autocast; weights, statistics, head and losses in float32)",
}
WHICH = {"last": "in the last round", "best": "in its best round"}


def in_words(evaluation: Evaluation) -> str:
    """What is reported, in words."""
    if not evaluation.is_accuracy:
        return OTHERS[evaluation.metric]
    return f"{METRICS[evaluation.metric]}, {WHICH[evaluation.which]}, {MOMENTS[evaluation.moment]}"


def repetitions(summary: Summary) -> str:
    """The number of seeds, by columns if they differ, as they can in results from the ledger."""
    seeds = {cell.setting: len(cell.pinned.records) for cell in summary.results.cells}
    numbers = sorted(set(seeds.values()), reverse=True) or [len(summary.table.seeds)]
    texts = ["one seed" if n == 1 else f"mean ± standard deviation over {n} seeds" for n in numbers]
    if len(numbers) > 1:
        columns = ["; ".join(summary.columns[name] for name, of in seeds.items() if of == n) for n in numbers]
        texts = [f"{text} ({named})" for text, named in zip(texts, columns, strict=True)]
    return " or ".join(texts)


def small_print(summary: Summary) -> str:
    """Explains the text below a number and the rule of the verdicts; empty without published numbers."""
    published = {entry.published.is_accuracy for entry in summary.compared if entry.published}
    if not published or not summary.table.published:
        return ""
    below = "Below a number of a pinned configuration"
    if published == {False}:
        return f"{below}: the published number, and ours divided by it (×)."
    explained = (
        f"{below}: the verdict (● reproduced, ▲ higher, ▼ lower; ○ △ ▽ the same, provisional), the published "
        f"number, and ours minus it. {rule(summary.table.published.seeds)}"
    )
    return " ".join(filter(None, (explained, assumption(summary), doubts(summary))))


def assumption(summary: Summary) -> str:
    """States that the paper's number of seeds is assumed, and which verdicts depend on it; else empty."""
    if not (summary.table.published and summary.table.published.assumed):
        return ""
    hanging = [
        f"{summary.labels[entry.row]} in {summary.columns[entry.setting]}"
        for entry in summary.compared
        if entry.published
        and entry.verdict
        and entry.verdict.name in JUDGED
        and judge(entry.score, entry.status, entry.published, None).name != entry.verdict.name
    ]
    rest = "; ".join(hanging)
    without = f"without it, {amount(len(hanging), 'verdict')} would change: {rest}"
    return f"That number of seeds is our assumption; {without if hanging else 'no verdict depends on it'}."


def doubts(summary: Summary) -> str:
    """Lists the published numbers that are marked as doubtful, with the reasons; empty if there are none."""
    listed = grouped(
        (entry.published.doubt, summary.labels[entry.row])
        for entry in summary.compared
        if entry.published and entry.published.doubt
    )
    return f"{DAGGER} Doubtful published numbers: {listed}." if listed else ""


def reported_otherwise(summary: Summary) -> list[str]:
    """A line for each way in which columns or rows report something other than the table.

    Groups of clients are omitted, because their labels already name the group.
    """
    table = summary.table
    labelled = [(table.column_labels[name], setting.evaluation) for name, setting in table.settings.items()]
    labelled += [(table.row_labels[row.id], row.evaluation) for row in table.methods]
    by_wording: dict[str, list[str]] = {}
    for label, reading in labelled:
        words = in_words(table.evaluation.override(reading))
        if words != in_words(table.evaluation):
            by_wording.setdefault(words, []).append(label)
    return [f"{'; '.join(labels)}: {words}." for words, labels in by_wording.items()]


def precisions(summary: Summary) -> list[str]:
    """A line for each precision other than fp32 in which entries were computed."""
    by_precision: dict[str, list[tuple[str, str]]] = {}
    for entry in summary.entries:
        for precision in {record.config.get("precision", "fp32") for record in entry.successes} - {"fp32"}:
            place = summary.labels[entry.row], summary.columns[entry.setting]
            by_precision.setdefault(precision, []).append(place)
    return [
        f"Computed in {PRECISIONS[precision]}: {grouped(places)}."
        for precision, places in sorted(by_precision.items())
    ]


def stopped(summary: Summary) -> list[str]:
    """A line that names the rows whose seeds stopped early, and after which rounds."""
    stops = []
    for entry in summary.entries:
        last = sorted({record.metrics.stopped_at for record in entry.successes if record.metrics.stopped_at})
        if last:
            rounds = f"after {', '.join(map(str, last))} of {entry.successes[0].config['rounds']} rounds"
            stops.append((summary.labels[entry.row], f"{summary.columns[entry.setting]} {rounds}"))
    where = "at a plateau of the accuracy on training samples that were held out for this decision"
    return [f"Some or all seeds stopped early, {where}: {grouped(stops)}."] if stops else []


def outdated(summary: Summary) -> list[str]:
    """A line that names the rows whose numbers differ from those of the current code."""
    rows = {
        summary.labels[entry.row]: None
        for entry in summary.entries
        for record in entry.simulated
        if not is_current(record.config, record.dataset, record.behaviour)
    }
    if not rows:
        return []
    return [f"Outdated, computed by earlier code; run again: {', '.join(rows)}."]


def notices(summary: Summary) -> list[str]:
    """What a reader must know before the first number."""
    lines = [summary.table.note] if summary.table.note else []
    lines += reported_otherwise(summary)
    lines += precisions(summary)
    lines += stopped(summary)
    lines += outdated(summary)
    datasets = summary.results.manifest["datasets"]
    lines += copies({name: dataset["identity"] for name, dataset in datasets.items()})
    scratch = {record.config["model"] for record in summary.records if record.metrics.pretrained is False}
    lines += [
        f"{model} started from scratch, because no pretrained weights were available."
        for model in sorted(scratch)
    ]
    if summary.results.sources.dirty or any(record.sources.dirty for record in summary.records):
        lines.append("Some numbers were computed from uncommitted files.")
    # Failed and missing entries with a printed number have verdicts, which the report's first line counts.
    counts = Counter(e.status for e in summary.entries if not e.published or e.status == "partial")
    troubles: tuple[Status, ...] = ("diverged", "failed", "partial", "not run", "not selected")
    missing = [f"{counts[status]} {status}" for status in troubles if counts[status]]
    if missing:
        entries = "1 entry" if len(summary.entries) == 1 else f"{len(summary.entries)} entries"
        lines.append(f"Of {entries}: {', '.join(missing)}.")
    if failed := failures(summary.results):
        lines.append(f"{failed}.")
    return lines


def copies(identities: Mapping[str, str]) -> list[str]:
    """A line for each data set, by name, whose pixels differ, or may differ, from the original ones."""
    return [f"{name} is {identity}." for name, identity in identities.items() if identity not in ORIGINALS]


def not_tried(summary: Summary) -> list[str]:
    """The columns in which nothing has run, with one line per reason."""
    absent = summary.results.manifest["absent"]
    by_reason: dict[str, list[str]] = {}
    for name, label in summary.empty.items():
        if name == AVERAGE:
            why = "Depends on missing columns"
        elif name not in (summary.results.subset.settings or summary.columns):
            why = "Not selected"
        elif summary.table.datasets[name] in absent:
            why = "Data not available"
        else:
            why = "Not run yet"
        by_reason.setdefault(why, []).append(label)
    return [f"{why}: {'; '.join(labels)}." for why, labels in by_reason.items()]


def incomparable(summary: Summary) -> list[str]:
    """The rows whose printed numbers measure something other than ours, with one line per reason."""
    groups = summary.table.published.incomparable if summary.table.published else []
    lines = []
    for group in groups:
        labels = [summary.labels[row] for row in group.rows]
        shown = "; ".join(labels)
        if len(labels) > NAMED:
            shown = f"{len(labels)} rows, {labels[0]} to {labels[-1]}"
        lines.append(f"Not comparable: {shown}. {group.why}")
    return lines
