"""Saved models: predictions and evaluations after the simulation has ended."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from pfl.core.config import Config
from pfl.core.errors import DataWarning, InvalidInput
from pfl.core.files import expanded
from pfl.core.text import first_line
from pfl.data.cache import Changes, is_images, tokens_of
from pfl.data.dataset import Dataset
from pfl.data.federation import Federation
from pfl.data.formats import npz
from pfl.data.partition import Partition, of_seed
from pfl.data.samples import array_of, pixels_of
from pfl.data.shape import TokenShape, described
from pfl.engine.client import Client
from pfl.engine.groups import tensors_of
from pfl.engine.method import Method
from pfl.engine.model_file import read_models
from pfl.engine.simulation import client_network
from pfl.engine.state import State, rows
from pfl.methods import METHODS
from pfl.models import MODELS, build
from pfl.run.api import divided, known_data, registered_method, registered_model
from pfl.run.fingerprint import plugin_digests
from pfl.run.validation import validated

if TYPE_CHECKING:
    from pfl.models._network import Network

BATCH = 256


class Predictor(nn.Module):
    """A trained model with its method's prediction rule, in evaluation mode.

    Attributes:
        net: the client's networks; `net.extractor` and `net.head` are the main one.
        classes: names of the classes.
        shape: shape of a sample; for an image, channels, height and width.
    """

    def __init__(
        self, net: Network, method: Method, state: State, federation: Federation, classes: tuple[str, ...]
    ):
        super().__init__()
        self.net = net
        self.classes = classes
        self.shape = federation.shape
        self._method = method
        self._federation = federation
        leaves, self._structure = tree_flatten(state)
        for place, leaf in enumerate(leaves):  # buffers move with the module to another device
            self.register_buffer(f"state{place}", leaf)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Class scores (B, classes) of samples (B, ...), scaled as in training (`scaled`).

        Scores are logits, unless the method predicts in another way.
        """
        tensors = tensors_of(self.net)
        state = tree_unflatten(
            [leaf for name, leaf in self.named_buffers(recurse=False) if name.startswith("state")],
            self._structure,
        )
        client = Client(self.net, tensors, tensors, state)
        return self._method.scores(client, x, self._method.logits(client, x))

    def scaled(self, images: Any) -> Tensor:
        """The input (B, ...) of the network for a sequence of images or other samples.

        Args:
            images: what `pfl.from_samples` accepts as images: Pillow images, uint8 arrays or tensors (H, W),
                (H, W, C) or (C, H, W), or such arrays of floats in [0, 1]; also one array (B, ...). If the
                model was trained on other samples: arrays of their shape and kind, or a data frame.

        Raises:
            InvalidInput: an image has an unsupported form, or not the shape of training.
        """
        if not self._federation.is_images and hasattr(images, "to_numpy"):
            images = images.to_numpy()
        if not hasattr(images, "__len__") or not hasattr(images, "__getitem__") or not len(images):
            raise InvalidInput("images", type(images).__name__, "a sequence of images")
        changes = Changes()
        places = range(len(images))
        if self._federation.is_images:
            pixels = [pixels_of(images[place], place, changes) for place in places]
        else:
            pixels = [array_of(images[place], place) for place in places]
        for note in changes.notes():
            warnings.warn(note, DataWarning, stacklevel=2)
        for place, image in enumerate(pixels):
            if image.shape != self.shape:
                given, own = described(image.shape), described(self.shape)
                raise InvalidInput("images", f"image {place} of {given}", f"{own}, as in training")
        stacked = np.stack(pixels)
        if not self._federation.is_images:
            if not self._tokens and stacked.dtype.kind in "bui":  # whole numbers are features, too
                stacked = stacked.astype(np.float32)
            arrays = {"samples": stacked, "labels": np.zeros(len(stacked), np.int64)}
            stacked = npz.checked(arrays, "images")[0]
            self._check_kind("images", "samples", stacked)
        return self._scaled(stacked)

    def scores(self, images: Any) -> Tensor:
        """Class scores (B, classes) of a sequence of images, as for `scaled`."""
        inputs = self.scaled(images)
        with torch.no_grad():
            return torch.cat([self(part) for part in inputs.split(BATCH)])

    def predict(self, images: Any) -> np.ndarray:
        """The predicted class (B,) of each image, an index into `classes`; images as for `scaled`."""
        return self.scores(images).argmax(1).cpu().numpy()

    def evaluate(self, dataset: Any, samples: Sequence[int] | np.ndarray | None = None) -> float:
        """The accuracy in percent on a data set, in any form that `pfl.simulate` accepts.

        Args:
            samples: (N,) indices of the images to test; by default all.

        Raises:
            InvalidInput: the images have another shape or there are none, an index has no image, or a class
                has an unknown name.
        """
        data = known_data(dataset)
        if data.shape != self.shape:
            given, own = described(data.shape), described(self.shape)
            raise InvalidInput("dataset", f"{data.name}, samples of {given}", f"samples of {own}")
        self._check_kind("dataset", data.name, data.images)
        if unknown := [name for name in data.classes if name not in self.classes]:
            accepted = f"classes among {', '.join(self.classes)}"
            raise InvalidInput("dataset", f"{data.name}, class {unknown[0]}", accepted)
        index = np.arange(len(data.labels)) if samples is None else np.asarray(samples)
        if not index.size:
            raise InvalidInput("samples", "none", "one or more indices of images")
        accepted = f"integers from 0 to {len(data.labels) - 1}, the indices of images"
        if index.ndim != 1 or index.dtype.kind not in "iu":  # a mask would become the indices 0 and 1
            raise InvalidInput("samples", f"an array of {index.dtype} {index.shape}", accepted)
        if len(outside := index[(index < 0) | (index >= len(data.labels))]):
            raise InvalidInput("samples", f"index {outside[0]}", accepted)
        known = np.array([self.classes.index(name) for name in data.classes])
        correct = 0
        with torch.no_grad():
            for first in range(0, len(index), BATCH):
                part = index[first : first + BATCH]
                predicted = self(self._scaled(data.images[part])).argmax(1).cpu().numpy()
                correct += int((predicted == known[data.labels[part]]).sum())
        return 100 * correct / len(index)

    @property
    def _tokens(self) -> int:
        """The size of the vocabulary of the training data; 0 if they are no tokens."""
        return self.shape.tokens if isinstance(self.shape, TokenShape) else 0

    def _check_kind(self, parameter: str, name: str, samples: np.ndarray) -> None:
        """Check that samples are images, floats or tokens, as those of training."""
        images, tokens = is_images(samples), tokens_of(samples)
        if self._tokens:
            fits, accepted = 0 < tokens <= self._tokens, f"tokens below {self._tokens}"
        elif self._federation.is_images:
            fits, accepted = images, "images with 8 bits per channel"
        else:
            fits, accepted = not images and not tokens, "floats"
        if not fits:
            given = f"tokens below {tokens}" if tokens else f"{samples.dtype}"
            raise InvalidInput(parameter, f"{name}: {given}", f"{accepted}, as in training")

    def _scaled(self, pixels: np.ndarray) -> Tensor:
        """Stored samples (B, ...), scaled, on the device of the network."""
        scaled = self._federation.scaled(torch.from_numpy(np.ascontiguousarray(pixels)))
        return scaled.to(self.net.head.weight.device)


