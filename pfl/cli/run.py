"""Command that runs a simulation."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pfl.cli.options import EXECUTED, check_files, names_in, with_options
from pfl.core.config import CHECKPOINT, CHECKPOINT_EVERY, Config, Execution
from pfl.core.errors import Conflict, InvalidInput
from pfl.core.files import write_text
from pfl.core.text import amount
from pfl.run.api import bar, prepared
from pfl.run.errors import NotSaved

if TYPE_CHECKING:
    from pfl.data.partition import Division
    from pfl.engine.result import Result

TRAINING = [
    declared.name
    for declared in dataclasses.fields(Config)
    if declared.name not in ("method", "hyperparameters", "model")
]
IN_PLACE_OF = {"seeds": "seed", "partition_file": "partition"}


@with_options({Config: TRAINING, Execution: EXECUTED})
def run(
    context: typer.Context,
    method: Annotated[
        str, typer.Option(help="See `pfl methods`.", autocompletion=names_in("pfl.methods", "METHODS"))
    ] = Config.method,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A hyperparameter of the method.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="See `pfl models`; by default one that fits.",
            autocompletion=names_in("pfl.models", "MODELS"),
        ),
    ] = None,
    dataset: Annotated[
        str,
        typer.Option(
            help="A name of `pfl datasets`, or an image folder, zip, tar or npz file.",
            autocompletion=names_in("pfl.data.datasets", "DATASETS"),
        ),
    ] = "digits",
    partition: Annotated[
        str, typer.Option(help="RULE:ARG[,KEY=VALUE...]; see `pfl partitions`.")
    ] = "dirichlet:0.1",
    partition_file: Annotated[
        Path | None, typer.Option(help="JSON: {client: {train: [...], test: [...]}} of pooled indices.")
    ] = None,
    clients: Annotated[
        int | None, typer.Option(help="Number of clients; by default 20, or as the rule determines.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of initialisation, participants and batches.")] = 0,
    seeds: Annotated[
        str | None, typer.Option(metavar="0,1,2", help="Several seeds, instead of --seed.")
    ] = None,
    *,
    moments: Annotated[
        str | None,
        typer.Option(
            metavar="MOMENT,...",
            help="Additional moments of the evaluations before the last one: post_aggregation, "
            "post_local, adapted, or all.",
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help=f"Write a checkpoint to this folder every {CHECKPOINT_EVERY} rounds and after the last; an "
            "interrupted run loses the rounds since.",
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Resume from the checkpoint in DIR, optionally with more --rounds."),
    ] = False,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Save every client's final model.")
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Write the result as JSON, with what --observe records."),
    ] = None,
    **options: Any,
) -> None:
    """Run one simulation and print its accuracy.

    Clients are evaluated at the moment that the method reports and at --moments; the last evaluation covers
    all moments.

    For example: pfl run --method pfedsim --set rho=0.3 --partition dirichlet:0.1 --rounds 50 --seeds 0,1,2
    """
    from pfl.data.partition import of_seed, parse_spec

    _check_combinations(context)
    check_files({"json": json_file, "save": save, "checkpoint": checkpoint and checkpoint / CHECKPOINT})
    if checkpoint and not resume and (checkpoint / CHECKPOINT).exists():
        accepted = "a folder without a checkpoint, or --resume to continue from this one"
        raise InvalidInput("checkpoint", str(checkpoint), accepted)
    spec = f"file:{partition_file}" if partition_file else partition
    chosen = (seed,) if seeds is None else _seeds(seeds)
    config, data, split, execution = prepared(
        method,
        dataset,
        spec,
        clients,
        model or None,
        chosen,
        Execution(
            **{name: options[name] for name in EXECUTED},
            moments=_moments(moments, method),
            checkpoint_dir=str(checkpoint) if checkpoint else None,
            save=str(save) if save else None,
        ),
        None,
        {"hyperparameters": _assignments(set_ or []), **{name: options[name] for name in TRAINING}},
    )

    from pfl.run.simulate import simulate_configs

    if checkpoint and resume and not (checkpoint / CHECKPOINT).exists():
        print(f"pfl: no checkpoint in {checkpoint}; starting from the beginning", file=sys.stderr)
    print(
        f"{config.method} on {data.name}, {parse_spec(spec)[0]}, "
        f"{amount(of_seed(split, chosen[0]).clients, 'client')}, {config.model}, "
        f"{amount(config.rounds, 'round')}, {'seed' if len(chosen) == 1 else 'seeds'} "
        f"{', '.join(map(str, chosen))}"
    )
    results: Sequence[Result]
    not_saved = None
    try:
        with bar(config) as on_round:
            (results,) = simulate_configs([config], data, split, chosen, execution, on_round)
    except NotSaved as error:
        results, not_saved = error.results, error
    for result in results:
        _show(result)
    if json_file:
        documents = [_document(result, config, split, dataset) for result in results]
        content = documents[0] if len(documents) == 1 else documents
        write_text(json_file, json.dumps(content, indent=2) + "\n")
    if not_saved:
        raise not_saved


def _document(result: Result, config: Config, split: Division, dataset: str) -> Any:
    """The result of one seed for --json."""
    from pfl.data.partition import of_seed
    from pfl.engine.metrics import json_ready
    from pfl.engine.result import versions

    place = {"dataset": dataset, "partition": of_seed(split, result.seed).spec, "seed": result.seed}
    return json_ready(
        {
            "config": {**config.to_dict(), **place},
            **result.metrics.to_json(),
            **dataclasses.asdict(result.measured),
            "versions": dataclasses.asdict(versions()),
        }
    )


def _assignments(texts: list[str]) -> dict[str, Any]:
    """``["rho=0.3", "affinity=log_then_mean"]`` as a dictionary; numbers and booleans are parsed."""
    values: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise InvalidInput("--set", text, "NAME=VALUE")
        if name in values:
            raise InvalidInput("--set", text, f"one value of {name}")
        try:
            values[name] = json.loads(value)
        except (ValueError, RecursionError):
            values[name] = value
    return values


def _seeds(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InvalidInput("seeds", text, "integers separated by commas, as in 0,1,2") from None


def _moments(text: str | None, method: str) -> tuple[str, ...]:
    """The moments of every evaluation, the method's headline first; an empty tuple means all."""
    from pfl.methods import METHODS

    if text == "all":
        return ()
    asked = [] if text is None else text.split(",")
    return tuple(dict.fromkeys((METHODS[method].headline, *asked)))


