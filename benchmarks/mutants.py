"""How many of the edits that change numbers the battery detects, measured with mutants.

``python -m benchmarks.mutants``: each mutant is a copy of `pfl/` with one mechanical edit. It runs small real
simulations and, if it changes one of their numbers, the battery until a case detects it. The same command
continues after an interruption. Writes ``reports/engineering/faults/mutants.json`` and ``mutants.md``.

No library is used: cosmic-ray and mutmut mutate only Python, do not remove statements, and take one exit
status as the verdict. Here, some of the code is C++, and a mutant has two verdicts: whether it changes a
number, and whether it is detected. A process is forked for each, because importing torch takes longer than a
case. It imports pfl from the copy, so this one must not.
"""

from __future__ import annotations

import ast
import copy
import importlib
import json
import math
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import typer

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "reports/engineering/faults"
RESULTS = FOLDER / "mutants.json"

SCOPE: dict[str, tuple[tuple[str, ...], int]] = {
    "engine": (("pfl/engine/*.py",), 90),
    "methods": (("pfl/methods/*.py",), 90),
    "config, rng": (("pfl/core/config.py", "pfl/core/rng.py"), 15),
    "kernels": (("pfl/kernels/conv_block.*", "pfl/kernels/im2col.*", "pfl/kernels/read_rows.*"), 25),
}
"""Files, and how many mutants of them are drawn. A GPU's kernels do not run on the machine of the study."""

SECONDS = 180  # CPU time limit of a mutant; one that takes longer hangs


def _both_ways(*pairs: tuple[type, type]) -> dict[type, type]:
    return dict(pairs) | {second: first for first, second in pairs}


COMPARISONS = _both_ways(
    (ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn)
)
OPERATORS: dict[type, type] = {
    **_both_ways((ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.And, ast.Or)),
    **{ast.FloorDiv: ast.Div, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult},
}
SHARP = ("fedavg, defaults", "fedavg, options")
"""Cases that detect most edits of the engine."""

IN_CPP = {
    "operator": {" + ": " - ", " - ": " + ", " * ": " + ", " / ": " * ", " += ": " -= "},
    "comparison": {
        " < ": " <= ",
        " <= ": " < ",
        " > ": " >= ",
        " >= ": " > ",
        " == ": " != ",
        " && ": " || ",
    },
}


@dataclass(frozen=True)
class Mutant:
    """One edit: at byte ``at`` of a file, ``after`` replaces ``before``."""

    area: str
    file: str
    line: int
    at: int
    kind: str
    before: str
    after: str

    def apply(self, tree: Path) -> None:
        """Edit the file in a copy of `pfl/`."""
        path = tree / self.file
        source = path.read_bytes()
        before = self.before.encode()
        assert source[self.at : self.at + len(before)] == before
        path.write_bytes(source[: self.at] + self.after.encode() + source[self.at + len(before) :])


# ---- mutants -------------------------------------------------------------------------------------------


def sample(seed: int) -> list[Mutant]:
    """Mutants of each area, as many as in `SCOPE`, drawn with ``seed``, in random order."""
    stream = random.Random(seed)
    drawn = []
    for area, (patterns, count) in SCOPE.items():
        files = sorted(path for pattern in patterns for path in ROOT.glob(pattern))
        possible = [mutant for path in files for mutant in mutants(path, area)]
        drawn += stream.sample(possible, count)
    stream.shuffle(drawn)
    return drawn


def mutants(path: Path, area: str) -> Iterator[Mutant]:
    """All mutants of a file."""
    name, text = str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
    edits = _python(text) if path.suffix == ".py" else _cpp(text)
    for kind, first, last, after in edits:
        before = text.encode()[first:last].decode()
        line = text.encode()[:first].count(b"\n") + 1
        yield Mutant(area, name, line, first, kind, before, after)


