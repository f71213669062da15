"""Every pinned table can be run as it stands: its data divide, and its rows train."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest

from pfl.core.config import Config
from pfl.data.dataset import Dataset
from pfl.data.datasets import DATASETS
from pfl.data.partition import Partition, make_partition
from pfl.testing.synthetic import make_dataset
from pipeline.spec.cells import cells
from pipeline.spec.paths import table_names
from pipeline.spec.table import load_table
from tests.conftest import simulate

WRITERS = 3597
DOMAINS = 6
CLIENTS, TRAIN, TEST = 3, 4, 2
TRAINED = [name for name in table_names() if name not in ("methods-cifar10", "leaderboard", "natural")]
"""Other tests train every method with the networks of those that are left out: the conformance tests, and for
"natural" `tests/engine/test_other_samples.py`, and with new clients `tests/engine/test_unseen.py`."""


@cache
def labels_of(dataset: str) -> Dataset:
    """As many labels as the data set has, all classes equally frequent, and images that take no memory."""
    known = DATASETS[dataset]
    samples = known.samples or 20 * WRITERS
    number = np.arange(samples)
    return make_dataset(
        known.shape,
        known.classes,
        samples,
        blank=True,
        n_train=samples * 5 // 6,
        columns={
            **dict.fromkeys(("artist", "school", "subject"), number // 40),
            "writer": number % WRITERS,
            "domain": number // known.classes % DOMAINS,
        },
    )


@pytest.mark.parametrize("table", table_names())
def test_every_pinned_partition_can_be_made(table):
    pinned = {(cell.dataset, cell.partition, cell.clients) for cell in cells(table, load_table(table))}
    for dataset, partition, clients in pinned:
        drawn = make_partition(partition, labels_of(dataset), clients, run_seed=0)
        assert clients is None or drawn.clients == clients


@cache
def configurations() -> dict[str, list[tuple[Config, str]]]:
    """Each configuration once for each shape of samples, for two rounds, with a data set: at the first table
    that has it. Of those that differ only in numbers, it is the first."""
    short = {"rounds": 2, "epochs": 1, "participation": 1.0, "batch_size": TRAIN, "eval_every": 2}
    known = set()
    configs = defaultdict(list)
    for table in TRAINED:
        for cell in cells(table, load_table(table)):
            # Whatever hardware runs the tests.
            config = dataclasses.replace(cell.config, lr=0.01, precision="fp32", **short)
            key = str(_choices(vars(config))), DATASETS[cell.dataset].shape
            if key not in known:
                known.add(key)
                configs[table].append((config, cell.dataset))
    return configs


def _choices(value: Any) -> Any:
    """A configuration of which every number is positive or not."""
    if isinstance(value, Mapping):
        return {name: _choices(part) for name, part in value.items()}
    return value > 0 if type(value) in (int, float) else value


@pytest.mark.slow
@pytest.mark.parametrize("table", TRAINED)
def test_every_row_trains_two_rounds_with_its_network(table):
    if table not in configurations():
        pytest.skip("other tables have its configurations")
    index = np.arange(CLIENTS * (TRAIN + TEST)).reshape(CLIENTS, -1)
    partition = Partition("file:tiny.json", tuple(index[:, :TRAIN]), tuple(index[:, TRAIN:]), "0" * 64)
    for config, dataset in configurations()[table]:
        known = DATASETS[dataset]
        data = make_dataset(known.shape, known.classes, CLIENTS * (TRAIN + TEST))
        (result,) = simulate(config, data, dataclasses.replace(partition, data_checksum=data.checksum))
        assert [entry["round"] for entry in result.metrics.to_json()["rounds"]] == [2]
