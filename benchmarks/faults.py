"""What a sweep loses when it is killed, cut off or obstructed, and how soon it continues.

``python -m benchmarks.faults``. Each fault that the tests inject (`tests/faults/faults.py`) hits a sweep;
its final state is compared with that of an undisturbed sweep. Writes ``reports/engineering/faults/``.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from benchmarks.workload import Workload, run, write, write_page
from tests.faults.checkout import TABLE, Checkout
from tests.faults.faults import FAULTS, Fault
from tests.faults.recovery import file_system, outcome_of

FOLDER = Path("reports/engineering/faults")


def main() -> None:
    """Inject every fault, print what was lost, and write the report."""
    with tempfile.TemporaryDirectory(prefix="pfl-faults-") as scratch:
        folder = Path(scratch)
        prepared = Checkout.make(folder / "prepared")
        whole = prepared.copy(folder / "whole")
        began = time.perf_counter()
        if whole.run():
            sys.exit(f"the undisturbed sweep has failed:\n{whole.output}")
        seconds = time.perf_counter() - began
        faults = []
        for name, fault in FAULTS.items():
            outcome = measured(fault, whole, prepared, folder / name)
            faults.append({"fault": fault.title, **outcome})
            print(f"{fault.title}: {outcome}", flush=True)
        trials = [row["measured"]["wall_seconds"] for row in whole.rows()]
    table = YAML(typ="safe").load(TABLE)
    workload = Workload(
        dataset=table["dataset"],
        model=table["model"],
        clients=table["clients"],
        partition=table["settings"]["dir"],
        eval_every=table["evaluation"]["every"],
        **table["schedule"],
    )
    write(FOLDER / "faults.json", workload, {"seconds": seconds, "trial_seconds": trials, "faults": faults})
    draw()


def measured(fault: Fault, whole: Checkout, prepared: Checkout, folder: Path) -> dict[str, Any]:
    """The outcome of one fault, in a copy of ``prepared``.

    Returns:
        ``lost``, ``repeated``, ``survived`` and ``seconds`` as in `Outcome`; ``left_out`` if this user may
        not inject it.
    """
    try:
        with file_system(folder, fault.megabytes):
            outcome = outcome_of(fault, whole, prepared.copy(folder))
    except PermissionError as error:
        return {"left_out": str(error)}
    return {name: getattr(outcome, name) for name in ("lost", "repeated", "survived", "seconds")}


def draw() -> None:
    """Write the report's page from ``faults.json``, with the names of faults that are newer."""
    content = json.loads((FOLDER / "faults.json").read_text(encoding="utf-8"))
    measured = {entry["fault"] for entry in content["faults"]}
    newer = [fault.title for fault in FAULTS.values() if fault.title not in measured]
    write_page(FOLDER, "faults.md.j2", newer=newer, **content)


if __name__ == "__main__":
    run(main)