def _python(text: str) -> Iterator[tuple[str, int, int, str]]:
    """Kind, first and last byte, and new text of each edit."""
    lines = [0]
    for line in text.encode().splitlines(keepends=True):
        lines.append(lines[-1] + len(line))

    def edit(kind: str, node: Any, after: str) -> tuple[str, int, int, str]:
        first = lines[node.lineno - 1] + node.col_offset
        last = lines[node.end_lineno - 1] + node.end_col_offset
        return kind, first, last, after

    for node in _nodes(ast.parse(text)):
        twin: Any = copy.deepcopy(node)
        if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
            twin.ops[0] = COMPARISONS[type(node.ops[0])]()
            yield edit("comparison", node, f"({ast.unparse(twin)})")
        elif isinstance(node, ast.IfExp):
            twin.body, twin.orelse = node.orelse, node.body
            yield edit("comparison", node, f"({ast.unparse(twin)})")
        elif isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in OPERATORS:
            twin.op = OPERATORS[type(node.op)]()
            yield edit("operator", node, f"({ast.unparse(twin)})")
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not):
            yield edit("operator", node, f"({ast.unparse(node.operand)})")
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
            yield edit("constant", node, repr(_other(node.value)))
        elif (
            isinstance(node, ast.AugAssign | ast.If)
            or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call))
            or (isinstance(node, ast.Assign) and not isinstance(node.targets[0], ast.Name | ast.Tuple))
        ):
            yield edit("statement left out", node, "pass")


