"""The command line ``pfl``. Other packages add commands by entry points of the group ``pfl.commands``."""

from __future__ import annotations

import dataclasses
import errno
import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pfl.config import Config, Execution
from pfl.errors import InvalidInput
from pfl.files import append_lines, check_writable, read_lines, write_text

if TYPE_CHECKING:
    from pfl.data.dataset import Dataset
    from pfl.data.partition import Partition
    from pfl.engine.simulation import OnRound

app = typer.Typer(
    help="Personalised federated learning: simulate, compare, reproduce.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

DEFAULT = Config()
DEFAULT_CLIENTS = 20
UsageError: type[BaseException] = typer.BadParameter.__mro__[1]  # of the click that typer brings


def main() -> None:
    """Run ``pfl``. A user's mistake is one line on standard error and exit status 2."""
    for point in entry_points(group="pfl.commands"):
        point.load()(app)
    try:
        status = app(standalone_mode=False)
    except InvalidInput as error:
        status = _fail(str(error))
    except UsageError as error:
        status = _fail(error.format_message())  # type: ignore[attr-defined]
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise
        status = _fail(f"{error.filename or 'a file'} cannot be written ({error.strerror})")
    except (KeyboardInterrupt, typer.Abort):
        print("pfl: interrupted", file=sys.stderr)
        status = 130
    sys.exit(status)


def _fail(message: str) -> int:
    print(f"pfl: error: {message}", file=sys.stderr)
    return 2


@app.command()
def run(
    method: Annotated[str, typer.Option(help="See `pfl methods`.")] = DEFAULT.method,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A hyperparameter of the method.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="See `pfl models`; by default one that fits.")] = None,
    dataset: Annotated[
        str, typer.Option(help="A name of `pfl datasets`, or an image folder, zip, tar or npz file.")
    ] = "digits",
    partition: Annotated[
        str, typer.Option(help="RULE:ARG[,KEY=VALUE...]; see `pfl partitions`.")
    ] = "dirichlet:0.1",
    partition_file: Annotated[
        Path | None, typer.Option(help="JSON: {client: {train: [...], test: [...]}} of pooled indices.")
    ] = None,
    clients: Annotated[
        int | None, typer.Option(help="Number of clients; 20, or what the rule decides.")
    ] = None,
    participation: Annotated[
        float, typer.Option(help="Share of the clients in a round.")
    ] = DEFAULT.participation,
    rounds: Annotated[int, typer.Option(help="Rounds.")] = DEFAULT.rounds,
    epochs: Annotated[int, typer.Option(help="Local epochs a round.")] = DEFAULT.epochs,
    batch_size: Annotated[int, typer.Option(help="Images a step.")] = DEFAULT.batch_size,
    lr: Annotated[float, typer.Option(help="Learning rate of SGD.")] = DEFAULT.lr,
    momentum: Annotated[float, typer.Option(help="Momentum of SGD.")] = DEFAULT.momentum,
    weight_decay: Annotated[float, typer.Option(help="Weight decay of SGD.")] = DEFAULT.weight_decay,
    batch_order: Annotated[
        str, typer.Option(help="Minibatches: shuffled, or a class_stream.")
    ] = DEFAULT.batch_order,
    input_scale: Annotated[str, typer.Option(help="Images: normalised or raw255.")] = DEFAULT.input_scale,
    bn_stats: Annotated[
        str, typer.Option(help="Batch norm's statistics: mixed or local.")
    ] = DEFAULT.bn_stats,
    seed: Annotated[int, typer.Option(help="Seed of initialisation, participants and batches.")] = 0,
    seeds: Annotated[
        str | None, typer.Option(metavar="0,1,2", help="Several seeds in place of --seed.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:N or auto.")] = "auto",
    backend: Annotated[str, typer.Option(help="loop, stacked or auto.")] = "auto",
    threads: Annotated[int, typer.Option(help="Threads on a CPU.")] = 1,
    dtype: Annotated[str, typer.Option(help="float32 or float64.")] = DEFAULT.dtype,
    eval_every: Annotated[int, typer.Option(help="Rounds between evaluations.")] = DEFAULT.eval_every,
    validation: Annotated[
        float, typer.Option(help="Evaluate on this share of each client's training data, not on its tests.")
    ] = DEFAULT.validation,
    checkpoint: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write checkpoints to this folder.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint in DIR.")] = False,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Save every client's final model; with --trials, to this folder."),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON.")
    ] = None,
    trials: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Run the trials that `pfl trials` wrote; rows go to the --json file."
        ),
    ] = None,
) -> None:
    """Run one simulation and print its accuracy."""
    execution = Execution(
        device=device,
        backend=backend,  # type: ignore[arg-type]
        threads=threads,
        checkpoint_dir=str(checkpoint) if checkpoint else None,
        save=str(save) if save else None,
    )
    execution.validate()
    if trials:
        json_file = json_file or trials.with_suffix(".rows.jsonl")
    for written in (json_file, save, checkpoint and checkpoint / "checkpoint.pt"):
        if written:
            check_writable(written)
    if trials and json_file:
        _run_trials(trials, json_file, execution)
        return
    config = Config(
        method=method,
        hyperparameters=_assignments(set_ or []),
        participation=participation,
        rounds=rounds,
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        momentum=momentum,
        weight_decay=weight_decay,
        batch_order=batch_order,  # type: ignore[arg-type]
        input_scale=input_scale,  # type: ignore[arg-type]
        bn_stats=bn_stats,  # type: ignore[arg-type]
        validation=validation,
        eval_every=eval_every,
        dtype=dtype,  # type: ignore[arg-type]
    )
    if model:
        config = dataclasses.replace(config, model=model)
    config = config.validated()
    chosen = _seeds(seeds) if seeds else (seed,)
    _check_checkpoint(checkpoint, resume)
    spec = f"file:{partition_file}" if partition_file else partition

    data, split = _data(dataset, spec, clients)
    if not model:
        config = dataclasses.replace(config, model=_fitting_model(data)).validated()

    from pfl.engine.simulation import simulate
    from pfl.trials import json_ready, versions

    for line in config.warnings():
        print(f"pfl: warning: {line}", file=sys.stderr)
    print(
        f"{method} on {data.name}, {split.spec}, {split.clients} clients, {config.model}, "
        f"{config.rounds} rounds, seed {', '.join(map(str, chosen))}"
    )
    with _progress(config.rounds, method) as on_round:
        results = simulate(config, data, split, chosen, execution, on_round)
    documents = []
    for result in results:
        document = {
            "config": {**config.to_dict(), "dataset": dataset, "partition": split.spec, "seed": result.seed},
            **result.metrics,
            **result.measured,
            "versions": versions(method),
        }
        documents.append(json_ready(document))
        _show(result.seed, document)
    if json_file:
        content = documents[0] if len(documents) == 1 else documents
        write_text(json_file, json.dumps(content, indent=2) + "\n")


