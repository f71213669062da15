"""A real sweep on all cores, one trial alone, and the cost of everything around the simulation.

``python -m benchmarks.sweep``. A clone of the last commit runs ``dvc repro`` for a table of one pFedSim cell
with a seed for every core: DVC's stages, Ray, MLflow, checkpoints and evaluations as in any sweep. The trial
alone runs in this process, on one thread, before and after the sweep, so the sweep finds the data decoded.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

import torch
import typer

from benchmarks.workload import JsonFile, Workload, run, timed, write
from pfl.core.config import Execution
from pfl.core.cores import cores
from pfl.engine import checkpoint, evaluation, seed_run
from pipeline.spec.search_space import Search
from pipeline.sweep.budget import Outcome
from pipeline.sweep.search import Proposer

ROOT = Path(__file__).parents[1]
SEARCHED = 20  # trials of a cell's search, to measure Optuna's time
SHORT = Workload(
    dataset="digits",
    partition="dirichlet:0.5",
    clients=20,
    model="cnn_digits",
    rounds=1,
    epochs=1,
    eval_every=1,
)
SHORT_TRIALS = 40
WAITING = "cores that wait for the longest trial"  # further trials would fill these

TABLE = """\
title: One cell, to measure a sweep
dataset: {dataset}
model: {model}
clients: {clients}
schedule:
  {{participation: {participation}, rounds: {rounds}, epochs: {epochs}, batch_size: {batch_size}, lr: {lr}}}
settings:
  dir: "{partition}"
methods: [{method}]
seeds: {seeds}
evaluation: {{every: {eval_every}}}
"""


def main(
    rounds: Annotated[int, typer.Option(help="Rounds of each trial of the sweep.")] = 200,
    rounds_alone: Annotated[int, typer.Option(help="Rounds of the trial alone.")] = 40,
    epochs: Annotated[int, typer.Option(help="Local epochs.")] = 5,
    cores: Annotated[int, typer.Option(help="Trials side by side.")] = cores(),
    json_file: JsonFile = None,
) -> None:
    """Print the sweep's efficiency and the share of everything around the simulation."""
    workload = Workload(method="pfedsim", rounds=rounds, epochs=epochs, eval_every=20)
    before = one_trial(replace(workload, rounds=rounds_alone))
    sweep = whole_pipeline(workload, cores)
    after = one_trial(replace(workload, rounds=rounds_alone))
    alone = {name: (before[name] + after[name]) / 2 for name in before}  # a machine's speed drifts
    rate = sum(sweep["samples"]) / sweep["sweep_seconds"]
    efficiency = rate / (cores * alone["samples_per_second"])
    parts = core_seconds(sweep, alone, workload, cores)
    around = 1 - parts["simulation"] / (sum(parts.values()) - parts[WAITING])
    print(f"one trial alone {alone['samples_per_second']:,.0f} samples/s; {cores} side by side {rate:,.0f}")
    print(f"{efficiency:.0%} of {cores} times one thread; {around:.1%} is around the simulation:")
    for part, seconds in parts.items():
        print(f"  {part:<38} {seconds:8.1f} core-seconds  {seconds / sum(parts.values()):6.1%}")
    figures = {"cores": cores, "alone": alone, "before": before, "after": after, "sweep": sweep}
    figures |= {"efficiency": efficiency, "core_seconds": parts, "around": around}
    figures["fixed_seconds"] = sweep["seconds"] - max(sweep["trial_seconds"])
    figures["short_trial"] = short = short_trial(cores)
    print(f"a further trial of one round takes {short['seconds']:.2f} core-seconds", end=", ")
    print(f"of which its simulation takes {short['simulation_seconds']:.2f}")
    write(json_file, workload, figures)


