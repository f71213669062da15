"""Simulations by name: look up methods and networks, validate, choose a device."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pfl.analysis.measures import similarities
from pfl.client_metrics import CLIENT_METRICS
from pfl.core import memory
from pfl.core.config import Config, Execution
from pfl.core.errors import InvalidInput
from pfl.core.files import check_writable
from pfl.data.dataset import Dataset
from pfl.data.federation import Federation
from pfl.data.partition import Division, Partition, of_seed
from pfl.engine.device import backend_for, check_precision, keep_compiled, numerics, resolve_device, threads
from pfl.engine.local_training import Backend
from pfl.engine.model_file import save_models
from pfl.engine.result import Result
from pfl.engine.simulation import Measure, OnRound, Simulation
from pfl.engine.unseen import AllClients, seen_first
from pfl.methods import METHODS
from pfl.models import MODELS, build
from pfl.run.errors import saving
from pfl.run.fingerprint import name_of, plugin_digests
from pfl.run.validation import (
    check_execution,
    check_moments,
    check_pause,
    check_seeds,
    non_defaults,
    stackable,
    validated,
)

log = logging.getLogger(__name__)


def simulate_configs(
    configs: Sequence[Config],
    dataset: Dataset,
    partition: Division,
    seeds: Sequence[int] = (0,),
    execution: Execution = Execution(),
    on_round: OnRound | None = None,
    measure: Measure | None = None,
    wait: bool = False,
) -> list[list[Result]]:
    """Simulate a federation for every configuration and every seed, all in lockstep.

    >>> dataset = pfl.load("digits")
    >>> partition = pfl.make_partition("dirichlet:0.5", dataset, clients=4)
    >>> configs = [Config("fedper", rounds=2, epochs=1, lr=lr) for lr in (0.05, 0.1)]
    >>> first, second = simulate_configs(configs, dataset, partition, seeds=(0, 1))
    >>> [result.seed for result in first]
    [0, 1]

    The stacked backend trains the clients of all of them at once if their local programs have the same
    structure; results are those of separate simulations, up to rounding. On one machine, backend and number
    of threads, results depend only on the configurations, the data, the partition and the seeds, whether or
    not the simulation is interrupted.

    Args:
        configs: what to compute; validated here. They differ only in the learning rate, real-valued
            hyperparameters, and those that only the adaptation before an evaluation reads, which share one
            training (`pfl.run.validation.stackable`).
        partition: the samples of each client, for all seeds or by seed; with ``validation``, the clients are
            evaluated on that share of their training samples.
        seeds: each determines initialisation, participants and batches of one simulation per configuration.
        execution: device, backend, threads, checkpoints. ``save`` requires a single configuration.
        on_round: called after every round, for the first configuration.
        measure: called with every seed's server after every round; must not change it. By default the
            measure that ``observe`` names.
        wait: if the disk is full, wait for space for the models instead of raising.

    Returns:
        One result per seed, for each configuration.

    Raises:
        InvalidInput: a configuration, the seeds or the execution is invalid, the configurations differ in
            more than that, or the device does not exist or does not have the precision.
        NotSaved: the models could not be written; the results are in its ``results``.
    """
    check_execution(execution)
    check_seeds(seeds)
    configs = [validated(config) for config in configs]
    if not configs or not stackable(configs):
        names = ", ".join(config.method for config in configs) or "none"
        accepted = "one or more that differ in lr, real-valued hyperparameters and the adaptation only"
        raise InvalidInput("configurations", names, accepted)
    if execution.save and len(configs) > 1:
        raise InvalidInput("save", execution.save, "None, because several configurations run together")
    config = configs[0]
    if missing := [seed for seed in seeds if isinstance(partition, Mapping) and seed not in partition]:
        raise InvalidInput("partition", f"none for seed {missing[0]}", "a partition for each seed")
    partitions = [of_seed(partition, seed) for seed in seeds]
    for own in partitions:
        if own.data_checksum != dataset.checksum:
            accepted = f"a partition of {dataset.name}, not of other data"
            raise InvalidInput("partition", own.spec, accepted)
    check_pause(execution, config)
    for each in configs:
        check_moments(execution, each)
    if execution.save:
        check_writable(Path(execution.save), "save")
    identity = _identity(configs, dataset, execution) if execution.checkpoint_dir else ()
    device = resolve_device(execution.device)
    check_precision(config.precision, device)
    if execution.threads > 1 and device.type == "cpu":
        slower = "the fused kernels are single-threaded"
        log.warning("threads %d: %s; workers use several cores faster", execution.threads, slower)

    def visible(part: Partition) -> Partition:
        """The part of a partition that a simulation may read."""
        return part.with_validation(config.validation, dataset.labels) if config.validation else part

    orders = []
    if config.unseen:
        for own in partitions:  # in the order of the partition, so that an error names the right client
            part = visible(own)
            if config.patience:
                part.with_validation(config.stop_share, dataset.labels, "stop_share")
        orders = [seen_first(own, config.unseen, seed) for own, seed in zip(partitions, seeds, strict=True)]
        partitions = [order.trained for order in orders]
    with numerics(config.precision), threads(execution.threads):
        dtype = getattr(torch, config.dtype)
        held_out = config.stop_share if config.patience else 0.0
        first = partitions[0]
        federation = Federation(dataset, visible(first), device, dtype, config.input_scale, held_out)
        federations = [federation if own is first else federation.divided(visible(own)) for own in partitions]
        all_clients = [AllClients(federation.divided(visible(order.partition)), order) for order in orders]
        backend = backend_for(execution, device)
        simulation = make_simulation(
            configs, federations, seeds, backend, measure, execution.moments, all_clients
        )
        results = simulation.run(execution, on_round, identity)
        if execution.save:
            plugins = plugin_digests(config.method, config.model)
            with saving(execution.save, results):
                save_models(Path(execution.save), dataset, simulation.runs, plugins, wait)
    return [results[i : i + len(seeds)] for i in range(0, len(results), len(seeds))]


def make_simulation(
    configs: Sequence[Config],
    federation: Federation | Sequence[Federation],
    seeds: Sequence[int],
    backend: Backend,
    measure: Measure | None = None,
    moments: Sequence[str] = (),
    all_clients: Sequence[AllClients] = (),
) -> Simulation:
    """The simulation of validated ``configs`` before its first round; see `Simulation` for the arguments.

    Args:
        federation: the clients' data, one federation for all seeds or one per seed.

    Raises:
        InvalidInput: augmentation is on, but the samples are not images.
    """
    federations = [federation] * len(seeds) if isinstance(federation, Federation) else federation
    augmentation = configs[0].augmentation
    if augmentation != Config.augmentation and not federations[0].is_images:
        raise InvalidInput("augmentation", augmentation, "none, because the samples are not 8-bit images")
    methods = [METHODS[config.method].from_dict(config.hyperparameters) for config in configs]
    if measure is None and configs[0].observe == "similarities":
        measure = similarities
    network = partial(build, configs[0].model)
    memory.keep_freed()
    keep_compiled()
    return Simulation(configs, methods, network, federations, seeds, backend, measure, moments, all_clients)


def _identity(configs: Sequence[Config], dataset: Dataset, execution: Execution) -> list[Any]:
    """Identifies the code and the configurations of a checkpoint, except the number of rounds, which may
    grow. A new option does not change it.

    Raises:
        InvalidInput: the method, the network or a metric was given as an object, without a name of its code.
    """
    method, model = configs[0].method, configs[0].model
    added = METHODS.was_added(method) or MODELS.was_added(model)
    if execution.code is None and (added or any(map(CLIENT_METRICS.was_added, configs[0].metrics))):
        accepted = f"execution.code as well, a name for the code of {method} on {model} (one is an object)"
        raise InvalidInput("checkpoint_dir", execution.checkpoint_dir, accepted)
    code = execution.code or name_of(configs[0], dataset.shape, len(dataset.classes))
    usual = Config.rounds
    return [code, [non_defaults({**config.to_dict(), "rounds": usual}) for config in configs]]
