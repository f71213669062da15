"""The report of a table: README.md, a self-contained index.html, table.csv, table.tex and the plots.

It is written to ``results/<table>/report/``. `publish` copies the files that are kept in git to
``reports/tables/``.

Everything is read from files of earlier stages, and the same files give the same report, byte for byte.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from pfl.core.files import folder_lock, remove_others, write_text, writing
from pfl.core.text import count
from pipeline.columns import columns_of
from pipeline.formatting import gain, parameters, points, signed
from pipeline.report import (
    agreement,
    formats,
    leaderboard,
    leaderboard_plots,
    leads,
    moments,
    plots,
    search_fronts,
    search_plots,
    search_tables,
    sortable,
    tuning,
    verdict_plots,
)
from pipeline.report.amounts import partition_statistics, quantities, spread, value_range
from pipeline.report.notices import in_words, incomparable, not_tried, notices, repetitions, small_print
from pipeline.report.pairs import INTERVAL_RULE
from pipeline.report.provenance import commands, provenance
from pipeline.report.summary import Summary, summarise
from pipeline.report.verdicts import RANKING_RULE
from pipeline.spec.paths import REPORTS, partition_file, report_folder, results_folder, table_file
from pipeline.store.results import load_results

CAPTIONS = {
    "partial": "The mean is over the seeds with a result and is not ranked.",
    "side_by_side": "For each method, the published number (a bar; for accuracies in a band of ± 2 points) "
    "and ours (a marker, with its standard deviation).",
    "convergence": "Accuracy by round of the pinned configurations: mean over the seeds, and a band of one "
    "standard deviation. Of more than twelve rows, the twelve with the highest means are drawn.",
    "clients": "Accuracy of every client's own model on its own test set in the last round: one tick per "
    "client (mean over the seeds), or a line over their range if there are more than twelve rows; a bar from "
    "the first to the third quartile, and a dot at the median.",
    "partitions": "Samples by client and class: the area of a bubble is the number of samples.",
    "communication": "Accuracy against the total traffic of all clients, sent and received.",
    "ranks": leads.RANK_RULE,
    "search": "Best validation accuracy in the last round so far, against the training samples that the "
    "search has spent. Of more than twelve rows, the twelve with the highest means are drawn.",
    "tuning": "Accuracy (%) of the selected configurations on test data, the gain over the pinned ones, and "
    "the methods' ranks before and after the search; means over the seeds, ± a standard error.",
    "selected": "Selected on a validation part of each client's training samples, then run with all seeds on "
    "all of them. The gain is that of the best trial over the pinned configuration on validation data, with "
    "seeds that neither chose the trial nor are reported here; ± is its standard error. The trial is "
    "selected if a one-sided paired t-test at 5 % is significant.",
    "slices": "Validation accuracy by parameter: a marker per trial at the last round that it reached, the "
    "larger the later; the lines are the ends of the range.",
    "front": "Trials that ran to the last round, on validation data with one seed, and the Pareto front: no "
    "other trial is at least as good in all objectives and better in one. No test has been applied to these "
    "differences; the selected configuration is chosen by accuracy alone.",
}


def write_report(table: str) -> Path:
    """Write ``results/<table>/report/`` and its plots for `dvc plots`, and return the folder.

    Args:
        table: a table whose sweep has written ``results/<table>/results.json``.

    Raises:
        InvalidInput: the table has no readable results, or the folder cannot be written.
    """
    results = load_results(table)
    whole = summarise(results)
    summary = whole.without(whole.empty)
    fronts, front_plots = search_fronts.fronts(summary), search_fronts.draw(summary)
    drawn = plots.draw(summary) | search_plots.draw(summary) | front_plots
    if summary.compared:
        drawn["side_by_side"] = verdict_plots.side_by_side(summary)
    leading, ranks_over = leads.leads(summary), leads.mean_ranks(summary)
    board = leaderboard.board(summary) if summary.table.report == "leaderboard" else None
    if board:
        ranks_over = board.ranks
        drawn |= leaderboard_plots.draw(board)
    if ranks_over:
        drawn["ranks"] = leads.diagram(ranks_over)
    at_moments = [] if board else moments.blocks(summary)  # a leaderboard has two columns for them
    counted, tested = agreement.tally(whole), agreement.claims(whole)
    ranked = agreement.rankings(summary)
    partitions, ranks = _partition_plots(summary), tuning.tuned(summary)
    templates = environment()
    context: dict[str, Any] = {
        "summary": summary,
        "paper": summary.table.paper if summary.table.paper != summary.table.title else "",
        "not_tried": not_tried(whole),
        "reported": in_words(summary.table.evaluation),
        "repetitions": repetitions(summary),
        "notices": notices(whole),
        "counted": counted,
        "board": board,
        "board_rule": leaderboard.RULE,
        "leads": leading,
        "interval_rule": INTERVAL_RULE if leading else "",
        "ranks": ranks_over,
        "moments": at_moments,
        "moments_caption": moments.caption(summary),
        "incomparable": incomparable(summary),
        "answer": agreement.answer(whole, counted, ranked.values(), tested),
        "coverage": agreement.coverage(whole, counted),
        "small_print": small_print(summary),
        "ranking_rule": RANKING_RULE,
        "rankings": ranked,
        "claims": tested,
        "claim_rule": agreement.CLAIM_RULE,
        "findings": findings_of(table),
        "captions": CAPTIONS | (leaderboard_plots.CAPTIONS if board else {}),
        "plots": drawn,
        "partitions": partitions,
        "statistics": partition_statistics(summary),
        "columns": list(columns_of(summary.records).values()),
        "quantities": quantities(summary),
        "trials": search_tables.rows(whole) if any(cell.search for cell in results.cells) else "",
        "searched": (searched := search_tables.searches(summary)),
        "changed": [search for search in searched if not search.pins],
        "kept": search_tables.kept(searched),
        "fronts": [(search_fronts.headings(names), points) for names, points in fronts.items()],
        "front_plots": list(front_plots),
        "tuned": [method for method in ranks if method.changed or method.published],
        "tuned_claims": any(claim.tuned for claim in tested),
        "worth": tuning.overall(ranks),
        "provenance": provenance(summary),
        "commands": commands(summary),
        "troubles": [entry for entry in summary.entries if entry.cause],
        "metrics": formats.metrics(summary),
    }
    content = _html(templates.get_template("report.md.j2").render(context, page=True))
    files = {
        "README.md": templates.get_template("README.md.j2").render(context, page=False),
        "index.html": templates.get_template("index.html.j2").render(
            context, content=content, headings=re.findall('<h2 id="(.+)">(.+)</h2>', content)
        ),
        "table.csv": (cells := formats.comma_separated(whole)),
        "table.tex": formats.tex(summary, context["reported"]),
        **(_leaderboard_files(board, cells, templates) if board else {}),
        **({"moments.csv": moments.comma_separated(summary, at_moments)} if at_moments else {}),
        **({"metrics.csv": context["metrics"]} if context["metrics"] else {}),
        **({"claims.csv": formats.claims(tested)} if tested else {}),
        **({"search.csv": context["trials"]} if context["trials"] else {}),
        **{f"{name}.svg": svg for name, svg in drawn.items()},
        **{f"partition-{name}.svg": svg for name, svg in partitions.items()},
    }
    for folder, written in (
        (report_folder(table), files),
        (results_folder(table) / "plots", {f"{name}.svg": svg for name, svg in drawn.items()}),
    ):
        _replace_files(folder, written)
    return report_folder(table)


def _leaderboard_files(board: leaderboard.Board, cells: str, templates: Any) -> dict[str, str]:
    """A CSV file with a line per method, and a sortable page of these and of the table's ``cells``."""
    methods, summary = leaderboard.comma_separated(board), board.summary
    page = sortable.page(templates, summary.table.title, summary.id, methods, cells)
    return {"leaderboard.csv": methods, "leaderboard.html": page}


