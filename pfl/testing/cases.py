"""The simulations of the battery.

A case tests a method, a network or the engine in several ways (`pfl.testing.battery.WAYS`): backends and
devices, with and without compiled kernels, uninterrupted and resumed. All must give the same results.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from pfl.core.config import Config
from pfl.core.text import parameter
from pfl.data.shape import TokenShape
from pfl.methods import METHODS
from pfl.models import MODELS
from pfl.run.fingerprint import is_choice

if TYPE_CHECKING:
    from pfl.core.hyper import Hyperparameter
    from pfl.data.dataset import Dataset
    from pfl.data.partition import Partition
    from pfl.models import Shape


@dataclass(frozen=True)
class Data:
    """A synthetic federation.

    Attributes:
        train, test: sample counts of each client. Test sets are smaller and larger than a minibatch and 128.
        mapped: the images are mapped from a file, like real ones.
    """

    shape: Shape = (1, 8, 8)
    classes: int = 12
    train: tuple[int, ...] = (9, 4, 7, 5, 3, 6, 8, 11, 2, 5)
    test: tuple[int, ...] = (3, 1, 5, 140, 2, 6, 4, 9, 0, 7)
    mapped: bool = False


SMALL = Data()
WIDE = Data((1, 16, 16), 4, test=(3, 1, 5, 12, 2, 6, 4, 9, 1, 7))
COLOUR = Data((3, 16, 16), 11, (9, 4, 7, 5), (3, 6, 5, 1))
TINY = Data(classes=4, train=(5, 3, 4, 2), test=(3, 1, 2, 2))
NORMED = Data((1, 16, 16), 4, (5, 3, 4, 2), (3, 1, 2, 2))
CROWD = Data(train=(3, 5, 4, 6, 7) * 5, test=(2, 5, 1, 4, 3) * 5, classes=23)

USUAL = {
    "model": "cnn_digits",
    "participation": 0.75,
    "rounds": 5,
    "epochs": 2,
    "batch_size": 4,
    "lr": 0.1,
    "eval_every": 2,
    "dtype": "float64",
}
"""Sizes that do not divide evenly: 7.5 of ten clients, 2.5 evaluations in five rounds, minibatches of one."""

WIDE_USUAL = {**USUAL, "model": "lenet5_bn", "eval_every": 3, "lr": 0.05}

EVERY_WAY = ("loop", "torch", "stacked", "resumed")
FLOAT32 = ("float32", "float32 torch", "float32 stacked")


@dataclass(frozen=True)
class Case:
    """One test case.

    Attributes:
        subject: the component under test, "method fedavg" or "network lenet5"; None means the engine, which
            affects all methods.
        options: options of the configuration; others have their defaults.
        variants: options of further configurations that run in lockstep with it.
        ways: how it is computed; the first is recorded.
        divided: each seed has its own partition.
        defaults: the results include the defaults of hyperparameters or options.
    """

    name: str
    subject: str | None
    options: Mapping[str, Any]
    data: Data = SMALL
    ways: Sequence[str] = ("loop", "stacked", "resumed")
    seeds: tuple[int, ...] = (0,)
    variants: Sequence[Mapping[str, Any]] = ()
    divided: bool = False
    defaults: bool = False

    @property
    def method(self) -> str:
        return str(self.options.get("method", Config.method))

    @property
    def model(self) -> str:
        return str(self.options.get("model", Config.model))

    @property
    def key(self) -> str:
        """The name with a digest of the options, the data, the seeds and the variants.

        The hyperparameters (`own`) are not part of it, because a method may get further ones.
        """
        asked = [
            {name: value for name, value in self.options.items() if name != "hyperparameters"},
            repr(self.data),
            self.seeds,
            list(map(dict, self.variants)),
            self.divided,
        ]
        text = json.dumps([asked, federation(self.data)[0].checksum], sort_keys=True)
        return f"{self.name} #{hashlib.sha256(text.encode()).hexdigest()[:6]}"

    @property
    def own(self) -> Mapping[str, Any]:
        """The hyperparameters that differ from the method's defaults."""
        own: Mapping[str, Any] = self.options.get("hyperparameters", {})
        return own

    def configs(self) -> list[Config]:
        """All configurations that run in lockstep."""
        return [Config(**{**self.options, **variant}) for variant in ({}, *self.variants)]


