"""Fingerprints: names for the code in trial keys, derived from digests of the code (`pfl.core.digests`).

The code of a trial has five kinds of *components*: the engine, the kernels, its method, its network and its
metrics. A component's digest is accepted if `behaviours.json` lists it; that of a metric never is, but is
part of the name. A *question* is a method with its choices on a network. It keeps its name while the digests
of its components are accepted; any other digest changes the name. An edit therefore makes results stale
unless it is shown to be harmless: ``pfl behaviours`` compares results of the code before and after
(`pfl.testing.battery`), and accepts the new digest.

Two files list accepted digests: `pfl/behaviours.json` for built-in components, and `behaviours.json` in the
user's project for the methods and networks of plugins. The latter is in the working directory or next to the
plugin's package. It also lists the engine and the kernels with which the plugins were tested.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl.client_metrics import CLIENT_METRICS
from pfl.core.config import Config
from pfl.core.digests import RESULT_NEUTRAL, Code, Edited, is_in, is_library
from pfl.core.errors import InvalidInput
from pfl.core.files import write_text
from pfl.core.registry import Registry
from pfl.core.syntax import top_level
from pfl.methods import METHODS
from pfl.models import MODELS, weights_of
from pfl.run.validation import validated

if TYPE_CHECKING:
    from pfl.core.hyper import Hyperparameter
    from pfl.models import Shape

BUILTIN = Path(__file__).parents[1] / "behaviours.json"
PROJECT = Path("behaviours.json")
"""The name of the file in a user's project."""

ROOTS = ("pfl.run.simulate", "pfl.run.trials", "pfl.data.statistics", "pfl.data.stored")
"""The engine is these modules and all that they import, without the other components."""

READERS = ("pfl.data.dataset", "pfl.data.datasets", "pfl.data.partitions")
"""Modules whose results have checksums in a trial's key: images, labels and partitions."""

KERNELS = "pfl.kernels"

SHARED = ("engine", "kernels")
"""The components of all trials."""

ON = ("momentum", "weight_decay", "validation", "lr_warmup", "patience", "unseen")
"""Numeric options for which 0 means off."""

REGISTRIES: Mapping[str, Registry[Any]] = {"method": METHODS, "network": MODELS, "metric": CLIENT_METRICS}
"""Registries by kind of component."""

ROUNDING = ("dtype", "precision")
"""Options that a question leaves out, because a trial's key contains them separately."""

Values = dict[str, Any]
"""The results of one case of the battery by name: numbers, and names of moments."""


@dataclass
class AcceptedCode:
    """The content of a `behaviours.json`.

    Attributes:
        components: the accepted digests of each component, the latest last.
        revisions: the code that last changed the results of a method or network ("method fedavg"), at first
            the code with which it was accepted. Those of the first methods and networks have none.
        names: names of questions that predate those derived from revisions.
        battery: the results of each case.
    """

    components: dict[str, list[str]] = field(default_factory=dict)
    revisions: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    battery: dict[str, Values] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> AcceptedCode:
        """The content of a file; empty if it does not exist.

        Raises:
            InvalidInput: the file has another format.
        """
        try:
            parts = json.loads(path.read_text(encoding="utf-8"))
            if not all(isinstance(part, dict) for part in parts.values()):
                raise TypeError
            return cls(**parts)
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, TypeError, AttributeError):
            raise InvalidInput("behaviours", str(path), "a file that `pfl behaviours` has written") from None

    def save(self, path: Path) -> None:
        """Write the file atomically, with one entry per line."""
        parts = []
        for name, part in vars(self).items():
            lines = ",\n".join(f"  {json.dumps(key)}: {_compact(part[key])}" for key in sorted(part))
            parts.append(f' "{name}": {{\n{lines}\n }}' if part else f' "{name}": {{}}')
        write_text(path, "{\n" + ",\n".join(parts) + "\n}\n")

    def accepts(self, component: str, digest: str) -> bool:
        """Whether a component's digest is accepted."""
        return digest in self.components.get(component, ())

    def unknown(self, digests: Mapping[str, str]) -> dict[str, str]:
        """The components whose digests are not accepted."""
        return {name: digest for name, digest in digests.items() if not self.accepts(name, digest)}


# ---- components ----------------------------------------------------------------------------------------


