"""The file of a simulation's final models."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from pfl.core.errors import InvalidInput
from pfl.core.text import first_line
from pfl.data.dataset import Dataset
from pfl.engine import checkpoint
from pfl.engine.evaluation import evaluated_models, parts
from pfl.engine.seed_run import SeedRun

FORMAT = "pfl models, version 2"


def save_models(
    path: Path, dataset: Dataset, runs: Sequence[SeedRun], plugins: Mapping[str, str], wait: bool = False
) -> None:
    """Write the current models of ``runs``, seeds of one configuration, and everything needed to use them.

    Args:
        plugins: the digests of the method and the network, by component, if they come from plugins.
        wait: if the disk is full, wait for free space instead of raising.

    Raises:
        OSError: the file cannot be written.
    """
    content = {
        "format": FORMAT,
        "config": runs[0].server.config.to_dict(),
        "plugins": dict(plugins),
        "data": {
            "name": dataset.name,
            "checksum": dataset.checksum,
            "shape": tuple(dataset.shape),
            "dtype": dataset.images.dtype.name,
            "tokens": dataset.tokens,
            "classes": dataset.classes,
            "mean": tuple(map(float, dataset.mean)),
            "std": tuple(map(float, dataset.std)),
        },
        "seeds": {run.server.seed: _content(run) for run in runs},
    }
    checkpoint.write(path, content, wait)


def read_models(path: Path) -> dict[str, Any]:
    """The content of a file that `save_models` wrote; no code in it is run.

    Returns:
        ``config``, ``data``, ``plugins``, and under ``seeds``, for each seed: ``round``;
        ``tensors``, the stored models by name, (clients, *shape), or (1, *shape) if all clients share one;
        ``personal``, in the same form, those that differ in the models evaluated at the method's headline;
        ``client_state``; ``train``, the clients' numbers of training samples, and ``label_counts``, the
        same by class (clients, classes); and ``ids``, the index of each client in the partition, those of
        unseen clients at the end.

    Raises:
        InvalidInput: there is no such file, it is damaged, or it is of another kind or version.
    """
    accepted = "a file of models that `pfl run --save` or Execution.save wrote"
    try:
        with zipfile.ZipFile(path) as archive:  # torch loads wrong numbers from a damaged file
            if archive.testzip():
                raise zipfile.BadZipFile("it is damaged")
        content = torch.load(path, map_location="cpu", weights_only=True)
        written = content["format"]
    except Exception as error:  # files of other kinds raise many types of errors
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise InvalidInput("models", str(path), f"{accepted} ({reason})") from None
    if written != FORMAT:
        raise InvalidInput("models", str(path), f"{accepted}, of the form {FORMAT!r}, not {written!r}")
    return dict(content)


def _content(run: SeedRun) -> dict[str, Any]:
    server, method = run.server, run.method
    stored = server.store.tensors
    models = [evaluated_models(server, method, method.headline, part) for part in parts(server)]
    personal = {name: torch.cat([part[name] for part in models]) for name in models[0]}
    return {
        "round": server.round,
        "tensors": _in_memory(stored),
        "personal": _in_memory(
            {name: stack for name, stack in personal.items() if not bool((stack == stored[name]).all())}
        ),
        "client_state": _in_memory(server.client_state),
        "train": [len(samples) for samples in server.federation.train],
        "label_counts": server.label_counts.cpu(),
        "ids": list(run.ids),
    }


def _in_memory(tensors: Mapping[str, Any]) -> dict[str, Any]:
    on_host: dict[str, Any] = tree_map(Tensor.cpu, dict(tensors))
    return on_host
