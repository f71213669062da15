"""Errors that a user can fix: one line that names the parameter, the value and what is accepted."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from pathlib import PurePath

LONGEST = 500  # maximum length of a value in a message
MOST = 20  # maximum number of names in a message, which otherwise lists the closest


class InvalidInput(ValueError):  # noqa: N818 - "raise InvalidInput" says what it means
    """A user's mistake. The message is one line; the command line prints it and exits with status 2.

    >>> str(InvalidInput("participation", 1.5, "a number in (0, 1]"))
    'participation: 1.5 is not accepted; expected a number in (0, 1]'
    """

    _form = "{}: {} is not accepted; expected {}"

    def __init__(self, parameter: str, value: object, accepted: str):
        # Strings are shown as typed, unless they are not printable.
        shown = value if isinstance(value, str) and value and value.isprintable() else repr(value)
        if len(shown) > LONGEST:
            shown = f"{shown[:LONGEST]}..."
        super().__init__(parameter, shown, accepted)  # the constructor's arguments, so that it can be pickled
        self.parameter, self.shown, self.accepted = parameter, shown, accepted

    def locate(self, where: str) -> None:
        """Prefix the parameter with ``where``, a file or a position in it."""
        self.parameter = f"{where}: {self.parameter}"
        self.args = (self.parameter, self.shown, self.accepted)

    def __str__(self) -> str:
        line = self._form.format(self.parameter, self.shown, self.accepted)
        return " ".join(line.splitlines())  # a library's message may have several lines


class DataWarning(UserWarning):
    """Accepted data were changed, are incomplete or are probably unintended; the message is one line."""


class OptionWarning(UserWarning):
    """An option is valid, but probably unintended; the message is one line."""


class Missing(InvalidInput):
    """A missing file or dependency; the value states the problem.

    >>> str(Missing("git", "not installed", "git, which DVC requires"))
    'git: not installed; expected git, which DVC requires'
    """

    _form = "{}: {}; expected {}"


class Conflict(InvalidInput):
    """Valid input that cannot be used now; the value is the reason, and ``accepted`` says what to do.

    >>> str(Conflict("sources", "the source changed during the sweep", "run it again"))
    'sources: the source changed during the sweep; run it again'
    """

    _form = "{}: {}; {}"


class _NoneKnown(InvalidInput):
    """A name was given, but there are none to choose from."""

    _form = "{} {}"


def unknown_name(parameter: str, name: object, known: Iterable[str]) -> InvalidInput:
    """The error for an unknown name, with the known names, or the closest ones if there are many.

    >>> str(unknown_name("method", "pfedsmi", ["fedavg", "pfedsim"]))
    "method: pfedsmi is not accepted; expected one of fedavg, pfedsim (did you mean 'pfedsim'?)"
    >>> str(unknown_name("hyperparameter of FedAvg", "mu", []))
    "FedAvg has no hyperparameter 'mu'"
    """
    known, name = sorted(known), name if isinstance(name, str) else repr(name)
    if not known:
        kind, _, owner = parameter.partition(" of ")
        return _NoneKnown(f"{owner} has no {kind}" if owner else f"there is no {kind}", f"'{name}'", "none")
    meant = PurePath(name.removesuffix(".yaml")).name  # a table's file instead of its name
    near = difflib.get_close_matches(meant, known, n=1, cutoff=0.5)
    hint = f" (did you mean '{near[0]}'?)" if near else ""
    shown = ", ".join(known)
    if len(known) > MOST:
        nearest = difflib.get_close_matches(meant, known, n=5, cutoff=0.0)
        shown = f"{', '.join(nearest)} or {len(known) - len(nearest)} other names"
    return InvalidInput(parameter, name, f"one of {shown}{hint}")


def check_names(parameter: str, names: Iterable[object], known: Collection[str]) -> None:
    """Raise `unknown_name` for the first of ``names`` that is not in ``known``, if any."""
    for name in names:
        if name not in known:
            raise unknown_name(parameter, name, known)
