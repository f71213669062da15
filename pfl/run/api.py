"""`simulate`: a whole simulation by names or objects."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pfl.client_metrics import CLIENT_METRICS
from pfl.core.config import CHECKPOINT, Config, Execution
from pfl.core.errors import InvalidInput, OptionWarning, unknown_name
from pfl.core.files import check_writable, expanded
from pfl.core.text import first_line
from pfl.methods import METHODS
from pfl.models import MODELS, fitting
from pfl.run.errors import NotSaved
from pfl.run.progress import progress
from pfl.run.runs import Runs
from pfl.run.validation import (
    check_execution,
    check_moments,
    check_seeds,
    execution_warnings,
    validated,
    warnings_of,
)

if TYPE_CHECKING:
    from torch import nn

    from pfl.core.registry import Registry
    from pfl.data.dataset import Dataset
    from pfl.data.partition import Division, Partition
    from pfl.engine.method import Method
    from pfl.engine.result import Result
    from pfl.engine.simulation import Measure, OnRound
    from pfl.models import Shape

DEFAULT_CLIENTS = 20
NAMED = ("method", "model")
"""Fields of a configuration that are separate arguments of `simulate`."""


def simulate(
    method: str | Method | type[Method] = "fedavg",
    dataset: Any = "digits",
    partition: str | Partition = "dirichlet:0.1",
    *,
    clients: int | None = None,
    model: str | nn.Module | Callable[[Shape, int], nn.Module] | None = None,
    seeds: int | Sequence[int] = 1,
    progress: bool = True,
    execution: Execution = Execution(),
    measure: Measure | None = None,
    on_round: OnRound | None = None,
    label: str | None = None,
    **options: Any,
) -> Runs:
    """Simulate a method on a data set that is partitioned among clients.

    >>> runs = simulate("fedper", clients=5, rounds=2, epochs=1, seeds=2, progress=False)
    >>> [run.labels["seed"] for run in runs]
    [0, 1]
    >>> list(runs.to_frame("summary").columns[:4])
    ['method', 'seed', 'pooled', 'client_mean']

    Args:
        method: a name of `pfl methods`; a method with its hyperparameters, as in ``PFedSim(rho=0.3)``; or its
            class.
        dataset: a name of `pfl datasets`, a path to your own data, a data set, or samples that
            `pfl.from_samples` takes.
        partition: a rule with its options, as `pfl partitions` lists them, or a partition.
        clients: number of clients; by default that of the rule, or 20.
        model: a name of `pfl models`; a function of the images' shape and the number of classes that
            returns a new ``nn.Module``; or an ``nn.Module``, whose weights are then the initialisation for
            every seed. By default a network that fits the images.
        seeds: the number of seeds, which start from 0, or a list of seeds.
        progress: whether to show a bar.
        execution: device, backend, threads, checkpoints.
        measure: called after every round with the server and the network; must not change them.
        on_round: called after every round with the round, the number of rounds, and the newest evaluation of
            the first seed, or None. If it raises `pfl.Stop`, all seeds end after this round.
        label: name of the runs in frames and plots; by default the method's name.
        **options: fields of `Config`, for example ``rounds``, ``lr`` or ``hyperparameters``. Options belong
            to the training, like the keys of a table's ``schedule``, and ``hyperparameters`` to the method,
            like a row's ``params``: ``momentum=0.9`` is the momentum of local SGD, whereas for pFedHN
            ``hyperparameters={"momentum": 0.9}`` is that of its server. One of the ``metrics`` may also be a
            function of scores and labels.

    Returns:
        A `pfl.engine.result.Result` per seed.

    Raises:
        InvalidInput: an argument is invalid.
        NotSaved: the models could not be written; the results are in its ``results``.
    """
    if not (label is None or (isinstance(label, str) and label.strip())):
        raise InvalidInput("label", label, "a name for frames and plots, or None")
    if on_round is not None and not callable(on_round):
        accepted = "a function of the round, the number of rounds and the newest evaluation"
        raise InvalidInput("on_round", on_round, accepted)
    chosen = _seeds(seeds)
    config, data, split, execution = prepared(
        method, dataset, partition, clients, model, chosen, execution, measure, options
    )

    from pfl.run.simulate import simulate_configs

    name = label or config.method
    with bar(config) if progress else nullcontext() as shown:

        def after_round(*news: Any) -> None:
            for listener in filter(None, (shown, on_round)):
                listener(*news)

        try:
            (results,) = simulate_configs([config], data, split, chosen, execution, after_round, measure)
        except NotSaved as error:
            error.results = _labelled(error.results, name)
            raise
    return _labelled(results, name)


def prepared(
    method: str | Method | type[Method],
    dataset: Any,
    partition: str | Partition,
    clients: int | None,
    model: str | nn.Module | Callable[[Shape, int], nn.Module] | None,
    seeds: Sequence[int],
    execution: Execution,
    measure: Measure | None,
    options: Mapping[str, Any],
) -> tuple[Config, Dataset, Division, Execution]:
    """What `simulate` computes, from its arguments; warns of options that are probably unintended.

    Raises:
        InvalidInput: an argument is invalid, or the device does not exist.
    """
    check_execution(execution)
    execution = _with_home(execution)
    check_seeds(seeds)
    clients = _plain(clients)
    _check_options(method, options)
    given = options.get("hyperparameters", {})
    if not isinstance(given, Mapping):
        raise InvalidInput("hyperparameters", given, "a mapping from names to values")
    own: Mapping[str, Any] = {}
    if not isinstance(method, str):
        method, own = registered_method(method)
    options = {name: _plain(value) for name, value in options.items()}
    options["hyperparameters"] = {name: _plain(value) for name, value in {**own, **given}.items()}
    if isinstance(metrics := options.get("metrics"), list | tuple):
        options["metrics"] = _metric_names(metrics)
    named = model if isinstance(model, str) or model is None else registered_model(model)
    config = validated(Config(method=method, model=Config.model if named is None else named, **options))
    check_moments(execution, config)

    from pfl.engine.device import check_precision, resolve_device  # imports torch

    check_precision(config.precision, resolve_device(execution.device))
    if measure is not None and not callable(measure):
        raise InvalidInput("measure", measure, "a function of the server and the network")
    if measure and config.observe != Config.observe:
        raise InvalidInput(
            "measure", "a function", f"None with observe {config.observe}, which also measures"
        )
    data, split = divided(dataset, partition, clients, seeds)
    check_metrics(config.metrics, len(data.classes))
    if named is None:
        config = dataclasses.replace(config, model=fitting(data.shape))
    for line in (*warnings_of(config), *execution_warnings(execution)):
        warnings.warn(line, OptionWarning, stacklevel=3)
    if execution.checkpoint_dir:  # not in the engine: a sweep continues without checkpoints
        check_writable(Path(execution.checkpoint_dir) / CHECKPOINT, "checkpoint_dir")
    return config, data, split, execution


def _with_home(execution: Execution) -> Execution:
    """``execution`` with ~ expanded in its paths."""
    folder, file = execution.checkpoint_dir, execution.save
    return dataclasses.replace(
        execution,
        checkpoint_dir=folder and str(expanded(folder, "checkpoint_dir")),
        save=file and str(expanded(file, "save")),
    )


def _labelled(results: Sequence[Result], method: str) -> Runs:
    return Runs(
        tuple(
            dataclasses.replace(result, labels={"method": method, "seed": result.seed}) for result in results
        )
    )


def bar(config: Config) -> AbstractContextManager[OnRound]:
    """The progress of a simulation, with the accuracy that its method reports."""
    return progress(config.rounds, config.method, METHODS[config.method].headline)


def _seeds(seeds: Any) -> tuple[int, ...]:
    seeds = _plain(seeds)
    if type(seeds) is int and seeds > 0:
        seeds = range(seeds)
    elif isinstance(seeds, str) or not isinstance(seeds, Iterable):
        accepted = "a number of seeds, or a list of distinct non-negative integers"
        raise InvalidInput("seeds", seeds, accepted)
    return tuple(map(_plain, seeds))


def _plain(value: Any) -> Any:
    """``value`` as a Python number if it is a NumPy scalar, for example from ``np.linspace``."""
    return value.item() if isinstance(value, np.generic) else value


def _check_options(method: str | Method | type[Method], options: Mapping[str, Any]) -> None:
    fields = [field.name for field in dataclasses.fields(Config) if field.name not in NAMED]
    for name, value in options.items():
        if isinstance(method, str) and name not in fields and name in METHODS[method].declarations():
            raise InvalidInput(
                "option", name, f"hyperparameters={{'{name}': {value!r}}}, as it is the method's"
            )
        if name in Execution.__dataclass_fields__:
            raise InvalidInput("option", name, f"execution=Execution({name}={value!r})")
        if name not in fields:
            own = [known for known in inspect.signature(simulate).parameters if known != "options"]
            raise unknown_name("option", name, [*fields, *own])


def load_checked(dataset: str, spec: str, clients: int | None) -> tuple[Dataset, int | None]:
    """The data set and the number of clients; all that can be checked is checked before anything is read.

    Raises:
        InvalidInput: the data set, the partition or the number of clients is invalid.
    """
    from pfl.data.dataset import check_dataset, load
    from pfl.data.partition import check_partition

    clients = _clients(spec, clients)
    known = check_dataset(dataset)
    check_partition(spec, clients, *((known.samples, known.classes) if known else ()))
    return load(dataset), clients


def _clients(spec: str, clients: int | None) -> int | None:
    from pfl.data.partition import parse_spec

    return DEFAULT_CLIENTS if clients is None and not parse_spec(spec)[1].clients_from_data else clients


def divided(
    dataset: Any, partition: str | Partition, clients: int | None, seeds: Sequence[int]
) -> tuple[Dataset, Division]:
    """The data set and its partition, from the arguments of `simulate`.

    Raises:
        InvalidInput: they do not fit together.
    """
    from pfl.data.partition import Partition, check_partition, make_division
    from pfl.data.rule import check_split

    if isinstance(partition, str):
        if isinstance(dataset, str | Path):
            data, clients = load_checked(str(dataset), partition, clients)
        else:
            data, clients = known_data(dataset), _clients(partition, clients)
            check_partition(partition, clients, len(data.labels), len(data.classes))
        return data, make_division(partition, data, clients, seeds)
    if not isinstance(partition, Partition):
        raise InvalidInput("partition", partition, "a rule of `pfl partitions`, or a partition")
    if clients not in (None, partition.clients):
        raise InvalidInput("clients", clients, f"{partition.clients}, as the partition has")
    data = known_data(dataset)
    if partition.data_checksum != data.checksum:
        raise InvalidInput("partition", partition.spec, f"a partition of {data.name}, not of other data")
    check_split("partition", partition.train, partition.test, None, len(data.labels))
    return data, partition


def known_data(dataset: Any) -> Dataset:
    """The data set, from any form that `simulate` accepts."""
    from pfl.data.dataset import Dataset, load
    from pfl.data.samples import from_samples

    if isinstance(dataset, str | Path):
        return load(str(dataset))
    return dataset if isinstance(dataset, Dataset) else from_samples(dataset)


def registered_method(method: Method | type[Method]) -> tuple[str, dict[str, Any]]:
    """The name of a method, registered if it has none yet, and its hyperparameters."""
    from pfl.engine.method import Method

    kind = method if isinstance(method, type) else type(method)
    if not issubclass(kind, Method):
        raise InvalidInput("method", method, "a name of `pfl methods`, a method or its class")
    own = {} if isinstance(method, type) else method.hyperparameters()
    return registered_name(METHODS, kind, kind.__name__.lower()), own


def registered_model(model: nn.Module | Callable[[Shape, int], nn.Module]) -> str:
    """The name of a network or its builder, registered if it has none yet."""
    from torch import nn

    if isinstance(model, nn.Module):
        name = type(model).__name__
        MODELS.add(name, lambda *_: copy.deepcopy(model))
        return name
    if not callable(model):
        raise InvalidInput(
            "model", model, "a name of `pfl models`, an nn.Module or a function that makes one"
        )
    return registered_name(MODELS, model)


def _metric_names(metrics: Sequence[Any]) -> list[Any]:
    names = [registered_name(CLIENT_METRICS, metric) if callable(metric) else metric for metric in metrics]
    for name, metric in zip(names, metrics, strict=True):
        if callable(metric) and CLIENT_METRICS[name] is not metric:  # a later one replaced it
            raise InvalidInput("metrics", name, "functions with distinct names")
    return names


def registered_name(registry: Registry[Any], component: Any, name: str | None = None) -> str:
    """The name of a component: that of its file, or else ``name`` or its own, which is then registered."""
    file = str(component.__module__).removeprefix(f"{registry.package}.")  # None for executed code
    if file in registry and registry[file] is component:
        return file
    own: str = getattr(component, "__name__", type(component).__name__) if name is None else name
    registry.add(own, component)
    return own


def check_metrics(names: Sequence[str], classes: int) -> None:
    """Try metrics on random scores, for all classes and for a single one, as a client may have.

    Raises:
        InvalidInput: a metric cannot be loaded, raises an error, or does not return numbers of one shape.
    """
    labels = np.arange(min(10 * classes, 1000)) % classes
    scores = np.random.default_rng(0).normal(size=(len(labels), classes))
    for name in names:
        metric, shapes = CLIENT_METRICS[name], set()
        for whom, own in (("", labels), (", or NaN for a client with a single class", labels[labels == 0])):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    value = metric(scores[: len(own)], own)
                shapes.add(np.asarray(value, dtype=np.float64).shape)
                if value is None:
                    raise ValueError("None, which would be NaN")
                if len(shapes) > 1:
                    raise ValueError("an array of another shape")
            except (Exception, SystemExit) as error:  # whatever a user's function raises
                why = f"{type(error).__name__}: {first_line(error)}"
                accepted = f"a function of scores and labels that returns numbers{whom} ({why})"
                raise InvalidInput("metrics", name, accepted) from error
