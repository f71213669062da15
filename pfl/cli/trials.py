"""Command that runs the trials of a file, on a machine without the pipeline."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pfl.cli.options import EXECUTED, check_files, with_options
from pfl.core.config import CHECKPOINT, Config, Execution
from pfl.core.digests import Edited
from pfl.core.errors import Conflict, InvalidInput
from pfl.core.files import append_lines, read_lines
from pfl.run.progress import progress
from pfl.run.validation import check_execution, execution_warnings, train_alike

if TYPE_CHECKING:
    from pfl.data.dataset import Dataset
    from pfl.engine.metrics import Evaluated
    from pfl.engine.simulation import OnRound
    from pfl.run.trials import Record, Trial


@with_options({Execution: EXECUTED})
def run_trials(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File that `pfl trials` wrote.")],
    rows: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Append the records to this file; by default next to the trials."),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write checkpoints to DIR, and continue from them."),
    ] = None,
    save: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Save every client's final model in this folder.")
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Pause the running trial after this time, with --checkpoint; the same command continues it.",
        ),
    ] = None,
    **options: Any,
) -> None:
    """Run the trials of a file, on a machine without the pipeline.

    They run in the order of the file. Trials whose records are in --rows are skipped if, with --save,
    their models are there, too. Trials that differ only in the adaptation before an evaluation are trained
    once, unless models are saved. A failed trial is reported, and the others still run.
    """
    if minutes is not None and not checkpoint:
        raise Conflict("--minutes", "given without --checkpoint DIR", "name its folder")
    end = monotonic() + (math.inf if minutes is None else 60 * minutes)
    execution = Execution(
        **options,
        checkpoint_dir=str(checkpoint) if checkpoint else None,
        save=str(save) if save else None,
    )
    check_execution(execution)
    for line in execution_warnings(execution):
        print(f"pfl: warning: {line}", file=sys.stderr)
    trials = _read(file)
    rows = rows or file.with_suffix(".rows.jsonl")
    models, state = save and save / "models.pt", checkpoint and checkpoint / CHECKPOINT
    if rows.resolve() == file.resolve():
        raise InvalidInput("rows", str(rows), "a file different from that of the trials")
    check_files({"rows": rows, "save": models, "checkpoint": state})
    _run(trials, rows, execution, end)


def _run(trials: Iterable[Trial], rows: Path, execution: Execution, end: float) -> None:
    """Run the trials, training once where possible, and append their records to ``rows``.

    If trials that share a training fail, each runs separately, so that a failure affects one trial.

    Args:
        end: when to pause, as a time of `monotonic`; infinite without checkpoints.

    Raises:
        typer.Exit: some trial failed.
    """
    from pfl.run.errors import cause_of, trace_of
    from pfl.run.trials import folder_of

    checkpoints = Path(execution.checkpoint_dir) if execution.checkpoint_dir else None
    done = _records(rows)
    pending = [trial for trial in trials if not (_is_done(trial, done) and _has_models(trial, execution))]
    datasets: dict[str, Dataset] = {}
    separate: list[Trial] = pending if execution.save else []
    count, failed, left = len(pending), 0, 0
    while pending:
        trial, number = pending[0], count - len(pending) + 1
        together = [trial]
        if trial not in separate:
            together = [other for other in pending if _trains_alike(trial, other)]
        pending = [other for other in pending if other not in together]
        folder = checkpoints and checkpoints / folder_of(*together)
        own = dataclasses.replace(execution, checkpoint_dir=str(folder) if folder else None)
        if monotonic() > end:
            left += len(together)
            continue
        try:
            records = _train(together, datasets, own, f"{number}/{count}", end)
        except Edited:
            raise
        except (Exception, SystemExit) as error:  # a plugin may call sys.exit
            if len(together) > 1:
                if folder:
                    shutil.rmtree(folder, ignore_errors=True)
                separate += together
                pending = together + pending
                continue
            failed += 1
            print(
                f"{trace_of(error) or ''}pfl: {trial.cell}, seeds {trial.seeds}: {cause_of(error)}",
                file=sys.stderr,
            )
            continue
        if not records:
            left += len(together)
            continue
        if not _is_done(trial, done):  # or only its models were missing
            append_lines(rows, [record.to_line() for record in records], wait=True)
        saved = _has_models(trial, execution)
        failed += not saved
        if folder and saved:
            shutil.rmtree(folder, ignore_errors=True)  # a trial that diverges early has none
    print(f"trials run: {count - failed - left}; records in {rows}")
    if left:
        print(f"trials pending: {left}; run the same command to continue")
    if failed:
        print(f"pfl: trials failed: {failed}; run the same command to retry them", file=sys.stderr)
        raise typer.Exit(1)


def _train(
    together: Sequence[Trial], datasets: dict[str, Dataset], execution: Execution, number: str, end: float
) -> list[Record]:
    """The records of trials that share a training; none if it was paused, with a checkpoint, at ``end``.

    Args:
        datasets: those that earlier trials have loaded, by name.
        number: shown before the cell.
    """
    from pfl.data.dataset import load
    from pfl.data.partition import make_division
    from pfl.run.trials import run_trials

    trial = together[0]
    if trial.dataset not in datasets:
        datasets[trial.dataset] = load(trial.dataset)
    data = datasets[trial.dataset]
    split = make_division(trial.partition, data, trial.clients, trial.seeds)
    beside = f" and {len(together) - 1} sharing its training" if len(together) > 1 else ""
    with progress(trial.config["rounds"], f"{number} {trial.cell}{beside}", trial.moment) as shown:
        on_round = _Pausing(shown, end)
        finished = run_trials(together, data, split, execution, on_round)
    if not on_round.paused:
        return [record for records in finished for record in records]
    if execution.save:
        for key in trial.keys:
            (Path(execution.save) / f"{key}.pt").unlink(missing_ok=True)  # not final
    return []


@dataclass
class _Pausing:
    """An ``on_round`` that pauses the simulation at ``end``, a time of `monotonic`, unless it has ended."""

    on_round: OnRound
    end: float
    paused: bool = False

    def __call__(self, round: int, rounds: int, newest: Evaluated | None) -> None:
        from pfl.engine.simulation import Stop

        self.on_round(round, rounds, newest)
        if round < rounds and monotonic() > self.end:
            self.paused = True
            raise Stop


def _trains_alike(trial: Trial, other: Trial) -> bool:
    """Whether one training serves both trials, evaluated at the same moments."""
    if (trial.common, trial.moments) != (other.common, other.moments):
        return False
    return train_alike([Config.from_dict(trial.config), Config.from_dict(other.config)])


def _is_done(trial: Trial, done: Mapping[str, Sequence[tuple[set[str], set[str]]]]) -> bool:
    """Whether each seed has a record with the trial's moments at every evaluation; ``done`` is from
    `_records`."""
    return all(
        any(always.issuperset(trial.moments or last) for always, last in done.get(key, ()))
        for key in trial.keys
    )


def _has_models(trial: Trial, execution: Execution) -> bool:
    """Whether there are models of each seed, or none are to be saved."""
    save = execution.save
    return not save or all((Path(save) / f"{key}.pt").is_file() for key in trial.keys)


def _records(rows: Path) -> dict[str, list[tuple[set[str], set[str]]]]:
    """What every evaluation of each record in a file has, and what its last one has, by key.

    A damaged record is reported; its trial runs again.

    Raises:
        InvalidInput: the file has other content.
    """
    from pfl.run.trials import checked

    records: dict[str, list[tuple[set[str], set[str]]]] = {}
    for line in read_lines(rows):
        if line.number == 1 and not line.content.startswith(b"{"):
            raise InvalidInput("rows", str(rows), "a new file, or one of records")
        try:
            record = json.loads(checked(line.content))
            evaluations = [set(entry) for entry in record["metrics"]["rounds"]]
            always, last = set.intersection(*evaluations), evaluations[-1]
            records.setdefault(record["key"], []).append((always, last))
        except ValueError as error:
            print(f"pfl: {rows}:{line.number} is ignored: {error}", file=sys.stderr)
        except (LookupError, TypeError, AttributeError):
            print(f"pfl: {rows}:{line.number} is ignored: it is not a record", file=sys.stderr)
    return records


def _read(file: Path) -> Iterable[Trial]:
    """The distinct trials of a file; two tables can share one, and read different moments of it.

    Raises:
        InvalidInput: `pfl trials` did not write it, or it contains an unknown method or option.
    """
    from pfl.run.trials import Trial

    trials: dict[tuple[str, ...], Trial] = {}
    try:
        for line in file.read_bytes().splitlines():
            trial = Trial.from_dict(json.loads(line))
            known = trials.setdefault(tuple(trial.keys), trial)
            # () means all moments.
            both = {*known.moments, *trial.moments} if known.moments and trial.moments else ()
            trials[tuple(trial.keys)] = dataclasses.replace(known, moments=tuple(sorted(both)))
    except InvalidInput:
        raise
    except OSError as error:
        accepted = f"a file that `pfl trials` wrote and that can be read ({error.strerror})"
        raise InvalidInput("trials", str(file), accepted) from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise InvalidInput("trials", str(file), "a file that `pfl trials` wrote") from None
    return trials.values()