def _check_combinations(context: typer.Context) -> None:
    """Reject options that have no effect in combination with others."""
    options = {parameter.name: parameter.opts[0] for parameter in context.command.params}
    sources = {name: context.get_parameter_source(name) for name in options if name}
    given = [name for name, source in sources.items() if source and source.name == "COMMANDLINE"]
    for name in given:
        if (other := IN_PLACE_OF.get(name)) in given:
            raise Conflict(options[other], f"given with {options[name]}", "use one of the two")
    if "resume" in given and "checkpoint" not in given:
        raise Conflict("--resume", "given without --checkpoint DIR", "name its folder")


def _show(result: Result) -> None:
    seed, metrics, measured = result.seed, result.metrics, result.measured
    if metrics.diverged_at is not None:
        print(f"seed {seed}: diverged in round {metrics.diverged_at}: the loss is not a number")
    if metrics.stopped_at is not None:
        print(f"seed {seed}: stopped early, after round {metrics.stopped_at}")
    pooled, client_mean = metrics.reached("pooled"), metrics.reached("client_mean")
    print(
        f"seed {seed}: accuracy {pooled.last:.2f} % pooled, "
        f"{client_mean.last:.2f} % mean over clients "
        f"(best {pooled.best:.2f} % in round {pooled.best_round}); "
        f"{measured.wall_seconds:.1f} s, {measured.samples_per_second:.0f} samples/s, "
        f"{metrics.bytes_up / 1e6:.1f} MB up, {metrics.bytes_down / 1e6:.1f} MB down"
    )
    if metrics.unseen:
        unseen = metrics.unseen
        print(
            f"seed {seed}: {amount(len(unseen.per_client), 'unseen client')}: "
            f"{unseen.received.pooled:.2f} % pooled as received, {unseen.adapted.pooled:.2f} % adapted, "
            f"{unseen.scratch.pooled:.2f} % trained from scratch"
        )
    for name, metric in metrics.scalars.items():
        print(f"seed {seed}: {name} {metric.pooled:.4f} pooled, {metric.client_mean:.4f} mean over clients")
    for name in metrics.client_metrics:
        if name not in metrics.scalars:
            print(f"seed {seed}: {name} is not a single number; --json FILE writes it")