def _other(value: float) -> float:
    """A different constant."""
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else 2 * value or 1.0


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes that can affect a number: no annotations, f-strings, logs or errors, and only the default of
    declarations."""
    for name, child in ast.iter_fields(tree):
        if name in ("annotation", "returns"):
            continue
        for node in child if isinstance(child, list) else [child]:
            if not isinstance(node, ast.AST) or isinstance(node, ast.JoinedStr | ast.Raise | ast.Assert):
                continue
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                continue
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "hyper":
                yield from [argument for argument in node.args[:1] if isinstance(argument, ast.Constant)]
                continue
            if isinstance(node, ast.Expr) and ast.unparse(node).startswith("log."):
                continue
            yield node
            yield from _nodes(node)


def _cpp(text: str) -> Iterator[tuple[str, int, int, str]]:
    offset = 0
    for line in text.splitlines(keepends=True):
        code = line.partition("//")[0]
        if not code.lstrip().startswith(("#", "template", "using", "static_assert", "*", "/*")):
            for kind, replaced in IN_CPP.items():
                for before, after in replaced.items():
                    for match in re.finditer(re.escape(before), code):
                        first = len(text[: offset + match.start()].encode())
                        yield kind, first, first + len(before), after
            for match in re.finditer(r"(?<![\w.])(\d+)(?![\w.])", code):
                first = len(text[: offset + match.start()].encode())
                yield "constant", first, first + len(match[0]), str(int(match[0]) + 1)
        offset += len(line)


# ---- real simulations ----------------------------------------------------------------------------------

SHORT = {"rounds": 6, "participation": 0.4, "eval_every": 3, "dtype": "float64"}
WITH_NORM = {**SHORT, "model": "lenet5_bn", "rounds": 3, "batch_size": 32, "epochs": 1}
DIGITS, LARGER = "digits", "digits,resize=16x16"


@dataclass(frozen=True)
class Real:
    """A simulation that a trial of a table could be.

    Attributes:
        variants: options of further configurations in lockstep.
        resumed: whether it pauses and continues from a checkpoint.
    """

    data: str
    backend: Literal["loop", "stacked"]
    options: Mapping[str, Any]
    seeds: tuple[int, ...] = (1,)
    variants: Sequence[Mapping[str, Any]] = ()
    resumed: bool = False


LOOPED = ("fedavg", "fedprox", "fedper", "fedamp", "fedcac", "fedfomo", "scaffold", "spfl", "fedasync")
STACKED = ("fedavg", "pfedsim", "perfedavg", "feddyn", "clusterfl", "knnper", "fedgen")
DEEPER = {**WITH_NORM, "model": "cnn4", "rounds": 2}
GENERAL = [
    *(Real(DIGITS, "loop", {"method": method}) for method in LOOPED),
    *(Real(DIGITS, "stacked", {"method": method}) for method in STACKED),
    Real(
        DIGITS,
        "loop",
        {"lr_schedule": "cosine", "lr_warmup": 2, "momentum": 0.9, "weight_decay": 1e-3},
    ),
    Real(DIGITS, "stacked", {"lr_schedule": "step", "lr_step": 3, "momentum": 0.5}),
    Real(DIGITS, "loop", {"batch_order": "class_stream"}),
    Real(DIGITS, "stacked", {"batch_order": "fixed", "last_batch": "dropped"}),
    Real(DIGITS, "loop", {"validation": 0.2, "observe": "similarities"}),
    Real(DIGITS, "loop", {"input_scale": "unit", "eval_every": 1}, seeds=(3, 8)),
    Real(DIGITS, "loop", {"method": "fedrep"}, resumed=True),
    Real(DIGITS, "stacked", {"method": "fedprox"}, variants=[{"lr": 0.02}]),
    Real(LARGER, "loop", WITH_NORM),
    Real(LARGER, "stacked", {**WITH_NORM, "bn_stats": "local", "augmentation": "crop_flip_rotate"}),
    Real(LARGER, "loop", {**WITH_NORM, "dtype": "float32"}),
    Real(LARGER, "loop", DEEPER),
    Real(LARGER, "loop", {**DEEPER, "dtype": "float32", "precision": "bf16"}),
]
"""Simulations for an edit of the engine or of the kernels."""


def of_methods(file: str) -> list[Real]:
    """Simulations of methods that use a file: their defaults, each choice, and draws from search ranges."""
    from pfl.methods import METHODS
    from pfl.testing.cases import other_choices

    module = Path(file).stem
    runs = []
    for method in METHODS:
        if module != method and not _uses(ROOT / f"pfl/methods/{method}.py", module):
            continue
        declared = METHODS[method].declarations()
        defaults = {name: METHODS[method].__dataclass_fields__[name].default for name in declared}
        stream = random.Random(method)
        own: list[dict[str, Any]] = [{}, {}, *(_drawn(declared, defaults, stream) for _ in range(2))]
        for name, declaration in declared.items():
            own += [{name: choice} for choice in other_choices(declaration, defaults[name])]
        for values, backend in zip(own, cycle(get_args(Literal["loop", "stacked"])), strict=False):
            runs.append(Real(DIGITS, backend, {"method": method, "hyperparameters": values}))
        runs.append(Real(LARGER, "loop", {**WITH_NORM, "method": method}))
    return runs


def _uses(path: Path, helper: str) -> bool:
    """Whether a method's file imports a helper, itself or through another."""
    text = path.read_text(encoding="utf-8")
    names = re.findall(r"from pfl\.methods\.(\w+) import", text)
    return helper in names or any(_uses(path.with_name(f"{name}.py"), helper) for name in names)


def _drawn(declared: Mapping[str, Any], defaults: Mapping[str, Any], stream: random.Random) -> dict[str, Any]:
    values = {}
    for name, declaration in declared.items():
        if declaration.search is None:
            continue
        if declaration.choices is not None:
            values[name] = stream.choice(declaration.search)
        elif isinstance(defaults[name], int):
            values[name] = stream.randint(*declaration.search)
        else:
            values[name] = stream.uniform(*declaration.search)
    return values


def results_of(real: Real) -> Any:
    """The numbers of a simulation, as in a record of the ledger."""
    import pfl
    from pfl.core.config import Config, Execution
    from pfl.data.partition import make_partition
    from pfl.run.simulate import simulate_configs

    dataset = pfl.load(real.data)
    partition = make_partition("dirichlet:0.3,min=8", dataset, 12)
    configs = [Config(**{**SHORT, **real.options, **variant}) for variant in ({}, *real.variants)]
    execution = Execution(device="cpu", backend=real.backend)
    with tempfile.TemporaryDirectory() as folder:
        if real.resumed:
            execution = replace(execution, checkpoint_dir=folder, code="mutants")
            simulate_configs(configs, dataset, partition, real.seeds, replace(execution, until=3))
        results = simulate_configs(configs, dataset, partition, real.seeds, execution)
    metrics = [result.metrics.to_json() for of_config in results for result in of_config]
    return json.loads(json.dumps(metrics))


