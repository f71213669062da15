"""Parameter groups of a client's networks, determined by module and module type, never by name patterns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from pfl.core.errors import InvalidInput, unknown_name
from pfl.engine.mixing import Identity, Matrix, Mixing
from pfl.models._network import Network


class Groups:
    """Maps the name of a group to the names of its tensors.

    ``all`` is everything, and ``model`` is the main network (``extractor`` and ``head``). Every further
    submodule of the client's network is a group under its name. ``bn_affine`` and ``bn_stats`` are batch
    norm's weights and running statistics. ``stage:NAME`` is a stage that the network declares. A tensor's
    name is also a group.

    Attributes:
        trainable: names of all parameters.
        changing: names of all tensors that training changes: parameters and batch norm's statistics.
        stages: the groups of the network's stages.
    """

    def __init__(self, net: Network):
        names = {id(tensor): name for name, tensor in tensors_of(net).items()}

        def of(*modules: nn.Module) -> tuple[str, ...]:
            tensors = (names[id(t)] for module in modules for t in tensors_of(module).values())
            return tuple(dict.fromkeys(tensors))

        norms = [module for module in net.modules() if isinstance(module, _BatchNorm)]
        children = dict(net.named_children())
        for stage, modules in net.stages.items():
            if not all(isinstance(module, nn.Module) and _is_within(module, names) for module in modules):
                raise InvalidInput("stages", stage, "a stage whose modules are submodules of the network")
        self.trainable = tuple(name for name, _ in net.named_parameters())
        self.stages = tuple(f"stage:{name}" for name in net.stages)
        self._names: dict[str, tuple[str, ...]] = {
            **{name: (name,) for name in names.values()},
            "all": of(net),
            "model": of(children["extractor"], children["head"]),
            **{name: of(child) for name, child in children.items()},
            "bn_affine": tuple(names[id(p)] for norm in norms for p in norm.parameters()),
            "bn_stats": tuple(names[id(b)] for norm in norms for b in norm.buffers()),
            **{f"stage:{name}": of(*modules) for name, modules in net.stages.items()},
        }
        self.changing = frozenset((*self.trainable, *self["bn_stats"]))

    def __contains__(self, group: str) -> bool:
        return group in self._names

    def __getitem__(self, group: str) -> tuple[str, ...]:
        if group not in self._names:
            raise unknown_name("group", group, self._names)
        return self._names[group]

    def trained(self, groups: Iterable[str]) -> tuple[str, ...]:
        """The parameters of ``groups`` in the network's order; running statistics are not parameters."""
        chosen = {name for group in groups for name in self[group]}
        return tuple(name for name in self.trainable if name in chosen)

    def resolve(self, mixing: Mixing, bn_stats: str) -> dict[str, Matrix | Tensor]:
        """Tensor name to matrix or new value. Tensors that ``mixing`` does not name get the identity, as do
        batch norm's statistics if ``bn_stats`` is "local"."""
        matrices: dict[str, Matrix | Tensor] = dict.fromkeys(self["all"], Identity())
        for group, matrix in mixing.items():
            matrices.update(dict.fromkeys(self[group], matrix))
        if bn_stats == "local":
            matrices.update(dict.fromkeys(self["bn_stats"], Identity()))
        return matrices


def _is_within(module: nn.Module, names: Mapping[int, str]) -> bool:
    """Whether all tensors of ``module`` are among those with ``names``, by identity."""
    return all(id(tensor) in names for tensor in tensors_of(module).values())


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def bind(net: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Make ``net`` compute with ``tensors``: a client's, or stacked ones inside a vmap."""
    places = _PLACES.setdefault(net, {})
    for name, tensor in tensors.items():
        path, _, leaf = name.rpartition(".")
        if name not in places:
            module = net.get_submodule(path)
            places[name] = module._buffers if leaf in module._buffers else module._parameters
        places[name][leaf] = tensor


_PLACES: WeakKeyDictionary[nn.Module, dict[str, dict[str, Any]]] = WeakKeyDictionary()
"""The dictionary that holds each tensor of a network; looking it up takes longer than setting a tensor."""