PUBLISHED = ("*.md", "*.csv", "*.svg")
"""Files of a report that are kept in git: README.md and the files that it links to."""
PAGE_ONLY = ("partition-*.svg", "clients.svg", "communication.svg", "slices.svg")
"""Pictures that are only on the HTML page, to keep the repository small."""


def publish(table: str) -> Path:
    """Copy the files of a table's report that are kept in git to ``reports/tables/<table>/``; return that
    folder.

    Raises:
        InvalidInput: the folder cannot be written.
    """
    source, folder = report_folder(table), REPORTS / table
    kept = {path for pattern in PUBLISHED for path in source.glob(pattern)}
    kept -= {path for pattern in PAGE_ONLY for path in source.glob(pattern)}
    _replace_files(folder, {path.name: path.read_text(encoding="utf-8") for path in sorted(kept)})
    return folder


def _replace_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write the only files of a folder; if one cannot be written, all others stay. Processes take turns."""
    with writing(folder), folder_lock(folder):
        write_files(folder, files)
        remove_others(folder, files)


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write texts, by file name, to a folder, which is created if needed; each file is written atomically.

    Raises:
        InvalidInput: a file cannot be written.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)  # even without files: DVC expects the folder of plots
    for name, text in files.items():
        write_text(folder / name, text)


# ---- filters of the templates --------------------------------------------------------------------------


def environment(package: str = "pipeline.report") -> Any:
    """The Jinja environment of a package's folder `templates`, with the filters."""
    import jinja2
    import markupsafe

    templates = jinja2.Environment(
        loader=jinja2.PackageLoader(package, "templates"),
        autoescape=jinja2.select_autoescape(["html.j2"], default=False),
        finalize=jinja2.pass_eval_context(_without_tags),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    templates.filters |= {
        "points": lambda value: "" if value is None else points(value),
        "signed": signed,
        "gain": gain,
        "count": count,
        "parameters": parameters,
        "plain": formats.plain,
        "cell": formats.cell,
        "literal": formats.literal,
        "quantity": lambda value: value_range([value]),
        "spread": spread,
        "markdown": lambda entry: markupsafe.Markup(formats.markdown(entry)),  # its tags are ours
        "inline": plots.inline,
        "html_line": _html_line,
        "ranking": formats.ranking,
    }
    return templates


def _without_tags(context: Any, value: Any) -> Any:
    """Finalise a template's expression: escape HTML and dollar signs unless it is marked as safe. In HTML
    pages, Jinja escapes it.
    """
    raw = isinstance(value, str) and not hasattr(value, "__html__") and not context.autoescape
    return formats.without_tags(value) if raw else value


def findings_of(table: str) -> str:
    """The hand-written findings next to the table's file; empty if there are none."""
    path = table_file(table).with_suffix(".md")
    return path.read_text(encoding="utf-8").strip() if path.exists() else ""


def _html(text: str) -> str:
    """Markdown of a template as HTML, with anchors at the headings of sections."""
    from markdown_it import MarkdownIt

    markdown = MarkdownIt("commonmark", {"html": True}).enable("table")
    tokens = markdown.parse(text.replace(formats.DOLLAR, "$"))
    for token, content in pairwise(tokens):
        if token.type == "heading_open" and token.tag == "h2":
            token.attrSet("id", "-".join(re.findall(r"\w+", content.content.lower())))
        elif token.type == "table_open":
            token.attrSet("class", "plain")
    return str(markdown.renderer.render(tokens, markdown.options, {}))


def _html_line(text: str) -> str:
    """A line of Markdown as HTML, without a paragraph around it; tags in it stay text."""
    from markdown_it import MarkdownIt

    return str(MarkdownIt("commonmark", {"html": False}).renderInline(text))


def _partition_plots(summary: Summary) -> dict[str, str]:
    """The partition stage's bubble plots, as SVG text."""
    files = {name: partition_file(summary.id, name).with_suffix(".svg") for name in summary.partitions}
    return {name: path.read_text(encoding="utf-8") for name, path in files.items() if path.exists()}
