"""The registries of methods, models, data sets and partition rules. Each component is one file.

``pfl/methods/fedper.py`` is the method ``fedper``. In a project, ``plugins/methods/mymethod.py`` is the
method ``mymethod``; a plugin package adds methods through entry points of the group ``pfl.methods``. A plugin
must not have the name of a built-in component. Names are known without importing the components, so that
lists and error messages are fast.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import pkgutil
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from pfl.core.errors import InvalidInput, unknown_name
from pfl.core.text import first_line

T = TypeVar("T")

PLUGINS = "plugins"
"""The folder of a project whose files are components: methods in ``methods/``, networks in ``models/``, …"""


def only_class(base: type[T]) -> Callable[[ModuleType], type[T]]:
    """A function that returns the only subclass of ``base`` in a module; it raises ValueError otherwise."""

    def pick(module: ModuleType) -> type[T]:
        kinds = [
            member
            for member in vars(module).values()
            if isinstance(member, type) and issubclass(member, base) and member.__module__ == module.__name__
        ]
        if len(kinds) != 1:
            raise ValueError(f"it defines {len(kinds)} subclasses of {base.__name__} instead of one")
        return kinds[0]

    return pick


class _CannotLoad(InvalidInput):
    """A plugin that raises an error when it is imported."""

    _form = "{}: cannot load plugin {}: {}"


class Registry(Mapping[str, T]):
    """A mapping from name to component; a component is imported on first access.

    Args:
        kind: the word for an entry in error messages, for example "method".
        package: the package whose files are the components; also the name of the entry-point group.
        pick: returns the component of a module; by default the module's attribute of the same name.
    """

    def __init__(self, kind: str, package: str, pick: Callable[[ModuleType], T] | None = None):
        self.kind = kind
        self.package = package
        self._pick = pick or (lambda module: getattr(module, module.__name__.rpartition(".")[2]))

        self._added: dict[str, T] = {}

    def add(self, name: str, component: T) -> None:
        """Register a component as ``name`` in this process, replacing one added before.

        Raises:
            InvalidInput: a file or a package has another component of that name.
        """
        if name not in self._files and name not in self._points:
            self._added[name] = component
        elif self[name] is not component:
            raise InvalidInput(self.kind, name, f"a name not used by another {self.kind}")

    def was_added(self, name: str) -> bool:
        """Whether the component was registered as an object, so that no file identifies its code."""
        return name in self._added

    @cached_property
    def _files(self) -> frozenset[str]:
        path = importlib.import_module(self.package).__path__
        return frozenset(module.name for module in pkgutil.iter_modules(path) if module.name[0] != "_")

    @cached_property
    def _points(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in (*entry_points(group=self.package), *self._of_the_project())}

    def _of_the_project(self) -> Iterator[EntryPoint]:
        """The files in the working directory's plugin folder, as entry points."""
        folder = self.package.rpartition(".")[2]
        root = Path.cwd()
        for file in sorted((root / PLUGINS / folder).glob("[!_]*.py")):
            if not file.stem.isidentifier():
                accepted = "a name of letters, digits and underscores, such as my_method.py"
                raise InvalidInput(f"{PLUGINS}/{folder}", file.name, accepted)
            if str(root) not in sys.path:
                sys.path.append(str(root))  # last, so that no module of the project shadows an installed one
            yield EntryPoint(file.stem, f"{PLUGINS}.{folder}.{file.stem}", self.package)

    def __getitem__(self, name: str) -> T:
        """The component called ``name``.

        Raises:
            InvalidInput: the name is unknown, or a plugin does not load or has the name of a built-in
                component.
        """
        if name in self._added:
            return self._added[name]
        if name in self._files:
            if plugin := self._points.get(name):
                whose = f"package {plugin.dist.name}" if plugin.dist else "plugin"
                accepted = f"another name in the {whose} ({plugin.value}): a built-in {self.kind} has it"
                raise InvalidInput(self.kind, name, accepted)
            return self._pick(importlib.import_module(f"{self.package}.{name}"))
        if name in self._points:
            try:
                component = self._points[name].load()
                return self._pick(component) if isinstance(component, ModuleType) else component
            except (Exception, SystemExit) as error:  # whatever the import of a plugin raises
                place = _raised_in(error) or self._points[name].value
                raise _CannotLoad(self.kind, name, f"{place} ({type(error).__name__}: {error})") from error
        raise unknown_name(self.kind, name, self)

    def __contains__(self, name: object) -> bool:
        return name in self._added or name in self._files or name in self._points

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._files | self._points.keys() | self._added.keys()))

    def __len__(self) -> int:
        return len(self._files | self._points.keys() | self._added.keys())

    def plugin(self, name: str) -> EntryPoint | None:
        """The plugin that a component comes from; None if it is built in."""
        return None if name in self._files else self._points.get(name)

    def module(self, name: str) -> str:
        """The name of a component's module."""
        point = self.plugin(name)
        return point.module if point else f"{self.package}.{name}"

    def summary(self, name: str) -> str:
        """The first line of the docstring of the component's file, read without importing it; of a plugin
        whose file or package does not load, the reason."""
        return self._declared(name)[0]

    def defines(self, name: str, function: str) -> bool:
        """Whether the module of a component has this function; a built-in module is not imported.

        Raises:
            InvalidInput: as by ``self[name]``.
        """
        if name in self._files and name not in self._points:
            return function in self._declared(name)[1]
        return hasattr(sys.modules[self[name].__module__], function)

    def _declared(self, name: str) -> tuple[str, frozenset[str]]:
        try:
            spec = importlib.util.find_spec(self.module(name))
        except (Exception, SystemExit) as error:  # whatever the import of a plugin's package raises
            return f"(does not load, {type(error).__name__}, {first_line(error)})", frozenset()
        return _declared(spec.origin) if spec and spec.origin else ("", frozenset())

    def title(self, name: str) -> str:
        """The printed name of a component: its summary up to the colon, or ``name`` if there is none.

        >>> from pfl.methods import METHODS
        >>> METHODS.title("pfedsim")
        'pFedSim'
        """
        title, colon, _ = self.summary(name).partition(": ")
        return title if colon else name


@cache
def _declared(file: str) -> tuple[str, frozenset[str]]:
    """The first line of a file's docstring, and the names of its functions."""
    try:
        module = ast.parse(Path(file).read_bytes())
    except SyntaxError as error:
        return f"(does not load, line {error.lineno}, {error.msg})", frozenset()
    functions = frozenset(part.name for part in module.body if isinstance(part, ast.FunctionDef))
    return (ast.get_docstring(module) or "").partition("\n")[0], functions


def _raised_in(error: BaseException) -> str:
    """File and line at which the import of a plugin raised ``error``; empty if outside of the plugin."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    ours = (Path(importlib.__path__[0]), Path(__file__).parents[1])
    reached = [
        f"{frame.filename}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<") and not any(map(Path(frame.filename).is_relative_to, ours))
    ]
    return reached[-1] if reached else ""