class Components:
    """The components of a source tree and their digests.

    Args:
        roots: as in `pfl.core.digests.Code`; by default the tree is that of this process.
    """

    def __init__(self, roots: Sequence[Path] = ()):
        plugins = [top_level(point.module) for point in _points()]
        self.code = Code(plugins, (*READERS, *RESULT_NEUTRAL), roots)
        self._kernels = self.code.package(KERNELS)
        self._engine = self.code.reached(ROOTS, lambda module: is_in(module, [KERNELS]))
        self._known: dict[str, str] = {}

    def digest(self, component: str) -> str:
        """The digest of a component: "engine", "kernels", "method NAME", "network NAME" or "metric NAME"."""
        if component not in self._known:
            self._known[component] = self.code.digest(*self._parts(component))
        return self._known[component]

    def files(self, component: str) -> set[Path]:
        """The files of a component, without links."""
        files, whole, _ = self._parts(component)
        return {path.resolve() for path in (*files.values(), *self.code.data(files, whole))}

    def _parts(self, component: str) -> tuple[dict[str, Path], list[str], list[str]]:
        """The modules of a component by name, the packages that belong to it with all data files, and the
        dotted names of a plugin's entry point."""
        if component == "engine":
            return self._engine, [], []
        if component == "kernels":
            return self._kernels, [KERNELS], []
        kind, _, name = component.partition(" ")
        registry = REGISTRIES[kind]
        module, point = registry.module(name), registry.plugin(name)
        whole = [top_level(module)] if point else []
        entries = [".".join(filter(None, (point.module, point.attr)))] if point else []
        # A package is one component; in a project's folder of plugins, each file is one.
        files = self.code.package(top_level(module)) if point and point.dist else {}
        others = self.code.reached([module, *files], lambda m: m in self._engine or is_in(m, [KERNELS]))
        return files | others, whole, entries


def components_of(method: str, model: str) -> tuple[str, str, str, str]:
    """The names of the components that determine the results of a method with a network."""
    return *SHARED, f"method {method}", f"network {model}"


def metrics_of(names: Iterable[str]) -> list[str]:
    """The components of metrics. Their digests are part of the names of questions with them."""
    return [f"metric {name}" for name in names]


def components(file: Path | None = None) -> dict[str, str]:
    """The digest of every component that a file lists: the engine, the kernels and, in `BUILTIN` (the
    default), all built-in methods and networks, otherwise those of plugins."""
    project = file not in (None, BUILTIN)
    subjects = [*(f"method {name}" for name in METHODS), *(f"network {name}" for name in MODELS)]
    names = [*SHARED, *(name for name in subjects if is_plugin(name) == project)]
    return {name: _components().digest(name) for name in names}


def unknown() -> dict[str, str]:
    """The components whose digests are not accepted for some method with some network."""
    pairs = product(METHODS, MODELS)
    return {name: digest for pair in pairs for name, digest in unknown_of(*pair).items()}


def files_of(component: str) -> set[Path]:
    """The files that a component's digest covers."""
    return _components().files(component)


def unknown_of(method: str, model: str) -> dict[str, str]:
    """The components of a method with a network whose digests are not accepted."""
    digests = {name: _components().digest(name) for name in components_of(method, model)}
    judged = _accepting(digests)
    return {name: digest for name, digest in digests.items() if not judged[name].accepts(name, digest)}


def is_plugin(component: str) -> bool:
    """Whether a component is a method or a network of a plugin."""
    kind, _, name = component.partition(" ")
    return bool(name) and REGISTRIES[kind].plugin(name) is not None


# ---- names ---------------------------------------------------------------------------------------------


def name_of(config: Config, shape: Shape, classes: int) -> str:
    """The name of what a validated ``config`` does, the same for all code with the same results.

    Args:
        shape: shape of the images: channels, height, width.
        classes: number of classes.

    Raises:
        Edited: the files have changed since this process started.
    """
    question = question_of(config, shape, classes)
    return _name(question, config.method, config.model, config.metrics)


def question_of(config: Config, shape: Shape, classes: int) -> str:
    """What a name stands for, for example "fedcac, lenet5, 3x32x32, 10 classes, collab=none".

    Options at their defaults are left out, so that a new option changes no question, and so are numbers,
    because a trial's key contains them.
    """
    usual = validated(Config(method=config.method))
    parts = [config.method, config.model, "x".join(map(str, shape)), f"{classes} classes"]
    if weights := weights_of(config.model):
        parts.append(weights)
    for name, value in vars(config).items():
        default = getattr(usual, name)
        if name in ON and bool(value) != bool(default):
            parts.append(f"{name}={'some' if value else 0}")
        elif isinstance(value, str) and name not in ("method", "model", *ROUNDING) and value != default:
            parts.append(f"{name}={value}")
    parts += metrics_of(config.metrics)
    for name, declared in METHODS[config.method].declarations().items():
        value, default = config.hyperparameters[name], usual.hyperparameters[name]
        if is_choice(declared, default):
            parts += [f"{name}={value}"] if value != default else []
        elif bool(value) != bool(default):
            parts.append(f"{name}={'some' if value else 0}")
    return ", ".join(parts)


