"""The commands that the pipeline adds to ``pfl``."""

from __future__ import annotations

import json
import shlex
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pfl.core.errors import InvalidInput, Missing
from pfl.core.text import amount
from pipeline.cli import exports
from pipeline.cli import stage as stages
from pipeline.cli.project import in_project, in_root
from pipeline.cli.stage import TableName, matching_tables, some_tables

if TYPE_CHECKING:
    from pipeline.spec.table import Table
    from pipeline.store.verification import Verification


def add_commands(app: typer.Typer) -> None:
    """Called by ``pfl`` with its application, through the entry-point group ``pfl.commands``."""
    app.command()(init)
    for command in (check, tables, trials, track, report, compare, reproduce, overview, figures, figure):
        app.command()(in_project(command))
    ledger = typer.Typer(help="Inspect, extend and verify the ledger of finished runs.", no_args_is_help=True)
    ledger.command("import")(in_project(import_))
    ledger.command("why")(in_project(why_))
    ledger.command("verify")(in_project(verify_))
    app.add_typer(ledger, name="ledger")
    search = typer.Typer(help="Export or import configurations of searches.", no_args_is_help=True)
    search.command("export")(in_project(export_))
    search.command("import")(in_project(import_trials_))
    app.add_typer(search, name="search")
    leaderboard = typer.Typer(help="Rank a method on a leaderboard.", no_args_is_help=True)
    leaderboard.command("add")(in_project(add_to_leaderboard))
    app.add_typer(leaderboard, name="leaderboard")
    export = typer.Typer(help="Write results in standard formats.", no_args_is_help=True)
    for exported in (exports.rocrate, exports.croissant, exports.claims):
        export.command()(in_project(exported))
    app.add_typer(export, name="export")
    stage = typer.Typer(help="The stages of dvc.yaml, one at a time.", no_args_is_help=True)
    for command in (stages.check, stages.download, stages.partition, stages.sweep, stages.report):
        stage.command()(in_project(command))
    app.add_typer(stage, name="stage")


def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new or empty folder.")],
    table: Annotated[str, typer.Option(help="A built-in table; `digits` takes a few minutes.")] = "digits",
    results: Annotated[
        bool, typer.Option("--results", help="Also copy the published records of its runs.")
    ] = False,
) -> None:
    """Create a project with a table, ready for `dvc repro`.

    With --results, `pfl report TABLE` and `pfl compare TABLE --method METHOD` read the table's published
    records instead of computing its runs. Records of outdated code are not copied.
    """
    from pipeline.init import init

    copied = init(folder, table, results)
    place = shlex.quote(f"./{folder}" if str(folder).startswith("-") else str(folder))
    if copied:
        print(f"{amount(copied, 'record')} of {table} in {place}/results/ledger/")
    print(f"Next: cd {place}, git commit -m Begin, dvc repro. README.md describes the folders.")


def check(
    names: Annotated[list[str] | None, some_tables("By default those of params.yaml.")] = None,
) -> None:
    """Validate tables and the environment before any compute."""
    from pipeline.sweep.check import check_tables

    print("\n".join(check_tables(names)))


def tables(
    names: Annotated[list[str] | None, some_tables("Tables to list; all by default.")] = None,
) -> None:
    """List the tables with their size."""
    from pipeline.spec.table import load_table

    chosen = {name: load_table(name) for name in names} if names else _valid_tables()
    _list("table", chosen)


def figures(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[FIGURE]...", help="Figures to list; all by default.")
    ] = None,
) -> None:
    """List the papers' figures with their size."""
    from pipeline.figures.figure import load_figure, parts_of
    from pipeline.figures.plots import PLOTS
    from pipeline.spec.paths import figure_names

    chosen = [part for name in names for part in parts_of(name)] if names else figure_names()
    if not chosen:
        print("this project has no figures; a checkout of pfl-repro has those of the papers")
    loaded = {name: load_figure(name) for name in chosen}
    simulated = {name: figure for name, figure in loaded.items() if PLOTS[figure.draw].simulates}
    if simulated:
        _list("figure", simulated)
    for name, figure in loaded.items():
        if name not in simulated:
            print(f"{name} ({figure.title}) needs no runs: it shows partitions.")


