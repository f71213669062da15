"""The conformance kit for methods: `check_method`."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_map_only

from pfl.core.config import Config, Execution
from pfl.core.errors import InvalidInput
from pfl.core.hyper import Hyperparameter
from pfl.data.federation import Federation
from pfl.data.partition import Partition
from pfl.engine import checkpoint, evaluation, workers
from pfl.engine.evaluation import moments
from pfl.engine.loop import LoopBackend
from pfl.engine.method import FIELDS, Method
from pfl.engine.model_file import read_models
from pfl.engine.result import Result
from pfl.engine.round import begin_round
from pfl.methods import METHODS
from pfl.run.api import registered_method
from pfl.run.simulate import make_simulation, simulate_configs
from pfl.run.validation import validated
from pfl.testing.battery import Values, close, values_of
from pfl.testing.cases import other_choices
from pfl.testing.emulated import DEVICE, emulated, emulated_gpu
from pfl.testing.kit import Kit, Violated, check_finite, random_state
from pfl.testing.synthetic import make_clients, make_dataset

CONFIG = Config(
    model="lenet5_bn",
    participation=0.5,
    rounds=3,
    epochs=2,
    batch_size=8,
    lr=0.1,
    eval_every=1,
    dtype="float64",
)
"""Three rounds in float64, evaluated after each, on a network with batch norm."""

SIZES = (20, 9, 14, 5, 16, 12)
"""Training samples of the clients. The minibatches of some of them end with a smaller one."""

TOLERANCE = 1e-9
"""Absolute and relative tolerance between backends in float64."""

LOOP = Execution(device="cpu", backend="loop")
STACKED = Execution(device="cpu", backend="stacked")


class CheckedMethod:
    """A method with the simulations that several rules compare.

    Attributes:
        name: registered name of the method.
        cls: its class.
        own: its hyperparameters that are not at their defaults.
        dataset, partition: a small synthetic federation.
    """

    def __init__(self, method: str | Method | type[Method]):
        self.own: dict[str, Any] = {}
        if isinstance(method, str):
            self.name = method
        else:
            self.name, self.own = registered_method(method)
        self.cls = METHODS[self.name]
        self.dataset = make_dataset()
        self.partition = make_clients(self.dataset, SIZES)
        self._whole: dict[str, Values] = {}

    @property
    def method(self) -> Method:
        """The method with its hyperparameters."""
        return self.cls.from_dict(self.own)

    def config(self, **changes: Any) -> Config:
        """`CONFIG` with this method and ``changes``."""
        own = {**self.own, **changes.pop("hyperparameters", {})}
        return dataclasses.replace(CONFIG, method=self.name, hyperparameters=own, **changes)

    def run(self, execution: Execution = LOOP, clients: Partition | None = None, **changes: Any) -> Result:
        """One simulation with one seed; one that diverges is a violation."""
        divided = clients or self.partition
        ((result,),) = simulate_configs([self.config(**changes)], self.dataset, divided, (0,), execution)
        check_finite(result)
        return result

    def numbers(self, backend: Literal["loop", "stacked"] = "loop", **changes: Any) -> Values:
        """All numbers of a simulation, computed once."""
        key = repr((backend, changes))
        if key not in self._whole:
            result = self.run(Execution(device="cpu", backend=backend), **changes)
            self._whole[key] = values_of(result.metrics)
        return self._whole[key]

    def bits(self, execution: Execution, clients: Partition | None = None, **changes: Any) -> Values:
        """All numbers of a simulation, and all models at its end, on a CPU with the loop backend."""
        with TemporaryDirectory() as folder:
            file = Path(folder) / "models.pt"
            execution = dataclasses.replace(execution, device="cpu", backend="loop", save=str(file))
            values = values_of(self.run(execution, clients, **changes).metrics)
            (models,) = read_models(file)["seeds"].values()
        values |= {f"personal, {name}": stack for name, stack in models["personal"].items()}
        return values | {f"models, {name}": stack for name, stack in models["tensors"].items()}


KIT: Kit[CheckedMethod] = Kit()


def check_method(method: str | Method | type[Method], rules: Sequence[str] | None = None) -> None:
    """Check that a method meets every rule of `pfl.testing.method_kit`, on a small synthetic federation.

    Args:
        method: a class; a method with hyperparameters, as in ``MyMethod(mu=0.5)``; a name of `pfl methods`.
        rules: names of rules; by default all, which takes seconds.

    Raises:
        Violations: with one line for each violated rule.
        InvalidInput: the method or a rule is unknown.
    """
    tested = CheckedMethod(method)
    KIT.check(tested.name, tested, rules)


# ---- declaration ---------------------------------------------------------------------------------------


@KIT.rule
def docstring(tested: CheckedMethod) -> None:
    """The docstring has the fields Source, State, Evaluated and Differs from the authors, in this order."""
    fields = tested.cls.fields()
    if missing := [name for name in FIELDS if not fields.get(name)]:
        raise Violated(f"no field {', '.join(missing)}")
    if tuple(fields) != FIELDS:
        raise Violated(f"the fields are {', '.join(fields)}; expected the order {', '.join(FIELDS)}")


@KIT.rule
def hyperparameters(tested: CheckedMethod) -> None:
    """Every option is declared with `hyper` in a frozen dataclass, with a description and a valid default."""
    for name, declared in tested.cls.declarations().items():
        if not declared.about.strip() or "\n" in declared.about:
            raise Violated(f"{name} has no description of one line")
        default = tested.cls.__dataclass_fields__[name].default
        declared.check(name, default, default)


@KIT.rule
def search_space(tested: CheckedMethod) -> None:
    """Every search range is increasing and within the domain; ``when`` names choices of another option."""
    declarations = tested.cls.declarations()
    for name, declared in declarations.items():
        default = tested.cls.__dataclass_fields__[name].default
        others: dict[str, Any] = {}
        if declared.when:
            condition, *values = declared.when
            known = declarations.get(condition)
            if known is None or known.when or not set(values) < set(known.choices or ()):
                raise Violated(f"{name}: when={declared.when} does not name choices of another option")
            others = {condition: values[0]}
        if declared.search is not None:
            _check_range(name, declared, default)
            for value in declared.search:
                declared.check(name, value, default)
                tested.cls.from_dict({**others, name: value})


def _check_range(name: str, declared: Hyperparameter, default: Any) -> None:
    search = declared.search
    assert search is not None
    if declared.choices is not None:
        if not search or len(set(search)) < len(search) or declared.log:
            raise Violated(f"{name}: search={search} is not some of the choices")
        return
    if len(search) != 2 or not all(type(end) in (int, type(default)) for end in search):
        raise Violated(f"{name}: search={search} is not two numbers of the default's type")
    if not search[0] < search[1]:
        raise Violated(f"{name}: search={search} is not increasing")
    if declared.log and search[0] <= 0:
        raise Violated(f"{name}: search={search} is not positive, as log=True needs")


@KIT.rule
def warm_up(tested: CheckedMethod) -> None:
    """``warm_up(rounds)`` is an integer in [0, rounds]."""
    for rounds in (1, 10, 1000):
        first = tested.method.warm_up(rounds)
        if type(first) is not int or not 0 <= first <= rounds:
            raise Violated(f"warm_up({rounds}) is {first!r}; expected an integer in [0, {rounds}]")


# ---- numbers -------------------------------------------------------------------------------------------


@KIT.decisive
def simulation(tested: CheckedMethod) -> None:
    """A short simulation ends with finite losses, and the reported moment is evaluated."""
    tested.run()


@KIT.rule
def backends(tested: CheckedMethod) -> None:
    """The backends loop and stacked agree in float64 within 1e-9, at every moment."""
    _check_backends(tested)


@KIT.rule
def full_participation(tested: CheckedMethod) -> None:
    """The backends agree if all clients take part."""
    _check_backends(tested, participation=1.0)


@KIT.rule
def choices(tested: CheckedMethod) -> None:
    """The backends agree for every other choice of a hyperparameter."""
    for name, declared in tested.cls.declarations().items():
        for choice in other_choices(declared, getattr(tested.method, name)):
            changes = {"hyperparameters": {name: choice}, "model": "lenet5", "rounds": 2}
            _check_backends(tested, f"stacked with {name}={choice}", **changes)


@KIT.rule
def stack(tested: CheckedMethod) -> None:
    """Trials that differ in learning rate and real-valued hyperparameters agree with separate runs."""
    config = validated(tested.config(epochs=1))
    nearby = {name: _other(tested.method, name, value) for name, value in tested.method.numbers().items()}
    configs = [
        config,
        dataclasses.replace(config, lr=config.lr / 2),
        dataclasses.replace(config, lr=config.lr / 4, hyperparameters={**config.hyperparameters, **nearby}),
    ]
    seeds = (0, 1)
    together = simulate_configs(configs, tested.dataset, tested.partition, seeds, STACKED)
    for config, results in zip(configs, together, strict=True):
        (alone,) = simulate_configs([config], tested.dataset, tested.partition, seeds, LOOP)
        for ours, theirs in zip(results, alone, strict=True):
            _agree(values_of(ours.metrics), values_of(theirs.metrics), "together")


@KIT.rule
def adaptation(tested: CheckedMethod) -> None:
    """Trials that differ only in what `adaptation` reads are trained once and equal separate runs."""
    for name, declared in tested.cls.declarations().items():
        if declared.adaptation:
            other = {name: _other(tested.method, name, getattr(tested.method, name))}
            configs = [tested.config(), tested.config(hyperparameters=other)]
            _, (together,) = simulate_configs(configs, tested.dataset, tested.partition, (0,), LOOP)
            alone = tested.numbers(hyperparameters=other)
            _equal(values_of(together.metrics), alone, f"trained once for another {name}")


@KIT.rule
def device(tested: CheckedMethod) -> None:
    """Tensors on an emulated device give the same numbers in both backends."""
    for backend in ("loop", "stacked"):
        with emulated():
            execution = Execution(device=str(DEVICE), backend=backend)
            there = values_of(tested.run(execution).metrics)
        _agree(there, tested.numbers(backend), f"{backend} on a device")


@KIT.rule
def graphs(tested: CheckedMethod) -> None:
    """Recorded and replayed steps, in rounds without host synchronisation, give the same numbers."""
    options: dict[str, Any] = {"eval_every": CONFIG.rounds, "epochs": 1}
    with emulated_gpu() as gpu:
        there = values_of(tested.run(Execution(device=str(DEVICE), backend="stacked"), **options).metrics)
    _agree(there, tested.numbers(**options), "replayed")
    if not gpu.replays:
        raise Violated("no step was recorded")


@KIT.rule
def local_batch_norm(tested: CheckedMethod) -> None:
    """The backends agree with ``bn_stats="local"``."""
    _check_backends(tested, bn_stats="local")


# ---- reproducibility -----------------------------------------------------------------------------------


@KIT.rule
def determinism(tested: CheckedMethod) -> None:
    """A second run is bit-identical. It neither reads nor changes global random states."""
    runs, untouched = [], True
    for seed in (1, 2):
        with random_state(seed):
            expected = _next_numbers()
        with random_state(seed):
            runs.append(tested.bits(Execution(), dtype="float32"))
            untouched &= _next_numbers() == expected
    _equal(runs[1], runs[0], "again")
    if not untouched:
        raise Violated("a run draws from the global random state of NumPy or torch")


def _next_numbers() -> tuple[float, float]:
    """The next number of NumPy's and of torch's global random state."""
    return np.random.random(), torch.rand(()).item()  # noqa: NPY002


@KIT.rule
def resume(tested: CheckedMethod) -> None:
    """An interrupted run that is resumed from its checkpoint is bit-identical to a whole one."""

    class CrashError(Exception):
        pass

    def crash(round: int, *_: Any) -> None:
        if round == 3:
            raise CrashError

    options: dict[str, Any] = {"dtype": "float32", "rounds": 4}
    whole = tested.bits(Execution(), **options)
    with TemporaryDirectory() as folder, patch.object(checkpoint, "EVERY", 2):
        execution = dataclasses.replace(LOOP, checkpoint_dir=folder, code="conformance")
        config = tested.config(**options)
        with suppress(CrashError):
            simulate_configs([config], tested.dataset, tested.partition, (0,), execution, crash)
        resumed = tested.bits(execution, **options)
    _equal(resumed, whole, "resumed")


@KIT.rule
def forked_workers(tested: CheckedMethod) -> None:
    """Two worker processes give bit-identical results to one."""
    options: dict[str, Any] = {"dtype": "float32", "participation": 1.0}
    options |= {"eval_every": CONFIG.rounds, "epochs": 1}
    # Every call is worth a fork, and the models of one process are evaluated a few at a time.
    with patch.object(workers, "WORTHWHILE", -1.0), patch.object(evaluation, "PART_BYTES", 1 << 18):
        alone, shared = (tested.bits(Execution(workers=count), **options) for count in (1, 2))
    _equal(shared, alone, "two workers")


@KIT.rule
def hooks(tested: CheckedMethod) -> None:
    """`participants`, `phases`, `adaptation` and `personal` change no state; two calls give equal results."""
    federation = Federation(tested.dataset, tested.partition, torch.device("cpu"), torch.float64)
    config = validated(tested.config(rounds=9, epochs=1))
    simulation = make_simulation([config], federation, (0,), LoopBackend())
    for _ in range(2):
        simulation.advance()
    method, server = simulation.program.method, simulation.runs[0].server
    begin_round(server, method)

    def state() -> dict[str, Any]:
        return _leaves(tree_map_only(Tensor, Tensor.clone, checkpoint.server_state(server)))

    def answers() -> dict[str, Any]:
        tensors = {moment: dict(method.personal(server, moment)) for moment in moments(method, server)}
        phases = [
            [*map(_comparable, vars(phase).values())]
            for phase in (*method.phases(server), *method.adaptation(server))
        ]
        answered = {"participants": method.participants(server), "personal": tensors, "phases": phases}
        return _leaves(tree_map_only(Tensor, Tensor.clone, answered))

    before = state()
    first = answers()
    _equal(answers(), first, "the second time")
    _equal(state(), before, "state after the hooks")


@KIT.rule
def traffic(tested: CheckedMethod) -> None:
    """Counted traffic is not negative; if clients affect each other, something is counted down and up."""
    own, *others = tested.partition.train
    # The first client keeps its samples; the others exchange theirs.
    exchanged = dataclasses.replace(tested.partition, train=(own, *others[1:], others[0]))
    options: dict[str, Any] = {"participation": 1.0, "epochs": 1}
    values, changed = (
        tested.bits(Execution(), clients, **options) for clients in (tested.partition, exchanged)
    )
    for way in ("down", "up"):
        counts = values[f"bytes {way}"]
        if not all(type(count) is int for count in counts) or counts != sorted(counts) or counts[0] < 0:
            raise Violated(f"bytes {way} over the rounds are {counts}; expected growing integers")
    names = [name for name in values if name.startswith("models, ")]
    affected = [name for name in names if not torch.equal(values[name][0], changed[name][0])]
    for way in ("down", "up"):
        if affected and not values[f"bytes {way}"][-1]:
            name = affected[0].removeprefix("models, ")
            raise Violated(f"{name} of a client depends on other clients, but no traffic {way} is counted")


# ---- unseen clients ------------------------------------------------------------------------------------


@KIT.rule
def unseen_clients(tested: CheckedMethod) -> None:
    """Clients that join after training have not influenced it, and the backends agree on their accuracies."""
    metrics = tested.run(unseen=0.3).metrics
    assert metrics.unseen is not None
    unseen = {client.client for client in metrics.unseen.per_client}
    train, test = list(tested.partition.train), list(tested.partition.test)
    for client in unseen:
        train[client], test[client] = train[client][:-2], train[client][-2:]
    others = dataclasses.replace(tested.partition, train=tuple(train), test=tuple(test))
    again = tested.run(clients=others, unseen=0.3).metrics
    values, expected = (values_of(dataclasses.replace(run, unseen=None)) for run in (again, metrics))
    _equal(values, expected, "with other samples of the unseen clients")
    _agree(tested.numbers("stacked", unseen=0.3), values_of(metrics), "stacked")


# ---- small clients -------------------------------------------------------------------------------------


@KIT.rule
def lone_client(tested: CheckedMethod) -> None:
    """A federation of one client is simulated."""
    tested.run(clients=make_clients(tested.dataset, [20]), participation=1.0)


@KIT.rule
def small_clients(tested: CheckedMethod) -> None:
    """Clients with a single minibatch, or a single sample, are simulated in both backends."""
    clients = make_clients(tested.dataset, [8, 1, 20])
    for execution in (LOOP, STACKED):
        tested.run(execution, clients, participation=1.0)


@KIT.rule
def one_class(tested: CheckedMethod) -> None:
    """A client whose samples are all of one class is simulated."""
    members = np.flatnonzero(tested.dataset.labels == 0)
    others = np.flatnonzero(tested.dataset.labels != 0)
    clients = Partition(
        spec="file:synthetic.json",
        train=(members[:12], others[:16], others[16:30]),
        test=(members[12:20], others[30:40], others[40:50]),
        data_checksum=tested.dataset.checksum,
    )
    tested.run(clients=clients, participation=1.0)


# ---- comparisons ---------------------------------------------------------------------------------------


def _check_backends(tested: CheckedMethod, where: str = "stacked", **changes: Any) -> None:
    """Check that the backends agree in a simulation with ``changes``."""
    _agree(tested.numbers("stacked", **changes), tested.numbers(**changes), where)


def _agree(values: Values, expected: Values, what: str) -> None:
    """Check that all numbers of two simulations agree up to rounding."""
    for name in dict.fromkeys([*expected, *values]):
        ours, theirs = values.get(name), expected.get(name)
        if not close(theirs, ours, TOLERANCE):
            raise Violated(f"{what}, {_difference(name, ours, theirs, TOLERANCE)}")


def _equal(values: Mapping[str, Any], expected: Mapping[str, Any], what: str) -> None:
    """Check that all numbers and tensors are equal, bit by bit."""
    for name in dict.fromkeys([*expected, *values]):
        ours, theirs = values.get(name), expected.get(name)
        if isinstance(ours, Tensor) and isinstance(theirs, Tensor):
            if not torch.equal(ours, theirs):
                raise Violated(f"{what}, {name} differs")
        elif type(ours) is not type(theirs) or ours != theirs:
            raise Violated(f"{what}, {_difference(name, ours, theirs)}")


def _difference(name: str, ours: Any, theirs: Any, tolerance: float = 0.0) -> str:
    """Two values in words; of lists, their first entries that differ."""
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        pairs = enumerate(zip(ours, theirs, strict=True))
        place = next(k for k, (our, their) in pairs if not close(their, our, tolerance))
        return _difference(f"{name}[{place}]", ours[place], theirs[place])
    shown = [f"{value:.12g}" if isinstance(value, float) else str(value) for value in (ours, theirs)]
    return f"{name} is {shown[0][:80]}; expected {shown[1][:80]}"


def _leaves(tree: Any) -> dict[str, Any]:
    """The leaves of nested dictionaries and lists by path."""
    return {keystr(path): leaf for path, leaf in tree_flatten_with_path(tree)[0]}


def _comparable(value: Any, within: tuple[Any, ...] = ()) -> Any:
    """``value``, in which a function becomes its code and what it captures, and an array a list.

    Args:
        within: the functions that capture ``value``; a recursive one captures itself.
    """
    if isinstance(value, np.ndarray):
        return value.tolist()
    if not inspect.isfunction(value):
        return value
    if value in within:
        return value.__code__
    captured = [_comparable(cell.cell_contents, (*within, value)) for cell in value.__closure__ or ()]
    return value.__code__, captured


def _other(method: Method, name: str, value: Any) -> Any:
    """Another accepted value of a hyperparameter."""
    if type(value) is float:
        nearby: Sequence[Any] = (value * 0.8, value + 0.1, value * 1.2)
    else:
        nearby = other_choices(method.declarations()[name], value) or [value + 1, value - 1]
    for near in nearby:
        try:
            dataclasses.replace(method, **{name: near})
        except InvalidInput:
            continue
        if near != value:
            return near
    raise Violated(f"{name} can only be {value}")
