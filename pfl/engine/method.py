"""What a method is: a dataclass of hyperparameters with a few hooks that say what makes it that method.

A round of the engine is

1. ``dispatch``: what each participant starts from; by default its own row of the bank;
2. ``phases`` and ``loss``: the participant's local program, written for one client;
3. the results go into the bank;
4. ``update``: the server's own computation on what came back, if any;
5. ``aggregate``: how the bank's rows are mixed, for every parameter group.

A method never loops over clients, never moves a tensor to a device and never touches an optimiser.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pfl.engine.hyper import Hyperparameter
from pfl.engine.mixing import Identity, Mixing
from pfl.errors import unknown_name

if TYPE_CHECKING:
    from torch import Tensor

    from pfl.config import Config
    from pfl.engine.client import Batch, Client
    from pfl.engine.server import Server
    from pfl.models._network import Network

Moment = Literal["post_aggregation", "post_local"]


@dataclass(frozen=True)
class Phase:
    """A part of the local program: SGD for some epochs on some groups.

    Attributes:
        epochs: passes over the client's training samples; None: the configuration's.
        trains: the groups that move; everything else is frozen, its batch norm in evaluation mode.
        lr: learning rate as a multiple of the configuration's.
    """

    epochs: int | None = None
    trains: tuple[str, ...] = ("all",)
    lr: float = 1.0


@dataclass(frozen=True)
class Method:
    """Base of all methods: plain local training, nothing mixed.

    Class attributes:
        paper: where the method is from, as in "McMahan et al., AISTATS 2017, Algorithm 1".
        version: the numerics version; raise it when an edit moves the method's numbers.
        headline: the moment whose accuracy is reported first.
    """

    paper: ClassVar[str]
    version: ClassVar[int] = 1
    headline: ClassVar[Moment] = "post_aggregation"

    def __post_init__(self) -> None:
        for name, declared in self.declarations().items():
            default = self.__dataclass_fields__[name].default
            declared.check(name, getattr(self, name), default)

    # ---- the hooks -------------------------------------------------------------------------------------

    def client_network(self, network: Network, server: Server) -> Network:
        """The networks that a client holds: ``network``, with further submodules added to it if need be."""
        return network

    def initialise(self, server: Server) -> None:
        """Create the method's own tensors in ``server.state`` and ``server.client_state``."""

    def dispatch(self, server: Server) -> Mixing:
        """What the participants start from, as a mixing of the bank; groups left out are their own."""
        return {}

    def phases(self, server: Server) -> tuple[Phase, ...]:
        """The local program of this round."""
        return (Phase(),)

    def logits(self, client: Client, x: Tensor) -> Tensor:
        """Class scores (B, classes) of images (B, C, H, W), in training and in evaluation."""
        return client.net(x)

    def loss(self, client: Client, batch: Batch) -> Tensor:
        """The scalar to minimise on one batch, for one client."""
        return batch.cross_entropy(self.logits(client, batch.x))

    def update(self, server: Server) -> None:
        """The server's computation between upload and aggregation."""

    def aggregate(self, server: Server) -> Mixing:
        """How the bank's rows are mixed after the uploads; groups left out stay as they are."""
        return {}

    def traffic(self, server: Server) -> tuple[int, int]:
        """Scalars sent down to the participants and up by them in this round, all together.

        By default every tensor that some mixing of the round moves between clients, once each way.
        """
        mixed = len(server.participants) * server.mixed_scalars()
        return mixed, mixed

    def warnings(self, config: Config) -> tuple[str, ...]:
        """One line for each way in which the method merely degenerates under ``config``."""
        return ()

    # ---- the declaration -------------------------------------------------------------------------------

    @classmethod
    def declarations(cls) -> dict[str, Hyperparameter]:
        """The method's hyperparameters by name."""
        return {f.name: f.metadata["hyper"] for f in dataclasses.fields(cls) if "hyper" in f.metadata}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The method with ``values`` for some of its hyperparameters and defaults for the others.

        Raises:
            InvalidInput: an unknown hyperparameter, or a value outside its domain.
        """
        for name in values:
            if name not in cls.declarations():
                raise unknown_name("hyperparameter", name, cls.declarations())
        floats = {f.name for f in dataclasses.fields(cls) if isinstance(f.default, float)}
        return cls(
            **{
                # 1 and 1.0 are one configuration, so they must have one key.
                name: float(value) if name in floats and type(value) is int else value
                for name, value in values.items()
            }
        )

    def hyperparameters(self) -> dict[str, Any]:
        """Name to value, every default filled in."""
        return dataclasses.asdict(self)


__all__ = ["Identity", "Method", "Mixing", "Moment", "Phase"]
