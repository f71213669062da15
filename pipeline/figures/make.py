"""Draws a figure: runs, numbers and picture.

`reports/figures/<name>.svg` is the picture, `.csv` its numbers, and `.json` what is known about its runs.
README.md shows all figures of the folder with the texts of their YAML files, and tests the papers' claims.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from textwrap import fill
from typing import Any

from pfl.core.errors import Conflict, InvalidInput, Missing
from pfl.core.files import check_writable
from pfl.core.text import amount
from pfl.data.partition import parse_spec
from pfl.engine.metrics import json_ready
from pfl.run.sources import running_code
from pipeline.figures.drawing import labels
from pipeline.figures.figure import Figure, FigureChanges, changed, load_figure, parts_of
from pipeline.figures.figure_runs import FigureRuns
from pipeline.figures.numbers import Numbers, read_numbers
from pipeline.figures.plots import PLOTS
from pipeline.report.notices import copies
from pipeline.report.plots import MUTED, as_svg
from pipeline.report.provenance import data_facts, data_source, machine, out_option
from pipeline.report.table_report import environment, write_files
from pipeline.spec.paths import figure_names
from pipeline.store.stage_files import stored
from pipeline.store.workspace import table_lock
from pipeline.svg import Canvas
from pipeline.sweep.check import check_runs
from pipeline.sweep.stopping import stoppable

FOLDER = Path("reports/figures")


def make(name: str, changes: FigureChanges, out: Path) -> list[str]:
    """Draw the figure ``name``, or all its parts, and rewrite the overview of the folder.

    Args:
        changes: changes to the runs that the figure pins.

    Returns:
        One line per figure: the file, and how many of the paper's claims are confirmed.

    Raises:
        InvalidInput: the figure, a change or the data is not valid, checked before the first run if possible;
            a reduced figure would replace one that is pinned or reduced differently; or trials have failed,
            reported after everything is written.
    """
    prepared = [_prepared(part, changes, out) for part in parts_of(name)]
    lines, failed = [], 0
    for part, figure, notes in prepared:
        content, retried = _make(part, figure, notes, out, changes.options)
        failed += retried
        answers = [claim["answer"] for claim in answered(content, out)]
        claims = amount(len(answers), "claim")
        lines.append(f"{out / part}.svg; {answers.count('confirmed')} of {claims} of the paper confirmed")
    write_figures(out)
    if failed:
        accepted = f"a result of each; {out} has the figure without them, and the same command retries them"
        raise Missing(f"figure {name}", f"{amount(failed, 'run')} failed", accepted)
    return lines


def answered(content: Mapping[str, Any], out: Path) -> list[dict[str, str]]:
    """The paper's claims about a drawn figure, tested on the numbers in its CSV file.

    Reduced runs, single seeds and figures that lack runs do not decide a claim: the answer is then open.

    Args:
        content: the content of the figure's JSON file; "missing" is absent from those of earlier versions.

    Raises:
        InvalidInput: the CSV file is missing, or has an invalid line.
    """
    figure = load_figure(content["name"])
    numbers = out / f"{content['name']}.csv"
    if not numbers.exists():
        raise Conflict(str(numbers), "missing", f"run `pfl figure {content['name']}` first")
    series = read_numbers(numbers).values
    seeds = ", ".join(content["provenance"].get("Seeds", [])).split(", ")
    reserve = "in these reduced runs" if content["changes"] else ""
    if not reserve and seeds != [""] and len(seeds) == 1:
        reserve = "with one seed"
    if not reserve and content.get("missing"):
        reserve = f"without {amount(len(content['missing']), 'run')} that failed or diverged"
    answers = []
    for claim in figure.claims:
        finding = claim.test(series, labels(figure))
        answer, shown = finding.answer, finding.shown
        if reserve and answer != "open":
            holds = "holds" if answer == "confirmed" else "does not hold"
            answer, shown = "open", f"{holds} {reserve}: {shown}"
        answers.append({"says": claim.says, "answer": answer, "shown": shown})
    return answers


def _prepared(name: str, changes: FigureChanges, out: Path) -> tuple[str, Figure, list[str]]:
    """The figure to draw, after all checks that need no data."""
    figure, notes = changed(load_figure(name), changes)
    plot = PLOTS[figure.draw]
    for warning in check_runs(name, figure, plot.simulates):
        print(f"pfl: warning: {name}: {warning}", file=sys.stderr)
    there = (stored(out / f"{name}.json") or {}).get("changes", notes)
    if notes and there != notes:
        shown = f"reduced differently ({'; '.join(there)})" if there else "as pinned"
        raise InvalidInput(
            "out", str(out), f"another folder (--out), because {name} is already there, {shown}"
        )
    check_writable(out / f"{name}.svg", "out")
    return name, figure, notes


def _make(name: str, figure: Figure, notes: list[str], out: Path, options: str) -> tuple[dict[str, Any], int]:
    """The content of the figure's JSON file, and how many runs failed."""
    plot = PLOTS[figure.draw]
    runs = FigureRuns(name, figure)
    with table_lock(name), stoppable(name):
        numbers = plot.measure(runs)
    if not numbers.points:
        raise InvalidInput("figure", name, f"runs with a result ({'; '.join(runs.failed)})")
    source = data_source({name: dataset.source for name, dataset in runs.datasets.items()})
    content = {
        "name": name,
        "changes": notes,
        "warnings": _warnings(runs, notes),
        "missing": runs.failed,
        "provenance": _provenance(runs, plot.simulates),
        "command": f"{source}pfl figure {name}{options}{out_option(out, FOLDER)}",
        # Runs that were measured while they trained are not in the ledger.
        "keys": [record.key for record in runs.used if not record.success.measurements],
    }
    texts = {
        "svg": _picture(figure, numbers, notes),
        "csv": numbers.csv(),
        "json": json.dumps(json_ready(content), indent=1) + "\n",
    }
    write_files(out, {f"{name}.{ending}": text for ending, text in texts.items()})
    return content, runs.retried


