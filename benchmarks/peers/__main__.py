"""The same federated training by frameworks from a package index, by ours and by the textbook loop.

``python -m benchmarks.peers --help``. FedAvg on CIFAR-10's images in 100 clients: every script gets the same
images, partition, participants and first weights. First, a check: with the batches in a fixed order, each
framework's global model after a round is compared with the textbook loop's. Then the measurement, on one core
and on all cores, with the frameworks in turn, so that other work on the machine affects all of them. Nothing
else should run at the same time.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
import typer

from benchmarks import report
from benchmarks.peers.environments import PEERS, ROOT, Peer, interpreter
from benchmarks.peers.inputs import WORKLOAD, write_inputs
from benchmarks.peers.table import TEXTBOOK, lines_of_code, summary, write_readme
from benchmarks.peers.tree import run_tree
from benchmarks.workload import Device, JsonFile, run, write
from pfl.core.errors import InvalidInput, check_names
from pfl.run.errors import cause_of

ROUNDS = {"lenet5_bn": 6, "cnn4": 2}
"""Rounds that take a similar time."""
CHECK = {"rounds": 1, "epochs": 1, "shuffle": False}
"""Few steps, because rounding differences grow with every step."""
CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "pfl-repro/peers"
TIMEOUT = 150.0  # seconds of one run
T = TypeVar("T")


@dataclass(frozen=True)
class Bench:
    """Where the scripts run.

    Attributes:
        folder: folder of the inputs, and of what the scripts write.
        pythons: the interpreter of each peer.
        device: cpu or cuda.
    """

    folder: Path
    pythons: Mapping[str, Path]
    device: str

    def run(self, name: str, model: str, cores: int, **schedule: Any) -> dict[str, Any]:
        """What a script measured, and what its processes used. Its model stays in ``<name>.pt``."""
        peer, python = PEERS[name], self.pythons[name]
        record, spec = self.folder / f"{name}.json", self.folder / f"{name}-work.json"
        work = {
            "inputs": str(self.folder),
            "model": model,
            **{name: getattr(WORKLOAD, name) for name in ("epochs", "batch_size", "lr", "eval_every")},
            "shuffle": True,
            "workers": cores,
            "device": self.device,
            "began": time.time(),
            "record": str(record),
            "weights": str(self.folder / f"{name}.pt"),
            "rule": WORKLOAD.partition,
            **schedule,
        }
        spec.write_text(json.dumps(work), encoding="utf-8")
        record.unlink(missing_ok=True)
        launcher = ["-m", *peer.launcher, str(cores)] if peer.launcher and cores > 1 else []
        command = [str(python), *launcher, str(peer.script), str(spec)]
        available = sorted(os.sched_getaffinity(0))
        log = self.folder / f"{name}.log"
        usage = run_tree(command, self._environment(peer, cores), available[-cores:], log, TIMEOUT)
        return {**json.loads(record.read_text(encoding="utf-8")), **asdict(usage)}

    def _environment(self, peer: Peer, cores: int) -> dict[str, str]:
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        if peer.requirements is None:
            variables["PYTHONPATH"] = str(ROOT)
        variables["OMP_NUM_THREADS"] = str(cores if peer.threads else 1)
        variables["OMP_WAIT_POLICY"] = "PASSIVE"  # spinning threads are far slower if any other process runs
        if self.device == "cpu":
            variables["CUDA_VISIBLE_DEVICES"] = ""
        return variables | dict(peer.environment)


def main(
    rounds: Annotated[int | None, typer.Option(help="Rounds of each network, instead of its own.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="A framework; may be repeated.")] = None,
    model: Annotated[list[str] | None, typer.Option(help="A network; may be repeated.")] = None,
    workers: Annotated[list[int] | None, typer.Option(help="Cores; may be repeated.")] = None,
    repeats: Annotated[int, typer.Option(help="Measured repeats, interleaved.")] = 1,
    environments: Annotated[Path, typer.Option(help="Folder of the frameworks' environments.")] = CACHE,
    prepare: Annotated[bool, typer.Option(help="Only make the environments.")] = False,
    device: Device = "cpu",
    json_file: JsonFile = None,
) -> None:
    """Check that all frameworks do the same work, and measure each on one core and on all cores.

    What fails is left out, and the exit status is 1.
    """
    check_names("framework", only or (), PEERS)
    check_names("network", model or (), ROUNDS)
    asked = {TEXTBOOK: None, **dict.fromkeys(only or PEERS)}
    pythons = _by_name(asked, lambda name: interpreter(PEERS[name], environments))
    if prepare:
        raise typer.Exit(len(pythons) < len(asked))
    lengths = {name: rounds or ROUNDS[name] for name in model or ROUNDS}
    workload = replace(WORKLOAD, rounds=max(CHECK["rounds"], *lengths.values()))
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), pythons, device)
        write_inputs(bench.folder, workload, list(lengths))
        checks = _by_name(pythons, lambda name: _checked(bench, name, next(iter(lengths))))
        complete = len(checks) == len(asked)
        figures: dict[str, Any] = {
            "lines": {name: lines_of_code(*PEERS[name].files) for name in checks},
            "titles": {name: PEERS[name].title for name in checks},
            "check_schedule": CHECK,
            "check": checks,
            "runs": [],
        }
        cores = workers or ([1] if device == "cuda" else sorted({1, len(os.sched_getaffinity(0))}))
        for place in itertools.product(range(repeats), lengths, cores):
            try:
                figures["runs"] += _side_by_side(bench, checks, *place, lengths[place[1]])
            except InvalidInput as error:  # the comparisons before and after it are worth keeping
                complete = False
                print(
                    f"repeat {place[0]}, {place[1]}, {place[2]} cores are left out: {error}", file=sys.stderr
                )
                continue
            write(json_file, workload, figures, device=device)
    for row in summary(figures):
        print(f"{row['title']:<14} {row['model']:<10} {row['cores']} cores: {row['training_ratio']:.2f}")
    if json_file and json_file.resolve().parent == (ROOT / report.FOLDER).resolve():
        report.main()
        write_readme(ROOT)
    if not complete:
        raise typer.Exit(1)


def _by_name(names: Iterable[str], obtain: Callable[[str], T]) -> dict[str, T]:
    """What ``obtain`` returns for each framework; those for which it fails are named and left out.

    Raises:
        Exception: it fails for the textbook loop, with which the others are compared.
    """
    results = {}
    for name in names:
        try:
            results[name] = obtain(name)
        except Exception as error:  # a framework's record may lack anything
            if name == TEXTBOOK:
                raise
            print(f"{name} is left out: {cause_of(error)}", file=sys.stderr)
    return results


def _side_by_side(
    bench: Bench, peers: Iterable[str], repeat: int, model: str, cores: int, rounds: int
) -> list[dict[str, Any]]:
    """What each framework measured, one after another."""
    runs = []
    for peer in peers:
        figures = bench.run(peer, model, cores, rounds=rounds)
        runs.append(
            {"model": model, "rounds": rounds, "cores": cores, "peer": peer, "repeat": repeat, **figures}
        )
        print(_line(runs[-1]), flush=True)
    return runs


def _checked(bench: Bench, name: str, model: str) -> dict[str, float]:
    """The largest difference of a weight from the textbook loop's, and the accuracies, in a fixed order."""
    figures = bench.run(name, model, 1, **CHECK)
    theirs, textbook = (torch.load(bench.folder / f"{peer}.pt") for peer in (name, TEXTBOOK))
    difference = max((a - b).abs().max().item() for a, b in zip(theirs, textbook, strict=True))
    accuracy = figures["accuracies"][str(CHECK["rounds"])]
    print(f"check: {name:<10} weights differ by {difference:.1e}, accuracy {accuracy:.2f} %", flush=True)
    return {"difference": difference, "accuracy": accuracy, "samples": figures["samples"]}


def _line(figures: dict[str, Any]) -> str:
    rest = figures["seconds"] - figures["startup_seconds"]
    return (
        f"{figures['peer']:<10} {figures['model']:<10} {figures['cores']} cores: "
        f"{figures['samples'] / figures['training_seconds']:>8,.0f} samples/s in training, "
        f"{figures['samples'] / rest:>8,.0f} whole, start {figures['startup_seconds']:.1f} s, "
        f"{figures['seconds']:.1f} s, CPU {figures['cpu_seconds']:.1f} s, "
        f"{figures['peak_memory_bytes'] / 1e6:,.0f} MB, {list(figures['accuracies'].values())[-1]:.2f} %"
    )


if __name__ == "__main__":
    run(main)