def close(first: Any, second: Any, tolerance: float) -> bool:
    """Whether two results differ by no more than rounding."""
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(close(first[k], second[k], tolerance) for k in first)
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(lambda a, b: close(a, b, tolerance), first, second))
    if isinstance(first, float) and isinstance(second, float) and math.isfinite(first):
        return abs(first - second) <= tolerance * max(1.0, abs(first))
    return str(first) == str(second)  # NaN does not equal NaN


# ---- the study -----------------------------------------------------------------------------------------


def main(
    seed: Annotated[int, typer.Option(help="Draws the mutants.")] = 0,
    core_hours: Annotated[
        float, typer.Option(help="Stop after so much processor time, all runs together.")
    ] = 3.0,
    page: Annotated[bool, typer.Option("--page", help="Only write the page from the results.")] = False,
) -> None:
    """Measure what the battery detects, and write the report."""
    if page:
        draw()
        return
    drawn = sample(seed)
    commit = _commit()
    entries = _read(commit)
    known = {(entry["file"], entry["at"], entry["after"]) for entry in entries}
    spent = sum(entry["seconds"] for entry in entries)
    _import_libraries()
    with tempfile.TemporaryDirectory(prefix="pfl-mutants-") as scratch:
        study = MutantStudy(Path(scratch))
        for number, mutant in enumerate(drawn, 1):
            if (mutant.file, mutant.at, mutant.after) in known:
                continue
            if spent > core_hours * 3600:
                print("the processor time is used up")
                break
            entry = {**asdict(mutant), **study.examine(mutant)}
            spent += entry["seconds"]
            entries.append(entry)
            _save(seed, drawn, entries, commit)
            print(
                f"{number}/{len(drawn)} {mutant.file}:{mutant.line} {mutant.kind}: {entry['outcome']}",
                flush=True,
            )
    draw()