@as_svg
def _picture(figure: Figure, numbers: Numbers, notes: list[str]) -> Canvas:
    """The plot of a figure, with a line on what was reduced."""
    canvas = PLOTS[figure.draw].draw(figure, numbers)
    if notes:
        reduced = fill(f"Reduced: {'; '.join(notes)}", int(16 * canvas.get_figwidth()))
        canvas.supxlabel(reduced, fontsize=8, color=MUTED, x=0.01, ha="left")
    return canvas


def write_figures(out: Path = FOLDER) -> None:
    """Write the README.md of a folder of figures: each with its paper's claims, and a list of all figures."""
    contents = {path.stem: stored(path) for path in sorted(out.glob("*.json"))}
    drawn = [
        content | {"figure": load_figure(name), "claims": answered(content, out)}
        for name, content in contents.items()
        if content and content.get("name") == name
    ]
    there = {content["name"] for content in drawn}
    absent = [(name, load_figure(name)) for name in figure_names() if name not in there]
    page = environment().get_template("figures.md.j2").render(drawn=drawn, absent=absent)
    write_files(out, {"README.md": page})


def _warnings(runs: FigureRuns, notes: list[str]) -> list[str]:
    """Caveats, stated before the picture."""
    lines = copies({name: dataset.identity for name, dataset in runs.datasets.items()})
    if notes:
        lines.append(f"Reduced: {'; '.join(notes)}.")
    lines += [f"Without result: {cause}." for cause in runs.failed]
    if running_code().dirty or any(record.sources.dirty for record in runs.used):
        lines.append("Computed from uncommitted files.")
    return lines


def _provenance(runs: FigureRuns, simulated: bool) -> dict[str, list[str]]:
    """Facts by topic, each a short line."""
    code = running_code().name
    others = sorted({record.sources.name for record in runs.used} - {code})
    facts = {
        "Code": [code, *(f"runs of {other}" for other in others)],
        "Data": [line for name, dataset in runs.datasets.items() for line in data_facts(name, vars(dataset))],
        "Partitions": sorted({parse_spec(cell.partition)[0] for cell in runs.cells}),
    }
    if not simulated:
        return facts
    records = runs.used
    seconds = sum(record.measured.wall_seconds for record in records)
    return facts | {
        "Seeds": [", ".join(map(str, runs.figure.seeds))],
        "Versions": sorted(
            {f"python {v.python}, torch {v.torch}" for v in (record.success.versions for record in records)}
        ),
        "Hardware": sorted({machine(record.success.hardware) for record in records}),
        "Time": [f"{seconds:.0f} s in {amount(len(records), 'simulation')}"],
    }