def one_trial(workload: Workload) -> dict[str, float]:
    """Samples per second of one trial on one thread, with evaluations and checkpoints, and their times."""
    torch.set_num_threads(1)
    spent = {"evaluation": 0.0, "checkpoints": 0.0}

    def watched(part: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def timing(*arguments: Any) -> Any:
            result: list[Any] = []
            spent[part] += timed(lambda: result.append(work(*arguments)))
            return result[0]

        return timing

    trial = workload.simulation()
    with (
        patch.object(seed_run, "evaluate", watched("evaluation", evaluation.evaluate)),
        patch.object(checkpoint, "save", watched("checkpoints", checkpoint.save)),
        tempfile.TemporaryDirectory() as folder,
    ):
        seconds = timed(lambda: trial.run(Execution(checkpoint_dir=folder)))
    optuna = timed(lambda: _search(workload))
    return {
        "samples_per_second": trial.samples / seconds,
        "seconds": seconds,
        "rounds": workload.rounds,
        **{f"{part}_seconds": value for part, value in spent.items()},
        "optuna_seconds_per_trial": optuna / SEARCHED,
    }


def _search(workload: Workload) -> None:
    proposer = Proposer(workload.config, Search(trials=SEARCHED))
    for trial in proposer.ask(SEARCHED):
        proposer.tell(trial, workload.rounds, Outcome(50.0, None), ended=True)


def short_trial(cores: int) -> dict[str, float]:
    """Core-seconds of a sweep per further trial of one round, and those of its simulation."""
    few, many = (whole_pipeline(SHORT, trials) for trials in (cores, cores + SHORT_TRIALS))
    simulation = sum(many["trial_seconds"]) - sum(few["trial_seconds"])
    return {
        "seconds": cores * (many["sweep_seconds"] - few["sweep_seconds"]) / SHORT_TRIALS,
        "simulation_seconds": simulation / SHORT_TRIALS,
    }


def whole_pipeline(workload: Workload, seeds: int) -> dict[str, Any]:
    """Run ``dvc repro`` in a clone, a trial per seed; seconds of the whole, its sweep and every trial."""
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder)
        subprocess.run(["git", "clone", "--quiet", str(ROOT), folder], check=True)
        table = TABLE.format(**asdict(workload), seeds=list(range(seeds)))
        (clone / "tables/measured.yaml").write_text(table)
        params = clone / "params.yaml"
        params.write_text(params.read_text().replace("- digits", "- measured"))
        seconds, nothing = (timed(lambda: _run(clone, "dvc", "repro")) for _ in range(2))
        ledger = (clone / ".sweeps/ledger/measured.jsonl").read_text()
        results = json.loads((clone / "results/measured/results.json").read_text())
    measured = [json.loads(line)["measured"] for line in ledger.splitlines()]
    return {
        "seconds": seconds,
        "seconds_with_nothing_to_do": nothing,
        "sweep_seconds": results["wall_seconds"],
        "trial_seconds": [run["wall_seconds"] for run in measured],
        "samples": [run["samples_per_second"] * run["train_seconds"] for run in measured],
        "peak_memory_bytes": [run["peak_memory_bytes"] for run in measured],
    }


def _run(clone: Path, *command: str) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(clone), "OMP_NUM_THREADS": "1"}
    subprocess.run(command, cwd=clone, env=environment, check=True, stdout=subprocess.DEVNULL)


def core_seconds(
    sweep: dict[str, Any], alone: dict[str, float], workload: Workload, cores: int
) -> dict[str, float]:
    """Core-seconds from the start of ``dvc repro`` to its end, by what the cores did or waited for.

    Evaluations and checkpoints are taken from the trial alone, in proportion to the rounds.
    """
    trials = len(sweep["trial_seconds"])
    rounds = workload.rounds / alone["rounds"] * trials
    evaluation, checkpoints = (alone[f"{part}_seconds"] * rounds for part in ("evaluation", "checkpoints"))
    simulations = sum(sweep["trial_seconds"])
    longest = max(sweep["trial_seconds"])
    return {
        "simulation": simulations - evaluation - checkpoints,
        "evaluation": evaluation,
        "checkpoints": checkpoints,
        "Ray and MLflow": cores * (sweep["sweep_seconds"] - longest),
        "DVC and the other stages": cores * (sweep["seconds"] - sweep["sweep_seconds"]),
        WAITING: cores * longest - simulations,
    }


if __name__ == "__main__":
    run(main)
