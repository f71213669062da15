"""Independent recomputation of published records, without the ledger."""

from __future__ import annotations

import shutil
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache

import pfl
from pfl.core.config import Execution
from pfl.core.errors import Missing, check_names
from pfl.core.files import append_lines, check_writable, read_lines
from pfl.core.lazy import torch
from pfl.core.text import amount
from pfl.data.dataset import Dataset
from pfl.data.partition import make_division
from pfl.engine.result import hardware, versions
from pfl.run.errors import cause_of
from pfl.run.progress import progress
from pfl.run.trials import Record, Trial, checksum_of, run_trials
from pfl.run.validation import of_record
from pipeline.formatting import duration
from pipeline.spec.fingerprints import is_current
from pipeline.store.ledger import PUBLISHED
from pipeline.store.records import Position, read_heads, read_record
from pipeline.store.refusals import Refusal, refusals, refuse
from pipeline.store.verification import EARLY, Verification, kind_of
from pipeline.store.workspace import SCRATCH

FOLDER = SCRATCH / "verify"
AGAIN = FOLDER / "rows.jsonl"
"""The records of the recomputed runs."""


@dataclass(frozen=True)
class Sample:
    """Records to be recomputed.

    Attributes:
        records: the drawn ones with their checksums, shortest runs first, and those from GPUs last.
        tables: number of tables with published records.
        candidates: number of records that the sample is drawn from.
        stale: number of successful records whose key is not that of the current code.
    """

    records: Sequence[tuple[Record, str]]
    tables: int
    candidates: int
    stale: int

    @property
    def facts(self) -> dict[str, int]:
        """The sample's counts."""
        return {
            "drawn": len(self.records),
            "tables": self.tables,
            "candidates": self.candidates,
            "stale": self.stale,
        }


def drawn(tables: Sequence[str], count: int | None, seed: int) -> Sample:
    """Draw published records of ``tables`` at random: one from each table, as far as ``count`` allows, and
    the others uniformly from all records.

    Args:
        tables: by default all tables with published records.
        count: None means all records.
        seed: seed of the sample; new records of a table barely change the sample.

    Raises:
        InvalidInput: a table, or the whole ledger, has no published records.
    """
    known = sorted(path.stem for path in PUBLISHED.glob("*.jsonl"))
    if not known:
        accepted = "records of committed code, which a sweep or `pfl init --results` copies there"
        raise Missing(str(PUBLISHED), "no published records", accepted)
    check_names("table", tables, known)
    chosen, left_out, stale = list(tables) or known, set(refusals()), 0
    first: list[tuple[str, Position, str]] = []
    others: list[tuple[str, Position, str]] = []
    for table in chosen:
        own = []
        for position, head, checksum in read_heads(PUBLISHED / f"{table}.jsonl", _damaged):
            if head.error is not None or checksum is None or checksum in left_out:
                continue
            left_out.add(checksum)  # merges of branches can repeat a line
            if is_current(head.config, head.dataset, head.behaviour):
                own.append((checksum_of(f"{seed} {checksum}".encode()), position, checksum))
            else:
                stale += 1
        own.sort()
        first += own[:1]
        others += own[1:]
    order = sorted(first) + sorted(others)
    records = [(record, checksum) for _, position, checksum in order[:count] if (record := _record(position))]
    records.sort(key=lambda pair: (pair[0].success.hardware.gpu is not None, pair[0].measured.wall_seconds))
    return Sample(records, len(chosen), len(order), stale)


def _record(position: Position) -> Record | None:
    """Decode a record; print a line and return None if its key does not match its content."""
    try:
        return position.record()
    except ValueError as error:
        _damaged(position, str(error))
        return None


def _damaged(position: Position, reason: str) -> None:
    print(f"pfl: {position}: {reason}; skipped", file=sys.stderr)


