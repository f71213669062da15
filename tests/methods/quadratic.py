"""Quadratic losses of a client's only parameter, so that local steps can be computed by hand."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from pfl.engine.client import Batch, Client
from tests.methods import toy

NAME = "head.weight"


def client(w: list[float], **state: list[float]) -> Client:
    """A client that trains w (1, d); ``state``: tensors of the same shape by name, each under `NAME`."""
    rows = {name: {NAME: torch.tensor([value], dtype=torch.float64)} for name, value in state.items()}
    participant = toy.client([w], rows)
    tensors = {name: tensor.detach() for name, tensor in participant.params.items()}
    return dataclasses.replace(participant, params=tensors, start=tensors, trained=(NAME,))


def batch(matrix: list[list[float]], centre: list[float]) -> Batch:
    """The "data" of the loss (w - centre)^T matrix (w - centre) / 2."""
    return toy.batch([*matrix, centre], [0] * (len(matrix) + 1))


def loss(client: Client, batch: Batch) -> Tensor:
    *matrix, centre = batch.x.flatten(1)
    away = client.params[NAME][0] - centre
    return away @ torch.stack(matrix) @ away / 2