@app.command()
def methods(
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a table for documentation.")] = False,
) -> None:
    """List the methods and their hyperparameters."""
    from pfl.methods import METHODS

    if markdown:
        print(_method_table())
        return
    for name in METHODS:
        print(f"{name:<12} {METHODS.summary(name)}")
        for line in _hyperparameters(name):
            print(f"{'':<14}{line}")


def _hyperparameters(name: str) -> list[str]:
    """A line for each of a method's hyperparameters: default, meaning, accepted values, search range."""
    from pfl.methods import METHODS

    method = METHODS[name]
    lines = []
    for parameter, declared in method.declarations().items():
        default = method.__dataclass_fields__[parameter].default
        searched = ""
        if declared.search is not None:
            ends = ", ".join(f"{end:g}" if isinstance(end, float) else str(end) for end in declared.search)
            searched = f"; searched in {{{ends}}}" if declared.choices else f"; searched in [{ends}]"
            searched += ", log" if declared.log else ""
        lines.append(f"{parameter}={default} ({declared.about}; {declared.domain(default)}{searched})")
    return lines


def _method_table() -> str:
    """The methods as a Markdown table; what they mix, keep and send is observed, not declared."""
    from pfl.engine.overview import observe
    from pfl.methods import METHODS

    head = "| method | from | mixed | own state | model sizes down, up | hyperparameters |"
    lines = [head, "| --- | --- | --- | --- | --- | --- |"]
    for name in METHODS:
        seen = observe(name)
        mixed = "<br>".join(f"{group}: {', then '.join(kinds)}" for group, kinds in seen.mixed.items())
        state = ", ".join(seen.state) or "none"
        parameters = "<br>".join(_hyperparameters(name)) or "none"
        lines.append(
            f"| `{name}` | {METHODS[name].paper} | {mixed} | {state} "
            f"| {seen.down:.3g}, {seen.up:.3g} | {parameters} |"
        )
    return "\n".join(lines)


def _list_command(name: str, package: str, noun: str) -> None:
    def show() -> None:
        import importlib

        registry = getattr(importlib.import_module(package), name.upper())
        for entry in registry:
            print(f"{entry:<20} {registry.summary(entry)}")

    show.__doc__ = f"List the {noun}."
    app.command(name)(show)


_list_command("datasets", "pfl.data.datasets", "data sets")
_list_command("models", "pfl.models", "networks")
_list_command("partitions", "pfl.data.partitions", "partition rules")


@app.command("partition")
def partition_command(
    spec: Annotated[str, typer.Argument(metavar="RULE:ARG", help="See `pfl partitions`.")],
    dataset: Annotated[str, typer.Option(help="A name of `pfl datasets`, or a path.")] = "digits",
    clients: Annotated[
        int | None, typer.Option(help="Number of clients; 20, or what the rule decides.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw classes by client (svg, png, pdf).")
    ] = None,
) -> None:
    """Make a partition, print its statistics, and draw it."""
    data, split = _data(dataset, spec, clients)
    print(split.spec)
    for name, value in split.statistics(data.labels, len(data.classes)).items():
        parts = value.items() if isinstance(value, dict) else [("", value)]
        print(
            f"  {name.replace('_', ' '):<22}"
            + ", ".join(f"{part} {number:.4g}".strip() for part, number in parts)
        )
    for note in split.notes:
        print(f"  note: {note}")
    if plot:
        from pfl.data.plot import plot as draw

        draw(split, data.labels, data.classes).savefig(plot)
        print(f"  drawn in {plot}")