@dataclass(frozen=True)
class SavedModels:
    """The models of one seed, as the simulation left them.

    Attributes:
        config: configuration of the simulation.
        dataset: name of the data set on which they were trained.
        classes: names of the classes.
        seed: seed of the simulation.
        round: round after which the models were saved.
        ids: (clients,) the index of each client in the partition, without unseen clients.
        tensors: the stored models by name, (clients, *shape), or (1, *shape) if all clients share one.
    """

    config: Config
    dataset: str
    classes: tuple[str, ...]
    seed: int
    round: int
    ids: tuple[int, ...]
    tensors: Mapping[str, Tensor]
    _personal: Mapping[str, Tensor]
    _client_state: State
    _federation: Federation
    _unseen: int

    def __repr__(self) -> str:
        trained = f"{self.config.method}, {self.config.model}, {self.dataset}"
        return f"SavedModels({trained}: {self.clients} clients, seed {self.seed}, round {self.round})"

    @property
    def clients(self) -> int:
        """The number of clients that have a model."""
        return self._federation.clients

    @cached_property
    def _method(self) -> Method:
        return METHODS[self.config.method].from_dict(self.config.hyperparameters)

    def client(self, client: int) -> Predictor:
        """The model of a client in the last evaluation of the simulation, at the method's headline moment.

        Args:
            client: the client's index in the partition.

        Raises:
            InvalidInput: there is no such client, or it was unseen.
        """
        if not isinstance(client, int | np.integer) or client not in self.ids:
            accepted = f"an integer from 0 to {self._partitioned - 1}"
            if self._unseen:
                accepted += f", one of the {self.clients} that are not unseen clients"
            raise InvalidInput("client", client, accepted)
        row = self.ids.index(client)
        tensors = {
            name: stack[row if len(stack) > 1 else 0]
            for name, stack in {**self.tensors, **self._personal}.items()
        }
        return self._predictor(tensors, self._method, rows(self._client_state, row))

    def global_model(self) -> Predictor:
        """The network that all clients share.

        Raises:
            InvalidInput: a part of it is personal.
        """
        net = self._network
        names = {id(tensor): name for name, tensor in tensors_of(net).items()}
        main = [
            names[id(tensor)] for part in (net.extractor, net.head) for tensor in tensors_of(part).values()
        ]
        if own := [name for name in main if bool((self.tensors[name] != self.tensors[name][:1]).any())]:
            accepted = f"a method whose clients share a whole network; {', '.join(own)} are personal"
            raise InvalidInput("global_model", self.config.method, accepted)
        return self._predictor({name: self.tensors[name][0] for name in main}, Method(), {})

    def evaluate(self, dataset: Any, partition: str | Partition | None = None) -> np.ndarray:
        """The accuracy in percent (clients,) of each client's model on a data set, given as for `simulate`.

        It is in the order of `ids`.

        Args:
            partition: each client is tested on its own test samples, NaN where it has none; by default all
                clients are tested on all images.

        Raises:
            InvalidInput: the data do not fit the models.
        """
        if partition is None:
            data = known_data(dataset)
            return np.array([self.client(client).evaluate(data) for client in self.ids])
        data, division = divided(dataset, partition, self._partitioned, (self.seed,))
        tests = of_seed(division, self.seed).test
        if len(tests) != self._partitioned:
            accepted = f"{self._partitioned}, as in the simulation"
            raise InvalidInput("partition", f"{len(tests)} clients", accepted)
        return np.array(
            [
                self.client(client).evaluate(data, tests[client]) if len(tests[client]) else np.nan
                for client in self.ids
            ]
        )

    @property
    def _partitioned(self) -> int:
        """The number of clients of the partition."""
        return self.clients + self._unseen

    @cached_property
    def _network(self) -> Network:
        """The network, built once, because its name may stand for another object later."""
        network = partial(build, self.config.model)
        return client_network(self.config, self._method, network, self._federation, self.seed)

    def _predictor(self, tensors: Mapping[str, Tensor], method: Method, state: State) -> Predictor:
        net = copy.deepcopy(self._network)
        with torch.no_grad():
            own = tensors_of(net)
            if missing := own.keys() - self.tensors.keys():
                raise ValueError(f"no {', '.join(sorted(missing))} is stored")
            for name, tensor in tensors.items():
                if own[name].shape != tensor.shape:
                    raise ValueError(f"{name} is stored with the shape {tuple(tensor.shape)}")
                own[name].copy_(tensor)
        return Predictor(net, method, state, self._federation, self.classes)


