"""Pending runs of a table, and the changes that made existing records stale."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pfl.core.errors import InvalidInput
from pfl.core.text import amount
from pfl.methods import METHODS
from pfl.run.fingerprint import components_of, files_of, metrics_of, unknown_of
from pfl.run.sources import edits, git, plugins
from pfl.run.trials import Trial, trial_key
from pfl.run.validation import non_defaults
from pipeline.store.records import RecordHead
from pipeline.sweep.cell_scheduler import CellScheduler
from pipeline.sweep.scheduler import Scheduler

Kind = tuple[str, str, int | None, int]
"""Identity of a run: its cell, its phase, the round after which it pauses, and the seed."""

SHOWN = 8
"""Maximum number of names in a line."""


def why(scheduler: Scheduler) -> list[str]:
    """One line for each reason, with the trials and cells to which it applies.

    Args:
        scheduler: a table's scheduler, before any of its trials is run.
    """
    former, ledger = _former(scheduler), scheduler.ledger

    def reason(cell: CellScheduler, trial: Trial, seed: int, key: str) -> str:
        if key in cell.seen:
            return "in the ledger"
        if record := ledger.find(key):
            if record.failed:
                return f"failed ({record.failure})"
            lacks = "curve" if cell.moment in record.metrics.moments else "moment"
            return f"in the ledger, without its {'models' if cell.accepts(record) else lacks}"
        if key in ledger.refused:
            return f"its record is refused ({ledger.refused[key]})"
        if any(damage.key == key for damage in ledger.damaged):
            return "its record is damaged"
        return _stale(trial, former[trial.cell, trial.phase, trial.until, seed])

    reasons: dict[str, list[str]] = {}
    for cell in scheduler.cells:
        for candidate in cell.candidates:
            for seed, key in candidate.runs:
                reasons.setdefault(reason(cell, candidate.trial, seed, key), []).append(cell.cell.id)
    coming = sum(cell.to_come for cell in scheduler.cells)
    lines = [
        f"{amount(len(trials), 'run')} of {_listed(trials)}: {reason}"
        for reason, trials in sorted(reasons.items(), key=lambda item: -len(item[1]))
    ]
    return lines + ([f"up to {amount(coming, 'run')} of searches, after these"] if coming else [])


def _former(scheduler: Scheduler) -> Mapping[Kind, Sequence[RecordHead]]:
    """Unused records of the same cells, which may once have belonged to the pending trials."""
    former: dict[Kind, list[RecordHead]] = {
        (cell.cell.id, candidate.trial.phase, candidate.trial.until, seed): []
        for cell in scheduler.cells
        for candidate in cell.candidates
        for seed, key in candidate.runs
        if key not in scheduler.outcomes
    }
    for table in {cell.cell.table for cell in scheduler.cells if former}:
        for head in scheduler.ledger.heads(table):
            kind = (head.cell, head.phase, head.until, head.seed)
            if kind in former and head.key not in scheduler.outcomes:
                former[kind].append(head)
    return former


def _stale(trial: Trial, heads: Sequence[RecordHead]) -> str:
    """How the closest record that may once have belonged to ``trial`` differs from it."""
    nearest = min(heads, key=lambda head: _distance(trial, head), default=None)
    if nearest is None:
        return "never run"
    return "stale: " + ("; ".join(_differences(trial, nearest)) or "defaults have changed")


def _distance(trial: Trial, head: RecordHead) -> int:
    """Number of differences between the record's key and the trial's."""
    now, then = _flat(trial.config), _flat(head.config)
    pairs = [(now.get(name), then.get(name)) for name in now.keys() | then.keys()]
    pairs += [
        (trial.data_checksum, head.data_checksum),
        (trial.partition_of(head.seed), head.partition_checksum),
        (trial.behaviour, head.behaviour),
    ]
    return sum(before != after for before, after in pairs)


def _differences(trial: Trial, head: RecordHead) -> Iterator[str]:
    """Short descriptions of the differences between the record's key and the trial's."""
    yield from _options(trial, head)
    if head.data_checksum != trial.data_checksum:
        changed = _from_to(head.data_checksum, trial.data_checksum)
        yield f"different images of {head.dataset}, or a different order ({changed})"
    if head.partition_checksum != (divided := trial.partition_of(head.seed)):
        same = head.partition == trial.partition
        specs = "" if same else f"{head.partition} is now {trial.partition}, "
        yield f"different partition ({specs}{_from_to(head.partition_checksum, divided)})"
    if head.behaviour != trial.behaviour:
        changed = "; ".join(_edited(head, trial)) or "no changed file is known"
        yield f"different code ({head.behaviour} is now {trial.behaviour}): {changed}"


def _options(trial: Trial, head: RecordHead) -> Iterator[str]:
    try:
        new, old = (_flat(non_defaults(config)) for config in (trial.config, head.config))
        run = (head.data_checksum, head.partition_checksum, head.seed, head.behaviour, head.until)
        matches = trial_key(head.config, *run) == head.key
        gone = head.config["hyperparameters"].keys() - METHODS[head.config["method"]].declarations().keys()
    except (InvalidInput, KeyError, TypeError):
        yield "options that no longer exist"
        return
    for name in sorted(gone if not matches else ()):  # the key has its value, so it was not the default
        yield f"{name} was {head.config['hyperparameters'][name]}, and no longer exists"
    for name in sorted(new.keys() | old.keys()):
        before, after = (options.get(name, "its default") for options in (old, new))
        if before != after:
            yield f"{name} was {before}, is now {after}"


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    own = config.get("hyperparameters", {})
    return {**{name: value for name, value in config.items() if name != "hyperparameters"}, **own}


def _from_to(before: str, now: str) -> str:
    return f"{before[:12]} is now {now[:12]}"


def _edited(head: RecordHead, trial: Trial) -> Iterator[str]:
    """The components that have changed since the record ``head``, and their files that git tracks."""
    method, model = trial.method, str(trial.config["model"])
    edited = ", which was edited" if head.dirty else ""
    since = f"since commit {head.commit[:12]}{edited}"
    changed = _changed_since(head.commit)
    now = {plugin.name: plugin for plugin in plugins(trial.config)}
    plugins_edited = [plugin for plugin in head.plugins if plugin != now.get(plugin.name, plugin)]
    # An unlisted component need not have changed: without its own behaviours.json, a project lists none.
    new = {} if plugins_edited else unknown_of(method, model)
    for component in (*components_of(method, model), *metrics_of(trial.config.get("metrics", ()))):
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
    for plugin in plugins_edited:
        in_project = plugin.version == "unknown"
        place = f"in {plugin.name}/" if in_project else f"of plugin {plugin.name} {plugin.version}"
        yield f"the files {place} have changed"


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
    """Distinct names, at most `SHOWN` of them."""
    different = list(dict.fromkeys(names))
    more = f" and {len(different) - SHOWN} more" if len(different) > SHOWN else ""
    return ", ".join(different[:SHOWN]) + more