@cache
def federation(data: Data) -> tuple[Dataset, Partition]:
    """The data of a case, in memory."""
    from pfl.testing.synthetic import make_clients, make_dataset

    most = max(a + b for a, b in zip(data.train, data.test, strict=True))
    each = -(-(sum(data.train) + sum(data.test) + 2 * most) // data.classes) + most
    dataset = make_dataset(data.shape, data.classes, data.classes * each)
    return dataset, make_clients(dataset, data.train, data.test)


def cases() -> list[Case]:
    """All cases."""
    return [
        *(case for method in METHODS for case in of_method(method)),
        *(case for model in MODELS for case in of_network(model)),
        *of_engine(),
        *(case for method in METHODS if METHODS.plugin(method) for case in of_plugin(method)),
    ]


# ---- methods -------------------------------------------------------------------------------------------


def of_method(method: str) -> Iterator[Case]:
    """A method with its defaults, numbers below and above them, each other choice, and training options."""
    subject = f"method {method}"
    cls = METHODS[method]
    defaults: dict[str, Any] = {name: cls.__dataclass_fields__[name].default for name in cls.declarations()}
    low, high = {}, {}
    for name, declared in cls.declarations().items():
        if not is_choice(declared, defaults[name]):
            low[name], high[name] = away(declared, defaults[name])

    def case(name: str, own: Mapping[str, Any], usual: Mapping[str, Any] = USUAL, **rest: Any) -> Case:
        return Case(f"{method}, {name}", subject, {**usual, "method": method, "hyperparameters": own}, **rest)

    yield case("defaults", {}, ways=("loop", "stacked", "float32"), defaults=True)
    yield case("batch norm", {}, WIDE_USUAL, data=WIDE)
    usual, data = (USUAL, SMALL) if method in BY_ELEMENT else (WIDE_USUAL, WIDE)
    yield case("options", low, {**usual, **OPTIONS}, data=data)
    yield case("unseen clients", low, {**usual, "unseen": 0.3}, data=data)
    if low:
        yield case("below", low, WIDE_USUAL, data=WIDE)
        yield case("above", high)
    for name, declared in cls.declarations().items():
        for choice in other_choices(declared, defaults[name]):
            usual, data = (WIDE_USUAL, WIDE) if (method, name) in OF_BATCH_NORM else (USUAL, SMALL)
            yield case(f"{name}={parameter(choice)}", {**low, name: choice}, usual, data=data)


BY_ELEMENT = {"elastic"}
"""Methods that amplify rounding errors of zero gradients, such as that of a bias before batch norm."""

OF_BATCH_NORM = {("fedcac", "statistics")}
"""Choices that concern batch norm. Others are run on a network without it, because such rounding errors can
decide a comparison of elements."""

OPTIONS = {
    "momentum": 0.5,
    "weight_decay": 0.01,
    "lr_schedule": "step",
    "lr_step": 2,
    "lr_gamma": 0.4,
    "lr_warmup": 1,
    "batch_order": "fixed",
    "last_batch": "dropped",
    "bn_stats": "local",
    "validation": 0.3,
}
"""Options that a method's custom local program might ignore, all at once."""


def other_choices(declared: Hyperparameter, default: Any) -> list[Any]:
    """The values of a choice other than its default; none for a number."""
    choices = declared.choices or ((False, True) if isinstance(default, bool) else ())
    return [choice for choice in choices if choice != default]


def away(declared: Hyperparameter, default: float) -> tuple[float, float]:
    """Two accepted values of a number, below and above its default if possible.

    A declaration can give a value that has an effect with few clients and rounds (``probe``).
    """
    if isinstance(default, int):
        wanted = (declared.probe or max(1, default // 2), (declared.probe or default) + 1)
    else:
        wanted = (declared.probe or 0.6 * default or 0.1, 1.7 * default or 0.3)
    low = -float("inf") if declared.low is None else declared.low
    high = float("inf") if declared.high is None else declared.high
    fitting = [value for value in wanted if low <= value <= high and value != default]
    return _short(fitting[0]), _short(fitting[-1])


def _short(value: float) -> float:
    """``value`` with six digits, as recorded with the results."""
    return value if isinstance(value, int) else float(f"{value:.6g}")


# ---- networks ------------------------------------------------------------------------------------------

SHAPES: dict[str, Shape] = {
    "cnn_digits": (1, 8, 8),
    "lenet5": (1, 20, 20),
    "mlp": (12,),
    "mobilenet_v2": (3, 32, 32),
    "spfl_cnn": (3, 20, 18),
}
"""Sample shapes of networks for which it is not the first of `SIDES` that they accept."""

SIDES: tuple[Shape, ...] = (
    *((3, 16, 16), (3, 32, 32), (1, 28, 28), (3, 64, 64), (3, 224, 224), (1, 8, 8)),
    (6, 24),
    (12,),
    TokenShape((10,), 40),
)
LARGE = 1_000_000  # parameters
RATES = {"mobilenet_v2": 1e-4}
"""Learning rates at which rounding errors do not grow, if 0.01 is too large."""

WITH_BFLOAT16 = ("lenet5_bn", "spfl_cnn", "cnn4", "resnet8_cifar", "resnet8")


def of_network(model: str) -> Iterator[Case]:
    """FedAvg on a network, with a rate at which rounding errors do not grow, and batches for our kernels."""
    shape, parameters = _fitting(model)
    large = parameters > LARGE
    sizes = ((14, 5), (3, 2)) if large else ((32, 20, 30, 14), (4, 3, 17, 6))
    options = {
        "model": model,
        "participation": 1.0 if large else 0.75,
        "rounds": 2 if large else 3,
        "epochs": 1 if large else 2,
        "batch_size": 14 if large else 16,
        "lr": RATES.get(model, 0.01),
        "eval_every": 1,
        "dtype": "float64",
    }
    ways = ("torch", "loop", "stacked", *FLOAT32, *(["bfloat16"] if model in WITH_BFLOAT16 else []))
    yield Case(model, f"network {model}", options, Data(shape, 4, *sizes), ways)


@cache
def _fitting(model: str) -> tuple[Shape, int]:
    """The sample shape and the number of parameters of a network, built on the meta device."""
    import torch

    from pfl.core.errors import InvalidInput
    from pfl.data.shape import described
    from pfl.models import build

    shapes = [SHAPES[model]] if model in SHAPES else SIDES
    for shape in shapes:
        try:
            with torch.device("meta"):
                network = build(model, shape, 4)
        except Exception:  # whatever a builder raises for samples of another shape
            continue
        return shape, sum(parameter.numel() for parameter in network.parameters())
    raise InvalidInput("model", model, f"a network for one of {', '.join(map(described, shapes))}")


# ---- the engine ----------------------------------------------------------------------------------------

METRICS = ["auroc", "confusion", "ece", "macro_f1", "recall"]

ON_SMALL: dict[str, dict[str, Any]] = {
    "step": {"lr_schedule": "step", "lr_step": 2, "lr_gamma": 0.3},
    "step after a warm-up": {"lr_schedule": "step", "lr_step": 2, "lr_warmup": 2},
    "cosine": {"lr_schedule": "cosine"},
    "cosine after a warm-up": {"lr_schedule": "cosine", "lr_warmup": 2},
    "warm-up": {"lr_warmup": 3},
    "fixed batches": {"batch_order": "fixed"},
    "class stream": {"batch_order": "class_stream"},
    "last batch dropped": {"last_batch": "dropped"},
    "momentum": {"momentum": 0.5},
    "weight decay": {"weight_decay": 0.05},
    "momentum and weight decay": {"momentum": 0.7, "weight_decay": 0.02},
    "validation": {"validation": 0.3},
    "unseen clients": {"unseen": 0.3, "unseen_epochs": 1},
    "early stopping": {"patience": 1, "min_delta": 100.0, "stop_share": 0.3, "eval_every": 2},
    "symmetric images": {"input_scale": "symmetric"},
    "images of 0 to 1": {"input_scale": "unit"},
    "images of 0 to 255": {"input_scale": "raw255", "lr": 1e-6},
    "every evaluation": {"eval_every": 1},
    "one evaluation": {"eval_every": 7},
    "similarities of all clients": {"observe": "similarities", "participation": 1.0},
    "metrics": {"metrics": METRICS},
    "one participant": {"participation": 0.19},
    "hardly a participant": {"participation": 0.01},
    "full participation": {"participation": 1.0},
    "three epochs": {"epochs": 3},
    "small batches": {"batch_size": 2},
    "one batch": {"batch_size": 1000},
}
"""Options for FedAvg, in every way."""

ON_WIDE: dict[str, dict[str, Any]] = {
    "local statistics": {"bn_stats": "local"},
    "crop and flip": {"augmentation": "crop_flip"},
    "crop, flip and rotation": {"augmentation": "crop_flip_rotate"},
    "flip and rotation": {"augmentation": "flip_rotate"},
    "similarities with batch norm, all clients": {"observe": "similarities", "participation": 1.0},
    "similarities with batch norm, some clients": {"observe": "similarities"},
}

ON_TINY: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "steps, momentum and weight decay": {
        "lr_schedule": "step",
        "lr_step": 1,
        "momentum": 0.5,
        "weight_decay": 0.01,
    },
    "class stream": {"batch_order": "class_stream"},
    "augmentation": {"augmentation": "crop_flip_rotate", "last_batch": "dropped"},
    "validation": {"validation": 0.3},
    "similarities of all clients": {"observe": "similarities", "participation": 1.0},
    "metrics": {"metrics": METRICS},
    "unseen clients": {"unseen": 0.3, "unseen_epochs": 1},
    "fedamp": {"method": "fedamp"},
    "fedcac": {"method": "fedcac"},
    "feddyn": {"method": "feddyn"},
    "fedfomo": {"method": "fedfomo"},
    "scaffold": {"method": "scaffold"},
    "spfl": {"method": "spfl"},
    "rounds ahead of the host": {"rounds": 22, "eval_every": 21},
}
"""Options for the emulated device, which is slow."""

IN_A_CROWD = ("fedavg", "fedamp", "fedcac", "fedfomo", "feddyn", "pfedsim", "spfl")
"""Methods that mix in different ways: averages, personalised weights, by element, changes."""


def of_plugin(method: str) -> Iterator[Case]:
    """The engine's cases of FedAvg with the method of a plugin, whose results its own cases do not show."""
    for case in of_engine():
        if case.method == Config.method and "device" not in case.ways:
            name = f"{method}, {case.name.removeprefix('fedavg ')}"
            options = {**case.options, "method": method}
            yield replace(case, name=name, subject=f"method {method}", options=options, ways=("loop",))


def of_engine() -> Iterator[Case]:
    """The engine: each option, a device, more clients and classes, other seeds, simulations in lockstep."""
    yield Case("defaults of the configuration", None, {"dtype": "float64"}, ways=("loop",), defaults=True)
    for name, options in ON_SMALL.items():
        yield Case(name, None, {**USUAL, **options}, ways=EVERY_WAY)
    for name, options in ON_WIDE.items():
        yield Case(name, None, {**WIDE_USUAL, **options}, WIDE, EVERY_WAY)
    tiny = {**USUAL, "rounds": 3, "epochs": 1, "batch_size": 2}
    device = ("loop", "device")
    for name, options in ON_TINY.items():
        yield Case(f"{name}, on a device", None, {**tiny, **options}, TINY, device)
    yield Case(
        "batch norm, on a device", None, {**tiny, "model": "lenet5_bn", "bn_stats": "local"}, NORMED, device
    )
    for method in IN_A_CROWD:
        options = {**USUAL, "method": method, "participation": 0.58, "rounds": 3}
        yield Case(f"{method} in a crowd", None, options, CROWD, EVERY_WAY)
    yield Case("another seed", None, USUAL, seeds=(7,), ways=EVERY_WAY)
    yield Case("seeds", None, USUAL, seeds=(5, 0, 2**40), ways=EVERY_WAY)
    yield Case("a partition for each seed", None, USUAL, seeds=(1, 2), divided=True, ways=EVERY_WAY)
    lockstep: dict[str, Any] = {"variants": [{"lr": 0.05}, {"hyperparameters": {"mu": 0.3}}], "seeds": (0, 3)}
    yield Case("trials in lockstep", None, {**USUAL, "method": "fedprox"}, ways=EVERY_WAY, **lockstep)
    options = {**tiny, "method": "fedprox"}
    yield Case("trials in lockstep, on a device", None, options, TINY, device, **lockstep)
    adapted = [{"hyperparameters": {"finetune_steps": 3}}, {"hyperparameters": {"finetune_steps": 5}}]
    yield Case("one training", None, {**USUAL, "method": "spfl"}, ways=EVERY_WAY, variants=adapted)
    yield Case("images in a file", None, USUAL, Data(mapped=True), EVERY_WAY)
    yield Case("batch norm in colour", None, {**WIDE_USUAL, "method": "fedbn"}, COLOUR, EVERY_WAY)