def _data(dataset: str, spec: str, clients: int | None) -> tuple[Dataset, Partition]:
    """The data set and its partition; what can be checked is checked before anything is read."""
    from pfl.data.dataset import check_dataset, load
    from pfl.data.partition import check_partition, make_partition, parse_spec

    if clients is None and not parse_spec(spec)[1].clients_from_data:
        clients = DEFAULT_CLIENTS
    known = check_dataset(dataset)
    check_partition(spec, clients, *((known.samples, known.classes) if known else ()))
    data = load(dataset)
    return data, make_partition(spec, data, clients)


def _run_trials(file: Path, rows: Path, execution: Execution) -> None:
    """Run one trial after another and add its rows to ``rows`` as it ends; those already there stay.

    A trial that fails is told and passed over; one that was interrupted goes on from its checkpoint.
    """
    from pfl.data.dataset import load
    from pfl.data.partition import make_partition
    from pfl.trials import Trial, cause_of, folder_of, run_trial

    if not file.exists():
        raise InvalidInput("trials", str(file), "a file that `pfl trials` wrote")
    checkpoints = Path(execution.checkpoint_dir) if execution.checkpoint_dir else None
    done = {row["key"] for row in read_lines(rows)}
    pending = [Trial.from_dict(json.loads(line)) for line in file.read_text().splitlines()]
    pending = [trial for trial in pending if not done.issuperset(trial.keys())]
    datasets: dict[str, Dataset] = {}
    failed = 0
    for number, trial in enumerate(pending, start=1):
        if trial.dataset not in datasets:
            datasets[trial.dataset] = load(trial.dataset)
        data = datasets[trial.dataset]
        split = make_partition(trial.partition, data, trial.clients)
        folder = checkpoints and checkpoints / folder_of(trial)
        own = dataclasses.replace(execution, checkpoint_dir=str(folder) if folder else None)
        try:
            with _progress(trial.config["rounds"], f"{number}/{len(pending)} {trial.cell}") as on_round:
                finished = run_trial(trial, data, split, own, on_round)
        except Exception as error:
            failed += 1
            print(f"pfl: {trial.cell}, seeds {trial.seeds}: {cause_of(error)}", file=sys.stderr)
            continue
        append_lines(rows, finished, wait=True)
        if folder:
            shutil.rmtree(folder)
    print(f"{len(pending) - failed} trials run; rows in {rows}")
    if failed:
        print(f"{failed} trials failed; the same command tries them again")


def _assignments(texts: list[str]) -> dict[str, Any]:
    """``["rho=0.3", "affinity=log_then_mean"]`` as a dictionary; numbers and booleans are read as such."""
    values = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise InvalidInput("--set", text, "NAME=VALUE")
        try:
            values[name] = json.loads(value)
        except json.JSONDecodeError:
            values[name] = value
    return values


def _seeds(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InvalidInput("seeds", text, "whole numbers with commas between them, as in 0,1,2") from None


def _check_checkpoint(folder: Path | None, resume: bool) -> None:
    if resume and folder is None:
        raise InvalidInput("--resume", "without a folder", "--checkpoint DIR beside it")
    if folder and not resume and (folder / "checkpoint.pt").exists():
        raise InvalidInput(
            "checkpoint", str(folder), "a folder without a checkpoint, or --resume to go on from this one"
        )


def _fitting_model(data: Dataset) -> str:
    return "cnn_digits" if data.shape[1] < 16 else "lenet5_bn"


@contextmanager
def _progress(rounds: int, title: str) -> Iterator[OnRound]:
    from tqdm import tqdm

    with tqdm(total=rounds, desc=title, unit="round", disable=None) as bar:

        def on_round(round: int, _rounds: int, newest: dict[str, Any] | None) -> None:
            bar.update(round - bar.n)
            if newest:
                bar.set_postfix(accuracy=f"{newest['post_aggregation']['pooled']:.2f} %", refresh=False)

        yield on_round


def _show(seed: int, document: dict[str, Any]) -> None:
    accuracy = document["accuracy"]
    print(
        f"seed {seed}: accuracy {accuracy['pooled']['last']:.2f} % pooled, "
        f"{accuracy['client_mean']['last']:.2f} % mean over clients "
        f"(best {accuracy['pooled']['best']:.2f} % in round {accuracy['pooled']['best_round']}); "
        f"{document['wall_seconds']:.1f} s, {document['samples_per_second']:.0f} samples/s, "
        f"{document['bytes_up'] / 1e6:.1f} MB up, {document['bytes_down'] / 1e6:.1f} MB down"
    )
