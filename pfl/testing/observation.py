"""Observation of a method: a few rounds on a small federation, seen from the server.

`pfl methods --markdown` prints it, so that the documentation agrees with the code.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from pfl.core.config import Config
from pfl.core.rng import generator
from pfl.data.dataset import Dataset
from pfl.data.federation import Federation
from pfl.data.partition import Partition
from pfl.engine.device import threads
from pfl.engine.loop import LoopBackend
from pfl.engine.mixing import Average, DeltaMix, Dense, Identity, Masked, Sum
from pfl.engine.server import Server
from pfl.run.simulate import make_simulation
from pfl.run.validation import validated
from pfl.testing.synthetic import make_dataset

CLIENTS, ROUNDS, SAMPLES = 6, 4, 24

KINDS = {
    Identity: "personal",
    torch.Tensor: "server-generated",
    Average: "average",
    Dense: "personalised aggregation",
    DeltaMix: "personalised aggregation of changes",
    Masked: "average and personalised aggregation, by element",
    Sum: "sum of mixings",
}


@dataclass(frozen=True)
class Observation:
    """What a method mixes, stores and sends.

    Attributes:
        mixed: kinds of mixing of each group, in the order of the rounds, as in {"extractor": ["average"]}.
        state: names of the method's own tensors: the server's, the clients', and what is sent to them.
        down, up: scalars to and from a participant in the last round, relative to the size of the model.
    """

    mixed: dict[str, list[str]]
    state: list[str]
    down: float
    up: float


def observe(method: str) -> Observation:
    """Observe ``method`` with its default hyperparameters and LeNet-5 with batch norm."""
    config = validated(
        Config(
            method=method,
            model="lenet5_bn",
            participation=0.5,
            rounds=ROUNDS,
            epochs=1,
            batch_size=8,
            eval_every=1,
        )
    )
    federation = Federation(*_data(), torch.device("cpu"), torch.float32)
    simulation = make_simulation([config], federation, (0,), LoopBackend())
    run = simulation.runs[0]
    groups = [name for name, child in simulation.program.net.named_children() if list(child.parameters())]
    mixed: dict[str, list[str]] = {group: [] for group in groups}
    before = (0, 0)
    with threads(1):
        for _ in range(ROUNDS):
            before = (run.bytes_down, run.bytes_up)
            simulation.advance()
            for group in groups:
                kind = _kind(run.server, group)
                if not mixed[group] or mixed[group][-1] != kind:
                    mixed[group].append(kind)
    server = run.server
    # Entries without traffic are computed by the clients themselves.
    received = [name for name in server.sent if server.traffic.down(name)]
    model = 4 * len(server.participants) * server.scalars("model")
    return Observation(
        mixed,
        [f"{name} (server)" for name in server.state]
        + [f"{name} (client)" for name in server.client_state]
        + [f"{name} (sent)" for name in received]
        + [f"{name} (client)" for name in server.sent if name not in received],
        (run.bytes_down - before[0]) / model,
        (run.bytes_up - before[1]) / model,
    )


def _kind(server: Server, group: str) -> str:
    """How this round's mixing treated a group's parameters; batch norm listed separately if it differs."""
    norm = set(server.groups["bn_affine"])
    names = [name for name in server.groups[group] if name in server.groups.trainable]
    kinds = {KINDS[type(server.matrices[name])] for name in names if name not in norm}
    text = " / ".join(sorted(kinds))
    otherwise = {KINDS[type(server.matrices[name])] for name in names if name in norm} - kinds
    return text + (f" (batch norm {' / '.join(sorted(otherwise))})" if otherwise else "")


def _data() -> tuple[Dataset, Partition]:
    """Clients of equal size, with all classes."""
    total = CLIENTS * SAMPLES
    dataset = make_dataset(samples=total)
    parts = np.split(generator(0, "observation").permutation(total), CLIENTS)
    train, test = ([part[s] for part in parts] for s in (slice(0, 16), slice(16, None)))
    return dataset, Partition("file:noise", tuple(train), tuple(test), "")
