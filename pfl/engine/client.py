"""The interface of local programs: one client and one batch. Both backends run the same program."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pfl.core.errors import InvalidInput
from pfl.engine.groups import bind
from pfl.engine.returned import check_scores, check_tensor
from pfl.engine.state import State
from pfl.kernels import gpu, gpu_layers
from pfl.models._layers import BatchNorm, Dropout
from pfl.models._network import Network


@dataclass(frozen=True)
class Batch:
    """A minibatch.

    >>> batch = Batch(x=torch.zeros(2, 1, 8, 8), y=torch.tensor([3, 4]))
    >>> batch.sum(torch.tensor([1.0, 2.0]))
    tensor(3.)

    Attributes:
        x: images (B, C, H, W), scaled as the configuration says.
        y: labels (B,).
        rows: (B,), 1 for a real row and 0 for padding, which repeats a sample of the client; `None` means
            that all rows are real.
        noise: uniform random numbers for the step, as many as its phase requests.
        key: () int64, unique for each client and step; it decides which activations dropout drops.
    """

    x: Tensor
    y: Tensor
    rows: Tensor | None = None
    noise: Tensor | None = None
    key: Tensor | None = None

    def sum(self, values: Tensor) -> Tensor:
        """The sum of per-sample ``values`` (B, ...) over the real rows."""
        if self.rows is None:
            return values.sum(0)
        padding = self.rows.view(-1, *[1] * (values.dim() - 1)) == 0
        return values.masked_fill(padding, 0).sum(0)  # not a product, as 0 times infinity is NaN

    def mean(self, values: Tensor) -> Tensor:
        """The mean of per-sample ``values`` (B,) over the real rows."""
        return values.mean() if self.rows is None else self.sum(values) / self.rows.sum()

    def cross_entropy(self, logits: Tensor) -> Tensor:
        """Mean cross-entropy of ``logits`` (B, classes)."""
        check_scores("logits", logits, len(self.y))
        if gpu.usable(logits):
            return gpu_layers.cross_entropy(logits, self.y, self.rows)
        if self.rows is None:
            return F.cross_entropy(logits, self.y)
        return self.mean(F.cross_entropy(logits, self.y, reduction="none"))


Loss = Callable[["Client", Batch], Tensor]
"""The scalar to minimise on one batch, for one client."""


def scalar(loss: Loss, client: Client, batch: Batch) -> Tensor:
    """The validated value of ``loss``.

    Raises:
        InvalidInput: it is not a scalar that depends on the parameters in training.
    """
    value: Tensor = loss(client, batch)
    if isinstance(value, Tensor) and value.shape == () and value.requires_grad:
        return value
    where = getattr(loss, "__qualname__", "loss").rpartition("<locals>.")[2]
    check_tensor(where, value, ())
    raise InvalidInput(where, "a constant", "a loss that depends on the parameters in training")


@dataclass(frozen=True)
class Client:
    """A client in its local program; in the stacked backend, one slice of every stack.

    >>> class Proximal(pfl.Method):
    ...     def loss(self, client, batch):
    ...         moved = [client.params[name] - client.start[name] for name in client.trained]
    ...         return super().loss(client, batch) + 0.1 * sum(change.square().sum() for change in moved)
    >>> runs = pfl.simulate(Proximal, clients=4, rounds=2, epochs=1, progress=False)

    Attributes:
        net: the client's networks, bound to ``params``; call it, or its submodules. In a step on several
            batches, `attach` a batch before you pass it on.
        params: the client's current tensors by name, including running statistics.
        start: the tensors that it received at the beginning of the round, by name.
        state: its rows of the method's client state and of what the server sent: name to a tensor, or to a
            dictionary of tensors by name.
        trained: names of the parameters that the current phase trains.
        norms, dropouts: modules of ``net`` that `attach` prepares for each batch.
    """

    net: Network
    params: Mapping[str, Tensor]
    start: Mapping[str, Tensor]
    state: State
    trained: tuple[str, ...] = ()
    norms: tuple[BatchNorm, ...] = ()
    dropouts: tuple[Dropout, ...] = ()

    @property
    def weights(self) -> dict[str, Tensor]:
        """The parameters in training, by name."""
        return {name: self.params[name] for name in self.trained}

    def pulled(
        self,
        gradient: Mapping[str, Tensor],
        value: Tensor,
        weight: float | Tensor,
        centre: Mapping[str, Tensor] | None = None,
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Add ``weight``/2 ||theta - centre||^2 to a loss with ``gradient`` and ``value``; return both.

        The term's gradient is added in closed form, in a quarter of the time that autograd takes.

        Args:
            centre: name to value for the parameters in the term; by default all parameters in training, as
                received.
        """
        points = {name: self.start[name] for name in self.trained} if centre is None else centre
        away = {name: self.params[name] - point for name, point in points.items()}
        squares = torch.stack([part.flatten() @ part.flatten() for part in away.values()]).sum()
        moved = {name: gradient[name] + weight * part for name, part in away.items()}
        return {**gradient, **moved}, value + weight / 2 * squares

    def flat(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """``tensors`` of the parameters in training, concatenated to one vector (n,).

        One operation on the vector is faster than one per tensor.
        """
        return torch.cat([tensors[name].flatten() for name in self.trained])

    @contextmanager
    def other(self, tensors: Mapping[str, Tensor]) -> Iterator[Network]:
        """A context in which ``net`` uses other ``tensors``, in evaluation mode and without gradients."""
        modes = [(module, module.training) for module in self.net.modules()]
        bind(self.net, tensors)
        self.net.eval()
        try:
            with torch.no_grad():
                yield self.net
        finally:
            bind(self.net, self.params)
            for module, training in modes:
                module.training = training

    def attach(self, batch: Batch) -> None:
        """Prepare ``net`` for ``batch``: bind it to ``params``, and pass it the batch's real rows and key."""
        bind(self.net, self.params)
        for norm in self.norms:
            norm.rows = batch.rows
        for number, dropout in enumerate(self.dropouts):
            dropout.key = None if batch.key is None else batch.key + number

    def gradient(
        self, loss: Loss, batch: Batch, at: Mapping[str, Tensor] | None = None
    ) -> tuple[dict[str, Tensor], Tensor]:
        """The gradient of ``loss`` with respect to the parameters in training, and the loss.

        Args:
            at: the point at which it is computed, tensors by name; by default the current parameters.
        """

        def value(weights: dict[str, Tensor], others: dict[str, Tensor]) -> Tensor:
            moved = dataclasses.replace(self, params={**others, **weights})
            moved.attach(batch)
            return scalar(loss, moved, batch)

        # Running statistics are updated in place, which torch.func allows for arguments only.
        computed = torch.func.grad_and_value(value)(dict(at or self.weights), dict(self.params))
        bind(self.net, self.params)
        return computed

    @contextmanager
    def statistics_kept(self) -> Iterator[None]:
        """A context in which batch norm normalises by the batch without updating its running statistics."""
        momenta = [norm.momentum for norm in self.norms]
        for norm in self.norms:
            norm.momentum = 0.0
        try:
            yield
        finally:
            for norm, momentum in zip(self.norms, momenta, strict=True):
                norm.momentum = momentum
