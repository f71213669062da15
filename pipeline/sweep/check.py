"""Validation of tables before any compute."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence, Set

from pfl.core.config import Precision
from pfl.core.cores import cores
from pfl.core.errors import InvalidInput, check_names
from pfl.core.lazy import torch
from pfl.core.text import amount
from pfl.data.dataset import check_dataset
from pfl.data.partition import check_partition
from pfl.run.api import check_metrics
from pfl.run.errors import cause_of
from pfl.run.validation import warnings_of
from pipeline.columns import COLUMNS, Column
from pipeline.spec.cells import Cell, by_partition, cells
from pipeline.spec.fingerprints import images
from pipeline.spec.imported_trials import check_prior
from pipeline.spec.params import load_part, selected_tables
from pipeline.spec.paths import manifest_file, partitions_folder, results_folder, table_file
from pipeline.spec.search_space import check_space, searched
from pipeline.spec.table import Resources, Table, load_table, printed_cells
from pipeline.spec.yaml import located
from pipeline.store.workspace import check_folder
from pipeline.sweep.cluster import gpus_of, slots_of
from pipeline.sweep.dry_run import DryRun
from pipeline.sweep.environment import check_environment
from pipeline.sweep.estimate import Extent
from pipeline.sweep.search import plan_of


def check_tables(names: Sequence[str] | None = None) -> list[str]:
    """Check the tables ``names``, by default those in `params.yaml`; return a line per table and warning.

    Only the part of a table that `params.yaml` selects is checked.

    Raises:
        InvalidInput: for the first mistake.
    """
    chosen = list(names) if names else selected_tables()
    warnings = check_environment()
    for name, column in COLUMNS.items():
        if not isinstance(column, Column):
            raise InvalidInput("report column", name, f"a Column of that name, not {column!r}")
    reports = [_check(name, load_table(name), load_part(name)) for name in chosen]
    for name in chosen:
        for folder in (manifest_file(name).parent, partitions_folder(name), results_folder(name)):
            check_folder(str(folder), folder)
    return [*(line for lines in reports for line in lines), *warnings]


def check_runs(name: str, table: Table, simulates: bool = True, whole: Table | None = None) -> list[str]:
    """Check the runs of a table or a figure without downloads; return the warnings.

    A data set of the user's own is read for this.

    Args:
        whole: the table that ``table`` is a part of.
        simulates: False for a figure that shows only partitions.

    Raises:
        InvalidInput: for the first mistake.
    """
    file = str(table_file(name))
    wanted = cells(name, table)
    configs = [cell.config for cell in wanted]
    check_searched(name, table, whole or table)
    for cell in by_partition(wanted).values():
        own = cell.partition_name != cell.setting
        with located(f"{file}: cell {cell.id}" if own else f"{file}: setting {cell.setting}"):
            definition = check_dataset(cell.dataset)
            known = (definition.samples, definition.classes) if definition else (None, None)
            check_partition(cell.partition, cell.clients, *known)
    met: set[tuple[str, ...]] = set()
    for cell in wanted:
        with located(f"{file}: cell {cell.id}"):
            _check_reported(cell)
            if simulates and _setup(cell) not in met:
                _check_setup(cell)
            met.add(_setup(cell))
    with located(file):
        _check_resources(table)
        check_precisions({config.precision for config in configs}, table.resources)
    return [*{text: None for config in configs for text in warnings_of(config)}]


def _check(name: str, whole: Table, table: Table) -> list[str]:
    warnings = check_runs(name, table, whole=whole)
    with located(str(table_file(name))):
        _check_printed(table)
        _check_quantities(table, cells(name, table))
    return [f"{name}: {Extent.of(name, table).text}", *(f"{name}: {text}" for text in warnings)]


def _check_printed(table: Table) -> None:
    """Check that each cell is compared with at most one printed cell, of the quantity that it reports."""
    rows = {row.id: row for row in table.methods}
    for (column, row), printed in printed_cells(table).items():
        for setting in [column] if column in table.settings else table.settings:
            ours = table.evaluation.override(table.settings[setting].evaluation, rows[row].evaluation)
            if ours.is_accuracy:
                same, wanted = printed.is_accuracy, "an accuracy"
            else:
                same, wanted = printed.metric == ours.metric, ours.metric
            if not same:
                accepted = f"{wanted}, as evaluation.metric is {ours.metric}"
                raise InvalidInput(f"cell {column}/{row}: published.metric", printed.metric, accepted)


def _check_quantities(table: Table, wanted: Sequence[Cell]) -> None:
    """Check that each average, and each comparison of a claim, is over numbers of one quantity."""
    quantities = {
        (cell.setting, cell.row): "accuracy" if cell.evaluation.is_accuracy else cell.evaluation.metric
        for cell in wanted
    }
    together = [
        ("claims", part.compared(table.settings, table.row_labels))
        for claim in table.claims
        for part in claim.parts(list(table.settings))
    ]
    if table.average:
        together += [("average", {(name, row) for name in table.settings}) for row in table.row_labels]
    for key, places in together:
        compared = sorted({quantities[place] for place in places if place in quantities})
        if len(compared) > 1:
            accepted = "numbers of one quantity, as evaluation.metric names it"
            raise InvalidInput(key, " and ".join(compared), accepted)


def check_searched(name: str, table: Table, whole: Table) -> None:
    """Check the searches of ``table``: ranges, budgets and imported trials.

    Some row of the ``whole`` table must have the parameter of each range.

    Raises:
        InvalidInput: for the first invalid range, budget or trial.
    """
    file = table_file(name)
    if table.search:
        with located(f"{file}: search.space"):
            check_space(table.search, {row.method for row in whole.methods if not row.search})
    for row in table.methods:
        if row.search:
            with located(f"{file}: row {row.id}: search.space"):
                check_space(row.search, [row.method])
    for cell in cells(name, table):
        if cell.search:
            with located(f"{file}: cell {cell.id}"):
                searched(cell.config, cell.search)
                plan_of(cell.config, cell.search, table.seeds)
    if whole.searches:
        check_prior(name, cells(name, whole))


def _check_reported(cell: Cell) -> None:
    """Check that the reported clients exist, and that a search has an accuracy to maximise."""
    evaluation = cell.evaluation
    if cell.clients:
        evaluation.check_clients(cell.clients)
    if evaluation.clients and cell.config.unseen:
        accepted = "0 with evaluation.clients, because each seed leaves out different clients"
        raise InvalidInput("schedule.unseen", cell.config.unseen, accepted)
    if evaluation.metric == "similarity":
        if cell.config.observe != "similarities":
            accepted = "similarities, because evaluation.metric is similarity"
            raise InvalidInput("schedule.observe", cell.config.observe, accepted)
        if evaluation.measure == "mdb" and cell.config.participation < 1:
            accepted = "1, as evaluation.measure mdb compares all clients' last updates"
            raise InvalidInput("schedule.participation", cell.config.participation, accepted)
        if cell.config.unseen:
            accepted = "0 for evaluation.metric similarity, because each seed leaves out different clients"
            raise InvalidInput("schedule.unseen", cell.config.unseen, accepted)
    if cell.search and not evaluation.is_accuracy:
        raise InvalidInput("evaluation.metric", evaluation.metric, "an accuracy, as there is a search")


def _setup(cell: Cell) -> tuple[str, ...]:
    """What `_check_setup` depends on."""
    evaluation = cell.evaluation
    return str(cell.config), cell.dataset, evaluation.moment, str(evaluation.group), evaluation.measure


def _check_setup(cell: Cell) -> None:
    """Check that the network accepts the images, that metrics return numbers, and that the method has the
    reported moment and group."""
    from pfl.engine.evaluation import moments

    shape, classes = images(cell.dataset)
    small = dataclasses.replace(cell.config, batch_size=1)  # determines the number of synthetic images
    try:
        with located(f"{cell.config.model} on {cell.dataset}"):
            run = DryRun(small, shape, classes).run
    except InvalidInput:
        raise
    except (Exception, SystemExit) as error:  # from a third-party network or method, or out of memory
        accepted = f"hyperparameters and a network that go together ({cause_of(error)})"
        raise InvalidInput("method", cell.config.method, accepted) from None
    check_metrics(cell.config.metrics, classes)
    known = ("headline", *moments(run.method, run.server))
    check_names("evaluation.moment", [cell.evaluation.moment], known)
    normalised = any(name.endswith("running_mean") for name in run.server.store.tensors)
    if cell.evaluation.metric == "similarity" and cell.evaluation.measure == "wdb" and not normalised:
        raise InvalidInput("model", cell.config.model, "a network with batch norm, as wdb is reported")
    if cell.evaluation.group:
        check_names("evaluation.group", [cell.evaluation.group], run.method.client_groups(run.server))


def _check_resources(table: Table) -> None:
    """Check that this machine has what one trial needs."""
    if os.environ.get("RAY_ADDRESS"):  # a cluster's machines are different ones
        return
    if table.resources.cpus > cores():
        accepted = f"at most {cores()}, the cores of this machine"
        raise InvalidInput("resources.cpus", table.resources.cpus, accepted)
    gpus = table.resources.gpus
    if isinstance(gpus, str) or gpus == 0:
        return
    if torch.cuda.device_count() < gpus:
        there = amount(torch.cuda.device_count(), "CUDA device")
        raise InvalidInput("resources.gpus", gpus, f"auto or 0, as this machine has {there}")


def check_precisions(precisions: Set[Precision], resources: Resources) -> None:
    """Check that this machine supports the trials' precisions; in a cluster each worker checks its own.

    Raises:
        InvalidInput: a precision is not supported.
    """
    if precisions <= {"fp32"} or os.environ.get("RAY_ADDRESS"):
        return
    from pfl.engine.device import check_precision

    for precision in sorted(precisions):
        check_precision(precision, device_of(resources))


def device_of(resources: Resources) -> torch.device:
    """The device on which this machine runs a trial: a GPU if there is one for it."""
    from pfl.engine.device import resolve_device

    there = torch.cuda.device_count()
    return resolve_device("cuda" if there and gpus_of(resources, there) else "cpu")


def slots_here(resources: Resources) -> int:
    """Number of parallel trials on this machine alone; at least one."""
    gpus = torch.cuda.device_count()
    here = {"CPU": cores(), "GPU": gpus}
    try:
        return slots_of(resources.cpus, gpus_of(resources, gpus), [here])
    except InvalidInput:  # a cluster may have what this machine lacks
        return 1