def verify(sample: Sample) -> Iterator[Verification]:
    """Recompute the records of a sample, and yield and print the outcome of each.

    Records that this machine has already recomputed are skipped, and interrupted ones continue. A record that
    fails on the kind of machine that computed it is refused from now on, if another one of that kind and
    network is reproduced exactly: a processor's name, such as "AMD EPYC", can stand for several generations.
    """
    check_writable(AGAIN, "file")
    total = len(sample.records)
    print(
        f"{amount(total, 'record')} of {sample.candidates:,} that the current code computes, from "
        f"{amount(sample.tables, 'table')}; {sample.stale:,} more are from other code. They took "
        f"{duration(sum(record.measured.wall_seconds for record, _ in sample.records))} originally.",
        flush=True,
    )
    known = {(record.key, record.success.hardware.threads): record for record in _computed()}
    load = cache(pfl.load)

    def again(record: Record, threads: int, title: str) -> Record:
        earlier = known.get((record.key, threads))
        if earlier and earlier.metrics.always >= record.metrics.always:
            return earlier
        repeated = _computed_again(record, load(record.dataset), threads, title)
        append_lines(AGAIN, [repeated.to_line()], wait=True)
        return repeated

    proven, refuted = set[object](), defaultdict[object, list[Refusal]](list)
    for number, (record, checksum) in enumerate(sample.records, start=1):
        threads, cell = record.success.hardware.threads, f"{record.table} {record.cell}"
        title = f"{number}/{total} {cell}"
        try:
            verification = Verification(record, again(record, threads, title))
            if verification.is_doubtful:
                rounded = again(_first_rounds(record), threads + 1, f"{title}, with different rounding")
                verification = replace(verification, rounded=rounded)
        except Exception as error:
            print(f"pfl: {cell}, seed {record.seed}: {cause_of(error)}", file=sys.stderr)
            continue
        print(f"{number}/{total} {verification.text}", flush=True)
        kind = kind_of(record), record.config["model"]
        if record.metrics == verification.again.metrics:
            proven.add(kind)
        if verification.refuted:
            reason = f"differs by {verification.largest:.2g} points when recomputed on such a machine"
            place = (record.table, record.cell, str(record.seed), record.key, checksum)
            refuted[kind].append(Refusal(*place, reason))
        if kind in proven and kind in refuted:
            refuse(refuted.pop(kind))
        yield verification


def _first_rounds(record: Record) -> Record:
    """The record's run, paused after the last evaluation of the first rounds."""
    until = max(entry.round for entry in record.metrics.rounds if entry.round <= EARLY)
    paused = replace(record, until=until)
    return replace(paused, key=paused.expected_key())


def _computed() -> Iterator[Record]:
    """The records that earlier calls have computed on this machine."""
    here = hardware(Execution(), torch.device("cpu")).cpu, versions()
    for line in read_lines(AGAIN):
        with suppress(ValueError):  # truncated, for example by a full disk: it is computed again
            record = read_record(line.content)
            if (record.success.hardware.cpu, record.success.versions) == here:
                yield record


def _computed_again(record: Record, dataset: Dataset, threads: int, title: str) -> Record:
    partition = make_division(record.partition, dataset, record.clients, [record.seed])
    trial = Trial(
        table=record.table,
        cell=record.cell,
        setting=record.setting,
        row=record.row,
        partition_name=record.setting,
        phase=record.phase,
        config=of_record(record.config).to_dict(),
        seeds=(record.seed,),
        dataset=record.dataset,
        partition=record.partition,
        clients=record.clients,
        data_checksum=record.data_checksum,
        partition_checksum=record.partition_checksum,
        behaviour=record.behaviour,
        moment=record.metrics.headline,
        moments=tuple(sorted(record.metrics.always)),
        until=record.until,
    )
    checkpoints = FOLDER / f"{record.key}-{threads}"
    device = "auto" if record.success.hardware.gpu else "cpu"
    execution = Execution(device=device, threads=threads, checkpoint_dir=str(checkpoints))
    with progress(record.until or record.config["rounds"], title, trial.moment) as on_round:
        ((again,),) = run_trials([trial], dataset, partition, execution, on_round)
    shutil.rmtree(checkpoints, ignore_errors=True)
    return again