def _valid_tables() -> dict[str, Table]:
    """All valid tables, by name. For each invalid table, a line on standard error states the reason.

    Raises:
        InvalidInput: no table is valid.
    """
    from pipeline.spec.cells import cells
    from pipeline.spec.paths import table_names
    from pipeline.spec.table import load_table

    tables = {}
    for name in table_names():
        try:
            table = load_table(name)
            cells(name, table)  # validates methods and hyperparameters
            tables[name] = table
        except InvalidInput as error:
            print(f"pfl: warning: left out: {error}", file=sys.stderr)
    if not tables:
        raise InvalidInput("tables", ", ".join(table_names()), "at least one valid table")
    return tables


def _list(noun: str, chosen: Mapping[str, Table]) -> None:
    from pipeline.sweep.estimate import Extent

    width = max(map(len, chosen))
    print(f"{noun:<{width}}  cells  runs  client-epochs  title")
    for name, table in chosen.items():
        extent = Extent.of(name, table)
        epochs = "?" if extent.client_epochs is None else f"{extent.client_epochs:,}"
        print(f"{name:<{width}}  {extent.cells:>5}  {extent.runs:>4}  {epochs:>13}  {table.title}")


def trials(
    table: TableName,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", resolve_path=True, help="Output file, one trial per line.")
    ],
) -> None:
    """Write a table's pending trials, for another machine.

    Run them there with `pfl run-trials FILE`. Add the records that it writes with `pfl ledger import`, and
    repeat until no trial is pending.
    """
    from pfl.core.files import write_text
    from pfl.engine.metrics import json_ready
    from pipeline.sweep.collection import pending

    scheduler = pending(table)
    scheduler.stacks = True
    lines = [json.dumps(json_ready(trial)) + "\n" for trial in iter(scheduler.next, None)]
    write_text(file, "".join(lines))
    shown = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
    done = f"{scheduler.done} of {scheduler.total} runs are done"
    print(f"{amount(len(lines), 'trial')} in {shown}; {done}")


def import_(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            resolve_path=True,
            help="Records of `pfl run-trials`; all files are added, or none.",
        ),
    ],
) -> None:
    """Check and add records that were computed elsewhere."""
    from pipeline.store.imports import import_records

    print(f"new records: {import_records(files)}")


def why_(table: TableName) -> None:
    """Show which runs of a table are pending, and why."""
    from pipeline.sweep.collection import pending
    from pipeline.sweep.why import why

    print("\n".join(why(pending(table))))


def verify_(
    tables: Annotated[list[str] | None, some_tables("All published ones by default.")] = None,
    sample: Annotated[int | None, typer.Option(min=1, help="Number of records; by default all.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random sample.")] = 0,
    out: Annotated[
        Path | None, typer.Option(resolve_path=True, help="Write a report of the outcome to this folder.")
    ] = None,
) -> None:
    """Recompute published records, and report how far each one deviates.

    Records are sampled at random from those that the current code computes. To continue after an
    interruption, repeat the command. Records that fail on the kind of machine that computed them are no
    longer used.
    """
    from pfl.core.files import check_writable
    from pipeline.report.provenance import out_option
    from pipeline.report.verification_page import write_page
    from pipeline.store.refusals import refusals
    from pipeline.sweep.verify import drawn, verify

    if out:
        check_writable(out / "README.md", "--out")
    sampled = drawn(tables or (), sample, seed)
    options = "".join(f" {table}" for table in tables or ()) + (f" --sample {sample}" if sample else "")
    options += f" --seed {seed}" + (out_option(out) if out else "")
    verified: list[Verification] = []
    facts = {"seed": seed, "command": f"pfl ledger verify{options}", **sampled.facts}
    for verification in verify(sampled):
        verified.append(verification)
        if out:
            write_page(out, verified, facts, list(refusals().values()))
    count = Counter(verification.verdict for verification in verified)
    print(f"{count['agrees']} agree, {count['undecided']} are undecided, {count['fails']} fail")
    if count["fails"] or len(verified) < len(sampled.records):
        raise typer.Exit(1)


def export_(table: TableName) -> None:
    """Print a table that pins the configurations that a search selected.

    For example `pfl search export digits > tables/digits-tuned.yaml`.
    """
    from pipeline.store.export import export
    from pipeline.sweep.collection import results_of

    print(export(results_of(table)), end="")


