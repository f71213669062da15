"""Commands that list methods, networks, data sets, partition rules and metrics."""

from __future__ import annotations

import sys
from dataclasses import Field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pfl.cli.options import names_in
from pfl.core.errors import InvalidInput

if TYPE_CHECKING:
    from pfl.core.registry import Registry


def methods(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[METHOD]...",
            help="Methods to show; all by default.",
            autocompletion=names_in("pfl.methods", "METHODS"),
        ),
    ] = None,
) -> None:
    """List the methods and their hyperparameters."""
    from pfl.methods import METHODS

    for name in names or METHODS:
        try:
            lines = [*hyperparameters_of(name), f"New client: {METHODS[name].new_client}"]
        except InvalidInput as error:  # a plugin that does not load must not hide other methods
            if names:
                raise
            print(f"pfl: warning: left out: {error}", file=sys.stderr)
            continue
        print(f"{name:<12} {METHODS.summary(name)}")
        for line in lines:
            print(f"{'':<14}{line}")


def hyperparameters_of(name: str) -> list[str]:
    """One line per hyperparameter of a method: default, meaning, accepted values, search range."""
    from pfl.methods import METHODS

    method = METHODS[name]
    lines = []
    for parameter, declared in method.declarations().items():
        default = method.__dataclass_fields__[parameter].default
        searched = ""
        if declared.search is not None:
            ends = ", ".join(f"{end:g}" if isinstance(end, float) else str(end) for end in declared.search)
            searched = f"; searched in {{{ends}}}" if declared.choices else f"; searched in [{ends}]"
            searched += ", log" if declared.log else ""
            if declared.when:
                searched += f", where {declared.when[0]} is {' or '.join(declared.when[1:])}"
        lines.append(f"{parameter}={default} ({declared.about}; {declared.domain(default)}{searched})")
    return lines


def datasets() -> None:
    """List the data sets."""
    from pfl.data.datasets import DATASETS

    _show(DATASETS)


def models() -> None:
    """List the networks."""
    from pfl.models import MODELS

    _show(MODELS)


def metrics() -> None:
    """List the metrics other than accuracy."""
    from pfl.client_metrics import CLIENT_METRICS

    _show(CLIENT_METRICS)


def partitions() -> None:
    """List the partition rules and their options."""
    from pfl.data.partitions import PARTITIONS

    for name in PARTITIONS:
        try:
            rule = PARTITIONS[name]
        except InvalidInput as error:  # a plugin that does not load must not hide other rules
            print(f"pfl: warning: left out: {error}", file=sys.stderr)
            continue
        argument = f":{rule.argument.upper()}" if rule.argument else ""
        print(f"{name + argument:<24} {PARTITIONS.summary(name)}")
        for option, field in rule.options().items():
            print(f"{'':<26}{_option(option, field)}")


def _option(name: str, field: Field[Any]) -> str:
    """An option of a partition rule: default, meaning, accepted values."""
    declared = field.metadata.get("hyper")
    if declared is None or isinstance(field.default, bool):  # a text or a flag
        shown = f"{name}={field.default}" if field.default else name
        return f"{shown} ({declared.about if declared else field.metadata['about']})"
    return f"{name}={field.default} ({declared.about}; {declared.domain(field.default)})"


def _show(registry: Registry[Any]) -> None:
    for name in registry:
        print(f"{name:<20} {registry.summary(name)}")
