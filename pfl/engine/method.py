"""The base class of methods: a dataclass of hyperparameters with a few hooks that define the method.

A round of the engine is

1. ``participants``: who takes part;
2. ``dispatch``: what the server computes before training, and what the participants start from;
3. ``phases`` and ``loss``: the participants' local program, written for one client;
4. ``aggregate``: what the server computes from the uploads, and how the stored models are mixed;
5. at an evaluation, ``adaptation``: what a client trains before it is tested, and ``logits`` or ``scores``.

``initialise``, ``dispatch`` and ``aggregate`` change the method's state, and so do ``admit`` and ``adapt``
that of clients that join. All other hooks leave the state unchanged: a second call returns the same values.
The engine counts the traffic; see `Server.count`.

A method needs few of these. It never loops over clients, never moves a tensor to a device and, in local
training, never touches an optimiser.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pfl.core.errors import InvalidInput, unknown_name
from pfl.core.hyper import Hyperparameter, check_declared
from pfl.engine.mixing import Dispatch, Mixing

if TYPE_CHECKING:
    from torch import Tensor

    from pfl.core.config import Config
    from pfl.data.federation import Federation
    from pfl.engine.client import Batch, Client, Loss
    from pfl.engine.server import Server
    from pfl.engine.state import State
    from pfl.models._network import Network

Moment = Literal["post_aggregation", "post_local", "adapted"]
"""When a client's model is evaluated: as aggregation leaves it, as its last local training left it, or after
the method's adaptation."""


FIELDS = ("Source", "State", "Evaluated", "Differs from the authors")
"""Fields of a method's docstring, in this order, so that methods can be compared."""


@dataclass(frozen=True)
class Phase:
    """A part of the local program: steps on minibatches, by default SGD on the method's loss.

    >>> class HeadLast(Method):
    ...     def phases(self, server):
    ...         return (Phase(trains=("extractor",)), Phase(epochs=1, trains=("head",), lr=0.1))
    >>> runs = pfl.simulate(HeadLast, clients=4, rounds=2, epochs=1, progress=False)

    Attributes:
        epochs: passes over the client's training samples, possibly fractional; by default the
            configuration's.
        steps: a number of minibatch steps instead of epochs.
        batch_size: by default the configuration's.
        trains: the groups that are trained; everything else is frozen, its batch norm in evaluation mode.
        lr: learning rate as a multiple of the configuration's.
        loss: replaces `Method.loss`.
        repeat: SGD steps on each batch, with the gradient recomputed each time.
        gradient: replaces the gradient of the loss; SGD descends along it.
        step: replaces the step of SGD.
        batches: number of independent batches per such gradient or step; a client with fewer reuses them.
        noise: number of uniform random numbers in ``batch.noise`` of each step.
    """

    epochs: float | None = None
    steps: int | None = None
    batch_size: int | None = None
    trains: tuple[str, ...] = ("all",)
    lr: float = 1.0
    loss: Loss | None = None
    repeat: int = 1
    gradient: LocalGradient | None = None
    step: LocalStep | None = None
    batches: int = 1
    noise: int = 0

    @property
    def hooks(self) -> dict[str, Any]:
        """The replacements of the method's loss and of plain SGD, or None, by name."""
        return {"loss": self.loss, "gradient": self.gradient, "step": self.step}


@dataclass(frozen=True)
class Step:
    """The return value of a custom local step.

    >>> import torch
    >>> Step({"head.bias": torch.zeros(10)}, loss=torch.tensor(0.5)).loss
    tensor(0.5000)

    Attributes:
        params: new values of parameters in training, by name.
        loss: the loss to report.
        state: new values for the client's rows of the method's client state, by name; others are unchanged.
    """

    params: Mapping[str, Tensor]
    loss: Tensor
    state: State = dataclasses.field(default_factory=dict)


LocalGradient = Callable[["Client", tuple["Batch", ...]], tuple[Mapping[str, "Tensor"], "Tensor"]]
"""Computes SGD's descent direction by name, and the loss to report, on one or several batches."""

LocalStep = Callable[["Client", tuple["Batch", ...], "float | Tensor"], Step]
"""A custom step that replaces SGD, on one or several batches, at a learning rate."""


def _public_functions(cls: type) -> dict[str, FunctionType]:
    """The functions that a class itself defines, by name, without those that begin with an underscore."""
    return {name: own for name, own in vars(cls).items() if inspect.isfunction(own) and name[0] != "_"}