def _files_in_root(sources: list[str]) -> list[str]:
    return [in_root(source) if Path(source).is_file() else source for source in sources]


def import_trials_(
    table: TableName,
    sources: Annotated[
        list[str],
        typer.Option(
            "--from",
            metavar="TABLE|FILE",
            callback=_files_in_root,
            help="Another table, or the search.csv of a report; may be repeated.",
        ),
    ],
) -> None:
    """Start the search of a table from trials of other searches.

    The trials that fit are written to TABLE.prior.csv next to the table's file and replace those of an
    earlier import. For example `pfl search import mine --from search.csv`.
    """
    from pipeline.sweep.trial_import import import_trials

    print("\n".join(import_trials(table, sources)))


def add_to_leaderboard(
    method: Annotated[str, typer.Argument(metavar="METHOD", help="A plugin's method; see `pfl methods`.")],
    table: Annotated[
        str, typer.Option(help="A table with `report: leaderboard`; the default takes minutes.")
    ] = "leaderboard-digits",
) -> None:
    """Rank a method on a leaderboard.

    The method is tuned and run with the same budget and seeds as all others, whose runs come from the
    ledger. The leaderboard's published page does not change. For example, in a project created by
    `pfl init --table leaderboard-digits --results FOLDER`: `pfl leaderboard add mymethod`.
    """
    from pipeline.added_method import add, text

    board, folder = add(table, method)
    print(text(board, method), end="")
    print(f"Report: {folder}/index.html; columns sort and filter in {folder}/leaderboard.html")


def track(table: TableName) -> None:
    """Send a table's results to the tracker again.

    Use this if the tracker failed during the sweep, or its store was lost or moved.
    """
    from pipeline.spec.paths import report_folder
    from pipeline.store.ledger import Ledger
    from pipeline.store.workspace import current_sources
    from pipeline.sweep.tracking import track_again, track_report

    ledger = Ledger(current_sources())
    print(f"runs entered: {track_again(table, ledger.successes(table))}")
    if report_folder(table).is_dir() and (line := track_report(table, report_folder(table))):
        print(line)


def overview() -> None:
    """Write the overview of all papers' tables."""
    from pipeline.report.overview import write_overview

    print(f"overview: {write_overview()}")


def report(
    names: Annotated[
        list[str] | None, some_tables("By default those of params.yaml; with --publish, all published.")
    ] = None,
    publish: Annotated[
        bool, typer.Option("--publish", help="Also write reports and overview to reports/, which is in git.")
    ] = False,
) -> None:
    """Write reports of whole tables from the ledger.

    Reports are written to results/TABLE/report/ and ignore the subset in params.yaml. --publish requires that
    this subset is empty.
    """
    from pipeline.figures.make import FOLDER as FIGURES
    from pipeline.figures.make import write_figures
    from pipeline.report.overview import write_overview
    from pipeline.report.table_report import publish as publish_report
    from pipeline.report.table_report import write_report
    from pipeline.spec.papers import paper_names
    from pipeline.spec.params import PARAMS, Params, selected_tables
    from pipeline.spec.paths import REPORTS, published_tables
    from pipeline.spec.yaml import load
    from pipeline.sweep.collection import collect, lacking

    if publish and (left_out := [key for key, chosen in load(PARAMS, Params).subset if chosen]):
        accepted = f"empty lists, because only whole tables are published; run `git restore {PARAMS}`"
        raise InvalidInput(f"{PARAMS}: subset", ", ".join(left_out), accepted)
    if not names and publish and not published_tables():
        accepted = "a published report; `pfl report TABLE --publish` publishes the first"
        raise Missing(str(REPORTS), "no report of a table", accepted)
    empty = False
    tables = names or (published_tables() if publish else selected_tables())
    # All at first: a table that a sweep is using leaves all published pages as they are.
    for name, cells in {name: collect(name) for name in tables}.items():
        if not cells:
            print(f"{name}: no cell to report: {lacking(name)}", file=sys.stderr)
            empty = True
            continue
        folder = write_report(name)
        if publish:
            folder = publish_report(name)
        print(f"{name}: {folder}/README.md, {amount(cells, 'cell')}", flush=True)
    if publish and paper_names():
        print(f"overview: {write_overview()}")
    if publish and FIGURES.is_dir():
        write_figures()
    if empty and (names or not publish):  # a published report is kept even if the ledger has none of its runs
        raise typer.Exit(1)


