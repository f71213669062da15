"""A name for what the code does, which represents the code in a trial's key.

Code that is reworded, moved or renamed gives the same numbers, and another method, network, engine or helper
gives others. So the name follows from the results of a probe (`pfl.probe`).

`KNOWN` holds the probes' results that have a name (``make behaviours`` adds new ones). A result that agrees
with a known one to `TOLERANCE` takes its name; another gets a name that follows from its digits.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl.config import Config
from pfl.errors import InvalidInput
from pfl.files import cache_root, folder_lock, write_json, write_text
from pfl.methods import METHODS
from pfl.models import weights_of
from pfl.probe import ON, Values, is_choice, probe
from pfl.sources import code_of
from pfl.validation import validated

if TYPE_CHECKING:
    from pfl.models import Shape

KNOWN = Path(__file__).with_name("behaviours.json")
TOLERANCE = 1e-7
"""Relative and absolute. Rounding in float64 is far below it, an edit that matters far above."""

ROUNDING = ("dtype", "precision")
"""Fields of a configuration that decide how numbers are rounded, which a probe in float64 does not see; they
are in a trial's key by themselves."""

KEPT = 20  # states of the sources whose behaviour a cache entry remembers


@dataclass(frozen=True)
class Behaviour:
    """What a method with its choices does on a network.

    Attributes:
        question: what was probed, for example "fedcac, lenet5, 3x32x32, 10 classes, collab=none".
        name: the same for all code that does the same.
        values: the results of the probe.
    """

    question: str
    name: str
    values: Values


def behaviour_of(config: Config, shape: Shape, classes: int) -> Behaviour:
    """What this code does for ``config`` (validated), probed once for each state of the code.

    Args:
        shape: of the images: channels, height, width.
        classes: their number.
    """
    question = question_of(config, shape, classes)
    if question not in _answers:
        _answers[question] = _answer(question, config, shape, classes)
    return _answers[question]


def question_of(config: Config, shape: Shape, classes: int) -> str:
    """What a probe depends on, in words. Options at their defaults are left out, so that a new option changes
    no question."""
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
    for name, declared in METHODS[config.method].declarations().items():
        value, default = config.hyperparameters[name], usual.hyperparameters[name]
        if is_choice(declared, default):
            parts += [f"{name}={value}"] if value != default else []
        elif bool(value) != bool(default):
            parts.append(f"{name}={'some' if value else 0}")
    return ", ".join(parts)


def agree(known: Values, values: Values) -> bool:
    """Whether all ``known`` values are among ``values``; others among these do not count."""
    return all(name in values and _close(value, values[name]) for name, value in known.items())


def name_of(question: str, values: Values) -> str:
    """A name that follows from a probe's results, to six digits."""
    digits = {
        name: value if isinstance(value, str) else f"{value:.6g}" if abs(value) >= 1 else f"{value + 0.0:.6f}"
        for name, value in sorted(values.items())
    }
    text = json.dumps([question, digits])
    return f"{question.partition(',')[0]}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


@cache
def known() -> dict[str, dict[str, Values]]:
    """The behaviours that have a name, by question and name."""
    return dict(json.loads(KNOWN.read_text(encoding="utf-8"))) if KNOWN.exists() else {}


def add_known(behaviours: Sequence[Behaviour]) -> int:
    """Add the new ones among ``behaviours`` to `KNOWN`; return how many there were."""
    content = {question: dict(names) for question, names in known().items()}
    before = sum(map(len, content.values()))
    for one in behaviours:
        content.setdefault(one.question, {}).setdefault(one.name, one.values)
    lines = []
    for question, names in sorted(content.items()):
        entries = ",\n".join(f"  {json.dumps(name)}: {json.dumps(values)}" for name, values in names.items())
        lines.append(f" {json.dumps(question)}: {{\n{entries}\n }}")
    write_text(KNOWN, "{\n" + ",\n".join(lines) + "\n}\n")
    known.cache_clear()
    return sum(map(len, content.values())) - before


_answers: dict[str, Behaviour] = {}
"""The answers of this process, by question."""


def _answer(question: str, config: Config, shape: Shape, classes: int) -> Behaviour:
    """The answer to a question, from the cache if this code has answered it before.

    A cache entry has all names and values that were found on this machine, and a name for each state of the
    code.
    """
    code = code_of(config.method, config.model)
    path = cache_root() / "behaviours" / f"{hashlib.sha256(question.encode()).hexdigest()[:24]}.json"
    entry = {"names": {}, "codes": {}} if code.edited else _read(path)
    values = entry["names"].get(entry["codes"].get(code.digest))
    if values is None:
        values = probe(config, shape, classes)
    name = _named(question, values, entry["names"])
    if not code.edited and entry["codes"].get(code.digest) != name:
        entry["names"].setdefault(name, values)
        entry["codes"] = dict([*entry["codes"].items(), (code.digest, name)][-KEPT:])
        _write(path, entry)
    return Behaviour(question, name, values)


def _named(question: str, values: Values, here: Mapping[str, Values]) -> str:
    """The name of a result in `KNOWN` or ``here`` with which ``values`` agree, otherwise a new name."""
    for names in (known().get(question, {}), here):
        for name, its in names.items():
            if agree(its, values):
                return name
    return name_of(question, values)


def _read(path: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError, TypeError, AttributeError, KeyError):
        content = json.loads(path.read_text(encoding="utf-8"))
        return {"names": dict(content["names"]), "codes": dict(content["codes"])}
    return {"names": {}, "codes": {}}


def _write(path: Path, entry: dict[str, Any]) -> None:
    """Replace an entry, whole or not at all; if it cannot be written, the next process probes again."""
    with suppress(OSError, InvalidInput), folder_lock(path.parent):
        write_json(path, entry)


def _close(first: Any, second: Any) -> bool:
    if isinstance(first, str) or isinstance(second, str):
        return bool(first == second)
    return math.isclose(first, second, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