class _Immutable:
    """Rejects attributes that a class without ``@dataclass(frozen=True)`` sets on its instances."""

    def __setattr__(self, name: str, value: object) -> None:
        accepted = "hyper(...) in a frozen dataclass; server.state or server.client_state for what changes"
        raise InvalidInput(f"{type(self).__name__}.{name}", "an attribute set on a method", accepted)


@dataclass(frozen=True)
class Method(_Immutable):
    """Base class of all methods: plain local training without mixing.

    >>> class HeadAveraging(Method):
    ...     def aggregate(self, server):
    ...         return {"head": server.average()}
    >>> runs = pfl.simulate(HeadAveraging, clients=4, rounds=2, epochs=1, progress=False)

    A method's docstring ends with the `FIELDS`, as in "Source: ...", with indented continuation lines.

    Class attributes:
        headline: the moment whose accuracy is reported first.
        family: the group of methods under which it is listed and documented (`pfl.core.families`).
        new_client: what a client that joins after the last round receives (`admit`), in one sentence, and
            how it adapts if `adapt` is overridden.
        personal_collects: whether `personal` runs the clients' networks, with `Server.collect` or
            `Server.train`. It is then called for as many clients at once as there are workers to share
            them. The values of a client must not depend on the other clients of the call.
    """

    headline: ClassVar[Moment] = "post_aggregation"
    family: ClassVar[str] = "other"
    new_client: ClassVar[str] = "The global model; the mean of the clients' tensors where these differ."
    personal_collects: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        """Reject a function whose name is almost that of a hook, which would never be called.

        Raises:
            InvalidInput: there is one, and the class does not define the hook.
        """
        known, own = _public_functions(Method), _public_functions(cls)
        hooks = [name for name, function in known.items() if function.__code__.co_argcount > 1]
        for name in own.keys() - known.keys():
            for hook in difflib.get_close_matches(name, hooks, n=1, cutoff=0.85):
                if hook not in own:
                    accepted = f"the hook {hook!r}, or a name that begins with an underscore"
                    raise InvalidInput(f"{cls.__name__}.{name}", "a function of this name", accepted)

    def __post_init__(self) -> None:
        for name, declared in self.declarations().items():
            default = self.__dataclass_fields__[name].default
            declared.check(name, getattr(self, name), default)

    def warm_up(self, rounds: int) -> int:
        """The number of initial rounds that do not predict the final accuracy; a search compares trials after
        them.
        """
        return 0

    # ---- the hooks -------------------------------------------------------------------------------------

    def client_network(self, network: Network, federation: Federation) -> Network:
        """The networks of a client: ``network``, with further submodules if needed."""
        return network

    def initialise(self, server: Server) -> None:
        """Create the method's own tensors in ``server.state`` and ``server.client_state``, by name or nested,
        as in ``server.state["variate"] = {name: zeros, ...}``."""

    def participants(self, server: Server) -> Tensor:
        """(K,) clients of this round, sampled by default; the sample is the same for every method.

        Return them in host memory, so that the host does not wait for the device.
        """
        return server.sample_clients()

    def dispatch(self, server: Server) -> Dispatch:
        """What the participants start from; the server's work before local training belongs here.

        Returns:
            A dictionary from group name to the matrix that mixes the stored models; participants keep their
            own values of omitted groups. A tensor name maps to the value that replaces it, (K, *shape), or
            (1, *shape) for all participants. A new name maps to `Sent`, which is in ``client.state`` during
            the round's local training.
        """
        return {}

    def phases(self, server: Server) -> tuple[Phase, ...]:
        """The local program of this round."""
        return (Phase(),)

    def loss(self, client: Client, batch: Batch) -> Tensor:
        """The scalar to minimise on one batch, for one client."""
        return batch.cross_entropy(self.logits(client, batch.x))

    def logits(self, client: Client, x: Tensor) -> Tensor:
        """Logits (B, classes) of images (B, C, H, W), in training and in evaluation."""
        logits: Tensor = client.net(x)
        return logits

    def aggregate(self, server: Server) -> Mixing:
        """How the stored models are mixed after training; the server's work on the uploads belongs here.

        Returns:
            A dictionary from group name to matrix; omitted groups stay as each client trained them. A tensor
            name maps to the new value (1, *shape) that the server computed for all clients.
        """
        return {}

    def adaptation(self, server: Server) -> tuple[Phase, ...]:
        """What every client trains, from the aggregated model, before the evaluation "adapted"."""
        return ()

    def personal(self, server: Server, moment: Moment, clients: slice = slice(None)) -> Mapping[str, Tensor]:
        """The tensors of consecutive ``clients`` for an evaluation: name to (K, ...)."""
        return server.personal(moment, clients)

    def scores(self, client: Client, x: Tensor, logits: Tensor) -> Tensor:
        """Class scores (B, classes) of images ``x`` in evaluation, if they differ from the logits."""
        return logits

    def client_groups(self, server: Server) -> Mapping[str, Tensor]:
        """Groups of clients, name to (n,) bool, whose accuracies are also reported separately."""
        return {}

    def admit(self, server: Server) -> Dispatch:
        """What clients that join after the last round receive; they are the participants.

        Their tensors in ``server.store`` are the unweighted mean of those of ``server.others``, the clients
        that took part. Their rows of the method's state are those of `initialise`; this hook may change
        them. Nothing else of the last round is available, such as ``server.trained``.

        Returns:
            A dictionary as for `dispatch`, which is called by default.
        """
        return self.dispatch(server)

    def adapt(self, server: Server) -> None:
        """Let the clients that joined, the participants, train before they are tested at "post_local".

        By default, the phases of `adaptation` or, if there are none, those of a round.
        """
        server.adapt(self.adaptation(server) or self.phases(server))

    def warnings(self, config: Config) -> tuple[str, ...]:
        """One line for each option in ``config`` that is valid, but probably unintended."""
        return ()

    # ---- the declaration -------------------------------------------------------------------------------

    @classmethod
    def fields(cls) -> dict[str, str]:
        """The `FIELDS` in the class's docstring, by name, each as one line."""
        matches = re.findall(
            rf"^({'|'.join(FIELDS)}): (.*(?:\n +.*)*)", inspect.cleandoc(cls.__doc__ or ""), re.M
        )
        return {name: " ".join(text.split()) for name, text in matches}

    @classmethod
    def declarations(cls) -> dict[str, Hyperparameter]:
        """The method's hyperparameters by name.

        Raises:
            InvalidInput: a class that declares one is not a dataclass, or a field is not declared by `hyper`
                with a default or choices.
        """
        check_declared(cls)
        for field in dataclasses.fields(cls):
            declared = field.metadata.get("hyper")
            if declared is None or not (declared.choices or isinstance(field.default, bool | int | float)):
                accepted = "hyper(default, about) with a number or a truth value, or with choices"
                raise InvalidInput(f"{cls.__name__}.{field.name}", "its declaration", accepted)
        return {field.name: field.metadata["hyper"] for field in dataclasses.fields(cls)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The method with ``values`` for some of its hyperparameters and defaults for the others.

        Raises:
            InvalidInput: an unknown hyperparameter, or a value outside its domain.
        """
        declared = cls.declarations()
        for name, value in values.items():
            if name not in declared:
                raise unknown_name(f"hyperparameter of {cls.__name__}", name, declared)
            declared[name].check(name, value, cls.__dataclass_fields__[name].default)
        floats = {f.name for f in dataclasses.fields(cls) if isinstance(f.default, float)}
        return cls(
            **{
                # 1 and 1.0 are the same configuration, so they must have the same key.
                name: float(value) if name in floats and type(value) is int else value
                for name, value in values.items()
            }
        )

    def numbers(self) -> dict[str, float]:
        """The real-valued hyperparameters, in which the clients of a stack may differ."""
        declared = self.declarations()
        values = {name: getattr(self, name) for name in declared if declared[name].choices is None}
        return {name: value for name, value in values.items() if type(value) is float}

    def as_trained(self) -> Self:
        """This method with the defaults of all hyperparameters that only `adaptation` reads."""
        read_later = [name for name, declared in self.declarations().items() if declared.adaptation]
        return dataclasses.replace(self, **{name: getattr(type(self), name) for name in read_later})

    def with_values(self, numbers: Mapping[str, Tensor]) -> Self:
        """This method with () tensors for some of its numbers, in the local program of one client."""
        method = copy.copy(self)
        vars(method).update(numbers)
        return method

    def hyperparameters(self) -> dict[str, Any]:
        """Name to value, including defaults."""
        return dataclasses.asdict(self)