def compare(
    names: Annotated[
        list[str],
        typer.Argument(metavar="TABLE...", help="See `pfl tables`.", autocompletion=matching_tables),
    ],
    method: Annotated[
        str | None,
        typer.Option(help="Run this method in the settings of TABLE; see `pfl methods`."),
    ] = None,
    settings: Annotated[
        str | None,
        typer.Option(
            metavar="A,B", help="Only these settings; by default all or, with --method, those with data."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(resolve_path=True, help="Also write it to this file: .csv or .md.")
    ] = None,
) -> None:
    """Show tables side by side, or a method among a table's rows.

    Differences are paired, with 95 % intervals. Columns are matched by the names of settings, rows by their
    printed names; the first table is subtracted from the others. With --method, only the pending simulations
    of that method are run; the other rows come from the ledger. For example
    `pfl compare pfedsim-table3 --method mymethod`.
    """
    from pfl.core.files import check_writable, write_text
    from pipeline.compare import compared
    from pipeline.report.comparison import comma_separated, markdown, text

    written = {".csv": comma_separated, ".md": markdown}
    if out and out.suffix not in written:
        raise InvalidInput("--out", out.name, "a file that ends with .csv or .md")
    if out:
        check_writable(out, "--out")
    columns = compared(names, method, _names(settings))
    print(text(columns), end="")
    if out:
        write_text(out, written[out.suffix](columns))


def reproduce(
    table: TableName,
    hours: Annotated[float, typer.Option(help="Time after which the computation ends.")],
    settings: Annotated[
        str | None, typer.Option(metavar="A,B", help="Only these settings; by default all.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(resolve_path=True, help="Output folder; by default results/TABLE/reproduction."),
    ] = None,
) -> None:
    """Check a table's published numbers within a given time.

    The paper's own method and the strongest baseline of each column come first, and cheap runs before
    expensive ones. Runs in the ledger are reused. The estimated cost is printed first, and a page lists what
    was checked and what was not. With --hours 0, nothing is computed.
    """
    from pipeline.reproduce import reproduce

    if failed := reproduce(table, hours, _names(settings), out):
        print(f"pfl: error: {table}: {failed}", file=sys.stderr)
        raise typer.Exit(1)


def _dataset_in_root(dataset: str | None) -> str | None:
    from pfl.data.datasets import DATASETS

    path, comma, size = (dataset or "").partition(",")
    is_path = path not in DATASETS and Path(path).exists()
    return f"{in_root(path)}{comma}{size}" if path and is_path else dataset


def figure(
    name: Annotated[str, typer.Argument(metavar="FIGURE", help="See `pfl figures`.")],
    rounds: Annotated[int | None, typer.Option(help="Rounds, instead of the paper's.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Local epochs per round.")] = None,
    dataset: Annotated[
        str | None, typer.Option(callback=_dataset_in_root, help="See `pfl datasets`; or a path.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="See `pfl models`.")] = None,
    clients: Annotated[int | None, typer.Option(help="Number of clients.")] = None,
    settings: Annotated[str | None, typer.Option(metavar="A,B", help="Only these settings.")] = None,
    methods: Annotated[str | None, typer.Option(metavar="A,B", help="Only these rows.")] = None,
    out: Annotated[
        Path | None, typer.Option(resolve_path=True, help="Output folder; by default reports/figures.")
    ] = None,
) -> None:
    """Draw a figure of a paper and test the claims about it.

    Runs that are not in the ledger are computed. With options, the figure is reduced and labelled as such.
    """
    from pipeline.figures.figure import FigureChanges
    from pipeline.figures.make import FOLDER, make
    from pipeline.spec.table import Subset

    subset = Subset(settings=_names(settings), methods=_names(methods))
    changes = FigureChanges(rounds, epochs, dataset, model, clients, subset)
    print("\n".join(make(name, changes, out or FOLDER)))


def _names(text: str | None) -> list[str]:
    """The names in an option's value, including empty ones, which are rejected later."""
    return text.split(",") if text is not None else []
