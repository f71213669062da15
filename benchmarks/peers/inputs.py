"""The inputs of every script: images, partition, participants and first weights, as this project has them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.peers.scripts.work import network
from benchmarks.workload import Workload

WORKLOAD = Workload(partition="dirichlet:0.1,min=10,test=0.5,seed=15", eval_every=3)
"""With this seed, no client's last batch has a single sample, which only some of the frameworks leave out."""


def write_inputs(folder: Path, workload: Workload, models: Sequence[str]) -> None:
    """Write what `benchmarks.peers.scripts.work.Work` reads."""
    data, split = workload.data, workload.split
    np.save(folder / "images.npy", data.images)
    np.save(folder / "labels.npy", data.labels)
    for model in models:
        simulation = replace(workload, model=model).simulation()
        torch.save(first_weights(model, simulation.program.net), folder / f"{model}.pt")
    server = simulation.runs[0].server
    participants = []
    for server.round in range(1, workload.rounds + 1):
        participants.append(server.sample_clients().tolist())
    partition = {
        "train": [indices.tolist() for indices in split.train],
        "test": [indices.tolist() for indices in split.test],
        "participants": participants,
        "mean": data.mean,
        "std": data.std,
    }
    (folder / "partition.json").write_text(json.dumps(partition), encoding="utf-8")


def first_weights(model: str, ours: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Our network's tensors under their names in a plain network with the same order of layers."""
    state = network(model).state_dict()
    floats = [name for name, tensor in state.items() if tensor.is_floating_point()]
    return state | dict(zip(floats, ours.state_dict().values(), strict=True))
