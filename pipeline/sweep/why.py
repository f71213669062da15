"""Why trials of a table are run: trials without a row, and the changes that made existing rows stale."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pfl.errors import InvalidInput
from pfl.fingerprint import components_of, files_of, unknown_of
from pfl.text import amount
from pfl.trials import Record, Trial, edits, git, plugins
from pfl.validation import non_defaults
from pipeline.store.ledger import Ledger
from pipeline.sweep.cell_scheduler import Candidate
from pipeline.sweep.scheduler import Scheduler

SHOWN = 8
"""Largest number of names in a line."""


def why(scheduler: Scheduler, ledger: Ledger) -> list[str]:
    """A line for each reason, with the trials and the cells that it applies to.

    Args:
        scheduler: a table's scheduler, before any of its trials is run.
    """
    reasons: dict[str, list[str]] = {}
    for cell in scheduler.cells:
        for candidate in cell.candidates:
            for seed, key in zip(candidate.trial.seeds, candidate.keys, strict=True):
                reason = _reason(candidate, seed, key, cell.curves, scheduler.outcomes, ledger)
                reasons.setdefault(reason, []).append(cell.cell.id)
    coming = sum(cell.to_come for cell in scheduler.cells)
    lines = [
        f"{amount(len(trials), 'trial')} of {_listed(trials)}: {reason}"
        for reason, trials in sorted(reasons.items(), key=lambda item: -len(item[1]))
    ]
    return lines + ([f"{amount(coming, 'trial')} of searches after these"] if coming else [])


def _reason(
    candidate: Candidate,
    seed: int,
    key: str,
    curves: Collection[str],
    outcomes: Mapping[str, Record],
    ledger: Ledger,
) -> str:
    if key in outcomes:
        return "in the ledger"
    if found := ledger.find(key):
        if found.failed:
            return f"failed ({found.failure})"
        return f"in the ledger, without {'its curve' if found.metrics.lacks(curves) else 'its models'}"
    stale = [record for record in ledger.successes if record.key not in outcomes]
    record = _nearest(candidate.trial, seed, stale)
    if record is None:
        return "never run"
    return "stale: " + "; ".join(_differences(candidate.trial, record))


def _nearest(trial: Trial, seed: int, records: Sequence[Record]) -> Record | None:
    """The most similar record of the same cell, or else of the same method and setting."""
    kind = (trial.phase, trial.until, seed)
    alike = [record for record in records if (record.phase, record.until, record.seed) == kind]
    own = [record for record in alike if (record.table, record.cell) == (trial.table, trial.cell)]
    place = (trial.method, trial.setting)
    others = [record for record in alike if (record.method, record.setting) == place]
    return min(own or others, key=lambda record: len(list(_differences(trial, record))), default=None)


def _differences(trial: Trial, record: Record) -> Iterator[str]:
    """The differences between the record's key and the trial's, each in a few words."""
    yield from _options(trial.config, record.config)
    if record.data_checksum != trial.data_checksum:
        changed = _from_to(record.data_checksum, trial.data_checksum)
        yield f"other images of {record.dataset}, or in another order ({changed})"
    if record.partition_checksum != (divided := trial.partition_of(record.seed)):
        same = record.partition == trial.partition
        specs = "" if same else f"{record.partition} is now {trial.partition}, "
        yield f"another partition ({specs}{_from_to(record.partition_checksum, divided)})"
    if record.behaviour != trial.behaviour:
        changed = "; ".join(_edited(record, trial)) or "no changed file is known here"
        yield f"other code ({record.behaviour} is now {trial.behaviour}): {changed}"


def _options(now: Mapping[str, Any], then: Mapping[str, Any]) -> Iterator[str]:
    try:
        new, old = (_flat(non_defaults(config)) for config in (now, then))
    except (InvalidInput, KeyError, TypeError):
        yield "options that no longer exist"
        return
    for name in sorted(new.keys() | old.keys()):
        before, after = (options.get(name, "its default") for options in (old, new))
        if before != after:
            yield f"{name} was {before}, is now {after}"


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    own = config["hyperparameters"]
    return {**{name: value for name, value in config.items() if name != "hyperparameters"}, **own}


def _from_to(before: str, now: str) -> str:
    return f"{before[:12]} is now {now[:12]}"


def _edited(record: Record, trial: Trial) -> Iterator[str]:
    """The components that have changed since ``record``, and their files as far as git knows them."""
    method, model = trial.method, str(trial.config["model"])
    edited = ", which was edited" if record.sources.dirty else ""
    since = f"since commit {record.sources.commit[:12]}{edited}"
    changed = _changed_since(record.sources.commit)
    new = unknown_of(method, model)
    for component in components_of(method, model):
        own = files_of(component)
        files = sorted(
            (file for file in changed if Path(file).resolve() in own),
            key=lambda file: file not in _uncommitted(),
        )
        name = component if " " in component else f"the {component}"
        if files:
            yield f"{name} changed {since}: {_listed(files)}"
        elif component in new:
            yield f"{name} changed, and behaviours.json does not list it"
    now = {plugin.name: plugin for plugin in plugins(trial.config)}
    for plugin in record.plugins:
        if plugin != now.get(plugin.name, plugin):
            yield f"the files of plugin {plugin.name} {plugin.version} have changed"


@cache
def _uncommitted() -> frozenset[str]:
    return frozenset(line[3:] for line in edits(Path(), "pfl"))


@cache
def _changed_since(commit: str) -> tuple[str, ...]:
    """The simulator's files that differ from those in ``commit``."""
    root = Path()
    tracked = (git(root, "diff", "--name-only", commit, "--", "pfl", "requirements.lock") or "").splitlines()
    untracked = [line[3:] for line in edits(root, "pfl") if line.startswith("??")]
    return tuple(dict.fromkeys((*tracked, *untracked)))


def _listed(names: Sequence[str]) -> str:
    """Each name once, the first of many."""
    different = list(dict.fromkeys(names))
    more = f" and {len(different) - SHOWN} more" if len(different) > SHOWN else ""
    return ", ".join(different[:SHOWN]) + more
