"""Command that runs a simulation."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from pfl.cli.execution import check_files, execution_of
from pfl.core.config import CHECKPOINT, CHECKPOINT_EVERY, Config
from pfl.core.errors import InvalidInput
from pfl.core.files import write_text
from pfl.core.text import amount
from pfl.models import fitting
from pfl.run.api import load_checked
from pfl.run.progress import progress
from pfl.run.validation import check_seeds, validated, warnings_of

if TYPE_CHECKING:
    from pfl.engine.result import Result

DEFAULT = Config()
IN_PLACE_OF = {"seeds": "seed", "partition_file": "partition"}


def run(
    context: typer.Context,
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
        int | None, typer.Option(help="Number of clients; by default 20, or as the rule determines.")
    ] = None,
    participation: Annotated[
        float, typer.Option(help="Share of the clients that train in a round.")
    ] = DEFAULT.participation,
    rounds: Annotated[int, typer.Option(help="Number of rounds.")] = DEFAULT.rounds,
    epochs: Annotated[int, typer.Option(help="Local epochs per round.")] = DEFAULT.epochs,
    batch_size: Annotated[int, typer.Option(help="Images per step.")] = DEFAULT.batch_size,
    lr: Annotated[float, typer.Option(help="Learning rate of SGD.")] = DEFAULT.lr,
    momentum: Annotated[float, typer.Option(help="Momentum of SGD.")] = DEFAULT.momentum,
    weight_decay: Annotated[float, typer.Option(help="Weight decay of SGD.")] = DEFAULT.weight_decay,
    lr_schedule: Annotated[
        str, typer.Option(help="Learning rate over the rounds: constant, step or cosine.")
    ] = DEFAULT.lr_schedule,
    lr_step: Annotated[int, typer.Option(help="Rounds between two steps of the schedule.")] = DEFAULT.lr_step,
    lr_gamma: Annotated[float, typer.Option(help="Factor of the rate at each step.")] = DEFAULT.lr_gamma,
    lr_warmup: Annotated[
        int, typer.Option(help="Rounds of linear warm-up before the schedule.")
    ] = DEFAULT.lr_warmup,
    batch_order: Annotated[
        str, typer.Option(help="Order of minibatches: shuffled, fixed or class_stream.")
    ] = DEFAULT.batch_order,
    last_batch: Annotated[
        str, typer.Option(help="An epoch's incomplete last minibatch: kept or dropped.")
    ] = DEFAULT.last_batch,
    augmentation: Annotated[
        str, typer.Option(help="Augmentation: none, crop_flip, crop_flip_rotate or flip_rotate.")
    ] = DEFAULT.augmentation,
    input_scale: Annotated[
        str,
        typer.Option(
            help="Scale of images: normalised, symmetric (-1 to 1), unit (0 to 1), raw255, or by the "
            "constants of mnist, cifar10 or cifar100."
        ),
    ] = DEFAULT.input_scale,
    bn_stats: Annotated[
        str, typer.Option(help="Running statistics of batch norm: mixed or local.")
    ] = DEFAULT.bn_stats,
    seed: Annotated[int, typer.Option(help="Seed of initialisation, participants and batches.")] = 0,
    seeds: Annotated[
        str | None, typer.Option(metavar="0,1,2", help="Several seeds, instead of --seed.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:N or auto.")] = "auto",
    backend: Annotated[str, typer.Option(help="loop, stacked or auto.")] = "auto",
    threads: Annotated[int, typer.Option(help="Threads on a CPU.")] = 1,
    workers: Annotated[
        int | None,
        typer.Option(help="Processes that share the clients of a round on a CPU; by default one per core."),
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32 or float64.")] = DEFAULT.dtype,
    precision: Annotated[
        str, typer.Option(help="Of the networks: fp32, or tf32 or bf16 if the hardware supports it.")
    ] = DEFAULT.precision,
    observe: Annotated[
        str, typer.Option(help="What to record for --json: accuracy, or also similarities of the clients.")
    ] = DEFAULT.observe,
    eval_every: Annotated[int, typer.Option(help="Rounds between evaluations.")] = DEFAULT.eval_every,
    moments: Annotated[
        str | None,
        typer.Option(
            metavar="MOMENT,...",
            help="Additional moments of the evaluations before the last one: post_aggregation, "
            "post_local, adapted, or all.",
        ),
    ] = None,
    validation: Annotated[
        float, typer.Option(help="Evaluate on this share of each client's training data, not its test data.")
    ] = DEFAULT.validation,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help=f"Write a checkpoint to this folder every {CHECKPOINT_EVERY} rounds and after the last; an "
            "interrupted run loses the rounds since.",
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the checkpoint in DIR.")] = False,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Save every client's final model.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON.")
    ] = None,
) -> None:
    """Run one simulation and print its accuracy.

    Clients are evaluated at the moment that the method reports and at --moments; the last evaluation covers
    all moments.

    For example: pfl run --method pfedsim --set rho=0.3 --partition dirichlet:0.1 --rounds 50 --seeds 0,1,2
    """
    _check_combinations(context)
    execution = execution_of(device, backend, threads, workers, checkpoint, save)
    check_files({"json": json_file, "save": save, "checkpoint": checkpoint and checkpoint / CHECKPOINT})
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
        lr_schedule=lr_schedule,  # type: ignore[arg-type]
        lr_step=lr_step,
        lr_gamma=lr_gamma,
        lr_warmup=lr_warmup,
        batch_order=batch_order,  # type: ignore[arg-type]
        last_batch=last_batch,  # type: ignore[arg-type]
        augmentation=augmentation,  # type: ignore[arg-type]
        input_scale=input_scale,  # type: ignore[arg-type]
        bn_stats=bn_stats,  # type: ignore[arg-type]
        validation=validation,
        eval_every=eval_every,
        dtype=dtype,  # type: ignore[arg-type]
        precision=precision,  # type: ignore[arg-type]
        observe=observe,  # type: ignore[arg-type]
    )
    if model:
        config = dataclasses.replace(config, model=model)
    config = validated(config)
    if config.precision != "fp32":
        from pfl.engine.device import check_precision, resolve_device

        check_precision(config.precision, resolve_device(device))
    chosen = (seed,) if seeds is None else _seeds(seeds)
    check_seeds(chosen)
    execution = dataclasses.replace(execution, moments=_moments(moments, method))
    _check_checkpoint(checkpoint, resume)
    spec = f"file:{partition_file}" if partition_file else partition

    data, clients = load_checked(dataset, spec, clients)
    if not model:
        config = validated(dataclasses.replace(config, model=fitting(data.shape)))

    from pfl.data.partition import make_division, of_seed, parse_spec
    from pfl.methods import METHODS
    from pfl.run.fingerprint import name_of
    from pfl.run.simulation import simulate
    from pfl.run.trials import json_ready, versions

    split = make_division(spec, data, clients, chosen)
    if checkpoint:
        code = name_of(config, data.shape, len(data.classes)).name
        execution = dataclasses.replace(execution, code=code)
    for line in warnings_of(config):
        print(f"pfl: warning: {line}", file=sys.stderr)
    if resume and checkpoint and not (checkpoint / CHECKPOINT).exists():
        print(f"pfl: no checkpoint in {checkpoint}; starting from the beginning", file=sys.stderr)
    headline = METHODS[method].headline
    clients, rounds = of_seed(split, chosen[0]).clients, config.rounds
    print(
        f"{method} on {data.name}, {parse_spec(spec)[0]}, {amount(clients, 'client')}, "
        f"{config.model}, {amount(rounds, 'round')}, seed {', '.join(map(str, chosen))}"
    )
    with progress(rounds, method, headline) as on_round:
        results = simulate(config, data, split, chosen, execution, on_round)
    documents = []
    for result in results:
        place = {"dataset": dataset, "partition": of_seed(split, result.seed).spec, "seed": result.seed}
        document = {
            "config": {**config.to_dict(), **place},
            **result.metrics.to_json(),
            **dataclasses.asdict(result.measured),
            "versions": dataclasses.asdict(versions()),
        }
        documents.append(json_ready(document))
        _show(result)
    if json_file:
        content = documents[0] if len(documents) == 1 else documents
        write_text(json_file, json.dumps(content, indent=2) + "\n")


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
    """The moments of every evaluation, that of the method first; an empty tuple means all."""
    from pfl.engine.method import Method, Moment
    from pfl.methods import METHODS

    if text == "all":
        return ()
    known: list[str] = list(get_args(Moment))
    if METHODS[method].adaptation is Method.adaptation:
        known.remove("adapted")
    asked = [] if text is None else text.split(",")
    for moment in asked:
        if moment not in known:
            raise InvalidInput("moments", moment, f"all, or some of {', '.join(known)}, separated by commas")
    return tuple(dict.fromkeys((METHODS[method].headline, *asked)))


def _check_combinations(context: typer.Context) -> None:
    """Reject an option that has no effect beside another one."""
    options = {parameter.name: parameter.opts[0] for parameter in context.command.params}
    given = [name for name in options if name and _on_command_line(context, name)]
    for name in given:
        if (other := IN_PLACE_OF.get(name)) in given:
            raise InvalidInput(options[other], f"beside {options[name]}", "one of the two")
    if "resume" in given and "checkpoint" not in given:
        raise InvalidInput("--resume", "without a folder", "--checkpoint DIR beside it")


def _on_command_line(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _check_checkpoint(folder: Path | None, resume: bool) -> None:
    if folder and not resume and (folder / CHECKPOINT).exists():
        raise InvalidInput(
            "checkpoint", str(folder), "a folder without a checkpoint, or --resume to continue from this one"
        )


def _show(result: Result) -> None:
    metrics, measured = result.metrics, result.measured
    if metrics.diverged_at is not None:
        print(f"seed {result.seed}: diverged in round {metrics.diverged_at}: the loss is not a number")
    pooled, client_mean = metrics.reached("pooled"), metrics.reached("client_mean")
    print(
        f"seed {result.seed}: accuracy {pooled.last:.2f} % pooled, "
        f"{client_mean.last:.2f} % mean over clients "
        f"(best {pooled.best:.2f} % in round {pooled.best_round}); "
        f"{measured.wall_seconds:.1f} s, {measured.samples_per_second:.0f} samples/s, "
        f"{metrics.bytes_up / 1e6:.1f} MB up, {metrics.bytes_down / 1e6:.1f} MB down"
    )
