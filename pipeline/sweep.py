"""The train-sweep stage: every cell of a table searched and run, by Ray Tune, out of the ledger where it can."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from pfl.data.partition import Partition
from pfl.errors import InvalidInput
from pipeline import results
from pipeline.agenda import Agenda, Attempt, CellAgenda
from pipeline.config import Table, cells, load_table, manifest_file, partition_file
from pipeline.environment import SCRATCH, Sources
from pipeline.estimate import Estimate
from pipeline.ledger import Ledger, Row, publish
from pipeline.progress import Progress
from pipeline.tracking import Tracker


def sweep(name: str) -> None:
    """Run what is left of a table and write `results/<table>/`.

    A trial that fails becomes a failed cell, never the end of the sweep. Interrupted, it is to be started again:
    what is in the ledger is not run twice, and a trial goes on from its checkpoint.

    Raises:
        InvalidInput: the table, a stage before this one that has not run, or another sweep of the table.
    """
    began = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a batch system's way of saying Ctrl-C
    table = load_table(name)
    with _alone(name):
        sources = Sources.current()
        ledger = Ledger(sources)
        for place in ledger.damaged:
            print(f"ledger: {place} is no row and is passed over")
        try:
            with _tracked(name, table) as (on_row, on_cell):
                agenda = agenda_of(name, table, ledger, on_row, on_cell)
                if not agenda.finished:
                    _run(name, table, agenda, ledger)
        except KeyboardInterrupt:
            print(f"\n{name}: stopped. The same command goes on from here: nothing that is done is run again.")
            raise
        finally:
            publish(name)
        found = results.write(name, table, agenda, sources, time.monotonic() - began)
    print(f"{name}: {agenda.ran} trials run, {agenda.served} out of the ledger; see results/{name}/")
    failed = [cell for cell in found["cells"] if cell["errors"]]
    for cell in failed:
        print(f"{cell['cell']}: {cell['status']} ({'; '.join(cell['errors'])})")
    if failed:
        print(f"To try trials again that failed: dvc repro --force --single-item train-sweep@{name}")