def load_models(
    path: str | Path,
    seed: int | None = None,
    *,
    method: Method | type[Method] | None = None,
    model: nn.Module | Any | None = None,
) -> SavedModels:
    """Load the models that a simulation saved, with ``pfl run --save`` or `Execution.save`.

    The file contains no code, so it is safe to load a file from elsewhere.

    >>> import pfl, tempfile
    >>> file = tempfile.mkdtemp() + "/models.pt"
    >>> options = dict(clients=5, rounds=2, epochs=1, progress=False)
    >>> runs = pfl.simulate("fedper", "digits", execution=pfl.Execution(save=file), **options)
    >>> models = load_models(file)
    >>> digits = pfl.load("digits")
    >>> models.client(3).predict(digits.images[:4]).shape
    (4,)

    Args:
        seed: seed of the simulation; required if the file has several.
        method: the class of a method that was given as an object, or whose package is not installed.
        model: the network or its builder, if it was given as an object, which its name does not identify.

    Raises:
        InvalidInput: the file does not exist, is damaged, is of another kind or version, or does not fit the
            method or the network, or a plugin's code has changed since then.
    """
    path = expanded(path, "models")
    content = read_models(path)
    given = {"method": method and registered_method(method)[0], "model": model and registered_model(model)}
    try:
        seeds = content["seeds"]
        if seed is None and len(seeds) == 1:
            (seed,) = seeds
        if seed is None or seed not in seeds:
            raise InvalidInput("seed", seed, f"one of {', '.join(map(str, seeds))}, as the file has")
        config = Config.from_dict(
            {**content["config"], **{name: known for name, known in given.items() if known}}
        )
        digests, saved = plugin_digests(config.method, config.model), content["plugins"]
        for name, kind, registry in (("method", "method", METHODS), ("model", "network", MODELS)):
            known = getattr(config, name)
            if not given[name] and (known not in registry or registry.was_added(known)):
                raise InvalidInput(name, "none", f"{known}, the {kind} of the models, as the argument {name}")
            component = f"{kind} {known}"
            if not given[name] and saved.get(component) != digests.get(component):
                accepted = f"the plugin that the models were saved with, or its object as the argument {name}"
                raise InvalidInput(name, f"{known}, whose code has changed,", accepted)
        config = validated(config)
        data, own = content["data"], content["seeds"][seed]
        clients, ids = len(own["train"]), own["ids"]
        models = SavedModels(
            config=config,
            dataset=str(data["name"]),
            classes=tuple(data["classes"]),
            seed=seed,
            round=int(own["round"]),
            ids=tuple(map(int, ids[:clients])),
            tensors=own["tensors"],
            _personal=own["personal"],
            _client_state=own["client_state"],
            _federation=_federation(config, data, own),
            _unseen=len(ids) - clients,
        )
        models.client(models.ids[0])
    except InvalidInput:
        raise
    except Exception as error:  # other content raises key, type and shape errors
        accepted = f"models of this method and network ({type(error).__name__}: {first_line(error)})"
        raise InvalidInput("models", str(path), accepted) from None
    return models


def _federation(config: Config, data: Mapping[str, Any], own: Mapping[str, Any]) -> Federation:
    """The federation that the models were trained in, without its images."""
    dataset = Dataset(
        name=data["name"],
        images=np.zeros((0, *data["shape"]), data["dtype"]),
        labels=np.zeros(0, np.int64),
        classes=tuple(data["classes"]),
        n_train=0,
        checksum=data["checksum"],
        mean=tuple(data["mean"]),
        std=tuple(data["std"]),
        source={},
        tokens=data["tokens"],
    )
    none = np.zeros(0, np.int64)
    sizes = tuple(np.zeros(size, np.int64) for size in own["train"])
    partition = Partition("", sizes, (none,) * len(sizes), data["checksum"])
    federation = Federation(
        dataset, partition, torch.device("cpu"), getattr(torch, config.dtype), config.input_scale
    )
    if "label_counts" in own:  # files of earlier versions have none
        federation.label_counts = own["label_counts"]
    return federation