def revision(component: str, digests: Mapping[str, str]) -> str:
    """The revision of a method or a network whose results are those of the code with these ``digests``."""
    return hash_of({name: digests[name] for name in (*SHARED, component)})


def is_choice(declared: Hyperparameter, default: Any) -> bool:
    """Whether a hyperparameter is one of a few values rather than a number."""
    return declared.choices is not None or isinstance(default, bool)


def code_digest(method: str, model: str) -> str:
    """One digest of all code that determines the results of a method with a network."""
    return hash_of([_components().digest(name) for name in components_of(method, model)])


@cache
def digest_of_plugin(package: str) -> str:
    """The digest of a plugin's package with its data files, and of its imports except the simulator."""
    code = _components().code
    files = code.package(package)
    return code.digest(files | code.reached(files, lambda module: is_in(module, ["pfl"])), [package])


def plugin_digests(method: str, model: str) -> dict[str, str]:
    """The digests of a method and a network by component, if they come from plugins."""
    return {name: _components().digest(name) for name in components_of(method, model) if is_plugin(name)}


def check_unchanged(method: str, model: str, metrics: Sequence[str] = ()) -> None:
    """Check that the files of a method, a network and metrics have not changed since this process started.

    Raises:
        Edited: they have.
    """
    now = Components()
    for name in (*components_of(method, model), *metrics_of(metrics)):
        if now.digest(name) != _components().digest(name):
            raise Edited(f"the files of {name}")


@cache
def _name(question: str, method: str, model: str, metrics: tuple[str, ...]) -> str:
    judged, new = _accepting(components_of(method, model)), unknown_of(method, model)
    known, revisions = judged["engine"].names.get(question), {}
    digests = {name: _components().digest(name) for name in judged}
    for component, file in judged.items():
        revisions[component] = file.revisions.get(component, "")
        if component not in (*SHARED, *file.components):
            # The revision with which `pfl behaviours` will accept it. It covers the engine and the kernels.
            known, revisions[component] = None, revision(component, digests)
            new = {name: digest for name, digest in new.items() if name not in (*SHARED, component)}
    name = known or f"{method}-{hash_of([question, [*revisions.values()]])}"
    new |= {metric: _components().digest(metric) for metric in metrics_of(metrics)}
    return f"{method}-{hash_of([name, new])}" if new else name


def _accepting(names: Iterable[str]) -> dict[str, AcceptedCode]:
    """What judges each component of a method with a network: a built-in method or network is judged by
    `BUILTIN`, a plugin and what runs it by the project."""
    builtin, plugins = _accepted(BUILTIN), tuple(filter(is_plugin, names))
    project = _project(*plugins) if plugins else builtin
    return {name: project if name in (*SHARED, *plugins) else builtin for name in names}


@cache
def _components() -> Components:
    """The components of this process."""
    return Components()


_accepted = cache(AcceptedCode.load)


@cache
def _project(*plugins: str) -> AcceptedCode:
    """What the user's project accepts: the first file that lists all ``plugins``, which are components."""
    files = map(AcceptedCode.load, project_files())
    return next((file for file in files if file.components.keys() >= set(plugins)), AcceptedCode())


def project_files() -> list[Path]:
    """The user's files of accepted digests: in the working directory, and next to each plugin's package that
    is not installed as a library."""
    code = Code(top_level(point.module) for point in _points())
    paths = [PROJECT.resolve()]
    for point in _points():
        file = code.file(top_level(point.module))
        if file and not is_library(file.resolve()):
            package = file.parent if file.name == "__init__.py" else file
            paths.append(package.resolve().parent / PROJECT)
    return list(dict.fromkeys(paths))


def _points() -> list[Any]:
    """The entry points of plugins' methods, networks and metrics."""
    named = ((registry, name) for registry in REGISTRIES.values() for name in registry)
    return [point for registry, name in named if (point := registry.plugin(name))]


def forget() -> None:
    """Read the files of accepted digests again."""
    for known in (_accepted, _project, _name):
        known.cache_clear()


_compact = partial(json.dumps, separators=(",", ":"))


def hash_of(content: Any) -> str:
    """A short digest of JSON values."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]