class MutantStudy:
    """Copies of `pfl/` in a folder, and the results of the unedited code."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.expected: dict[str, list[Any]] = {}
        self.tree = folder / "tree"
        os.environ["PFL_CACHE"] = str(folder / "cache")  # also of edited kernels

    def examine(self, mutant: Mutant) -> dict[str, Any]:
        """The mutant's ``outcome``, the case that detected it, and the CPU seconds."""
        runs = "general" if not mutant.file.startswith("pfl/methods") else mutant.file
        if runs not in self.expected:
            self._copy(None)
            computed = self._in_fork(lambda: {"results": [results_of(real) for real in _chosen(runs)]})
            self.expected[runs] = computed["results"]
        self._copy(mutant)
        return self._in_fork(lambda: _verdict(mutant, runs, self.expected[runs]))

    def _copy(self, mutant: Mutant | None) -> None:
        shutil.rmtree(self.tree, ignore_errors=True)
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "pfl", self.tree / "pfl", ignore=ignored)
        if mutant:
            mutant.apply(self.tree)

    def _in_fork(self, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What ``work`` returns in a process that imports pfl from the copy, and its CPU seconds."""
        answer, log = self.folder / "answer.json", self.folder / "log"
        answer.unlink(missing_ok=True)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        child = os.fork()
        if child == 0:
            with suppress(BaseException):
                with log.open("w") as file:
                    os.dup2(file.fileno(), 1)
                    os.dup2(file.fileno(), 2)
                resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
                sys.path.insert(0, str(self.tree))
                sys.dont_write_bytecode = True
                try:
                    content = work()
                except Exception:
                    content = {
                        "outcome": "raises",
                        "error": traceback.format_exc(limit=-1).splitlines()[-1][:200],
                    }
                answer.write_text(json.dumps(content))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        content = json.loads(answer.read_text()) if answer.exists() else {"outcome": _ended(status)}
        if "cannot be compiled" in log.read_text():
            content = {"outcome": "does not compile"}
        return {**content, "seconds": round(seconds, 1)}


def _ended(status: int) -> str:
    """How a process ended without an answer."""
    hangs = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL)
    return "hangs" if hangs else "crashes"


def _chosen(runs: str) -> list[Real]:
    """The simulations for an edit of a method's file, or "general"."""
    return GENERAL if runs == "general" else of_methods(runs)


def _verdict(mutant: Mutant, runs: str, expected: list[Any]) -> dict[str, Any]:
    """Whether a mutant changes a number of a real simulation and, if so, whether the battery detects it."""
    chosen = _chosen(runs)
    for real, results in zip(chosen, expected, strict=True):
        tolerance = 1e-2 if real.options.get("dtype") == "float32" else 1e-6
        if not close(results, results_of(real), tolerance):
            break
    else:
        return {"outcome": "moves no number"}
    from pfl.run.fingerprint import BUILTIN, AcceptedCode
    from pfl.testing.battery import answer, concerned
    from pfl.testing.cases import Case, cases

    def place(case: Case) -> tuple[bool, bool, str]:
        """Sort key: the cases that detect most come first, then those of the edited part."""
        subject = "network" if mutant.area == "kernels" else ""
        return case.name not in SHARP, not (case.subject or "").startswith(subject), case.subject or ""

    recorded = AcceptedCode.load(ROOT / "pfl" / BUILTIN.name).battery
    component = ["engine"] if runs == "general" else [f"method {real.options['method']}" for real in chosen]
    for case in sorted(concerned(component, cases()), key=place):
        result = answer(case, recorded.get(case.key))
        if result.moved != [] or result.disagreeing:
            return {"outcome": "seen", "by": case.name}
    return {"outcome": "not seen"}


def _import_libraries() -> None:
    """Import slow libraries, so that the forked processes have them."""
    for library in ("scipy.cluster", "sklearn.cluster", "sklearn.mixture", "torchvision"):
        importlib.import_module(library)
    import torch
    import torch._dynamo  # which torch imports in the first vmap

    torch.set_num_threads(1)


def _commit() -> str:
    """The short hash of the commit whose files are edited."""
    command = ["git", "rev-parse", "HEAD"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout[:10]


def _read(commit: str) -> list[dict[str, Any]]:
    """The mutants examined so far; none if they were drawn from the files of another commit."""
    document = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    return document["mutants"] if document.get("commit") == commit else []


def _save(seed: int, drawn: list[Mutant], entries: list[dict[str, Any]], commit: str) -> None:
    text = ",\n".join(map(json.dumps, entries))
    head = json.dumps({"seed": seed, "drawn": len(drawn), "commit": commit})[:-1]
    RESULTS.write_text(f'{head}, "mutants": [\n{text}\n]}}\n', encoding="utf-8")


def draw() -> None:
    """Write the page from ``mutants.json`` alone."""
    from benchmarks.workload import write_page

    document = json.loads(RESULTS.read_text(encoding="utf-8"))
    entries = document["mutants"]
    areas = {area: Counter(entry["outcome"] for entry in entries if entry["area"] == area) for area in SCOPE}
    kinds = Counter(entry["kind"] for entry in entries)
    hours = sum(entry["seconds"] for entry in entries) / 3600
    survivors = [entry for entry in entries if entry["outcome"] == "not seen"]
    total = sum(areas.values(), Counter[str]())
    write_page(
        FOLDER,
        "mutants.md.j2",
        "mutants.md",
        areas=areas,
        total=total,
        kinds=kinds,
        survivors=survivors,
        hours=hours,
        **{name: document[name] for name in ("drawn", "seed", "commit")},
    )


if __name__ == "__main__":
    typer.run(main)
