"""The table of the frameworks, for the speed page and the README."""

from __future__ import annotations

import ast
import io
import json
import tokenize
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.workload import markdown_table, ratio

FIGURES = Path("reports/engineering/speed/peers.json")
BEGIN, END = "<!-- peers -->", "<!-- /peers -->"
TEXTBOOK, OURS = "textbook", "ours"
_NO_CODE = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)


def lines_of_code(*files: Path) -> int:
    """Lines of ``files`` without blank lines, comments and docstrings."""
    return sum(_lines_of_code(file.read_text(encoding="utf-8")) for file in files)


def _lines_of_code(source: str) -> int:
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            lines -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines)


def summary(figures: dict[str, Any]) -> list[dict[str, Any]]:
    """A row per network, number of cores and framework: medians over the repeats, in the order of the runs.

    Returns:
        Rows with ``peer``, ``title``, ``version``, ``model``, ``cores``; ``training`` and ``whole`` samples
        per second, the latter from the first participant's start to the end of the process;
        ``training_ratio`` and ``whole_ratio`` to the textbook loop; ``startup``, ``seconds``,
        ``cpu_seconds``, ``memory`` in bytes, ``accuracy`` in per cent after the last round; ``lines``,
        ``setting``.
    """
    groups: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    for run in figures["runs"]:
        groups.setdefault((run["model"], run["cores"], run["peer"]), []).append(run)
    return [
        {
            "peer": peer,
            "title": figures["titles"][peer],
            "version": runs[0]["version"],
            "model": model,
            "cores": cores,
            "training": median(_training(runs)),
            "whole": median(_whole(runs)),
            "training_ratio": ratio(_training(runs), _training(groups[model, cores, TEXTBOOK])),
            "whole_ratio": ratio(_whole(runs), _whole(groups[model, cores, TEXTBOOK])),
            "startup": median(run["startup_seconds"] for run in runs),
            "seconds": median(run["seconds"] for run in runs),
            "cpu_seconds": median(run["cpu_seconds"] for run in runs),
            "memory": median(run["peak_memory_bytes"] for run in runs),
            "accuracy": median(list(run["accuracies"].values())[-1] for run in runs),
            "lines": figures["lines"][peer],
            "setting": runs[0]["setting"],
        }
        for (model, cores, peer), runs in groups.items()
    ]


def _training(runs: Sequence[dict[str, Any]]) -> list[float]:
    return [run["samples"] / run["training_seconds"] for run in runs]


def _whole(runs: Sequence[dict[str, Any]]) -> list[float]:
    return [run["samples"] / (run["seconds"] - run["startup_seconds"]) for run in runs]


def readme_table(figures: dict[str, Any]) -> str:
    """The README's table: the first network, a row per framework."""
    rows = summary(figures)
    model = rows[0]["model"]
    counts = sorted({row["cores"] for row in rows if row["model"] == model})
    names = [f"{count} core{'s' * (count > 1)}" for count in counts]
    head = ["", *names, *(f"whole run, {name}" for name in names), "start-up", "memory", "lines to write"]
    lines = []
    for peer, title in figures["titles"].items():
        own = {row["cores"]: row for row in rows if row["peer"] == peer and row["model"] == model}
        first = own[counts[0]]
        name = title if peer in (TEXTBOOK, OURS) else f"{title} {first['version']}"
        lines.append(
            [
                f"**{name}**" if peer == OURS else name,
                *(f"{own[count]['training_ratio']:.2f}" for count in counts),
                *(f"{own[count]['whole_ratio']:.2f}" for count in counts),
                f"{first['startup']:.0f} s",
                f"{first['memory'] / 1e9:.1f} GB",
                str(first["lines"]),
            ]
        )
    return markdown_table(head, lines).replace("|  |", "| |")


def write_readme(root: Path) -> None:
    """Write the plot and the table between the markers of ``README.md``."""
    figures = json.loads((root / FIGURES).read_text(encoding="utf-8"))
    readme = root / "README.md"
    before, _, rest = readme.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    readme.write_text(f"{before}{BEGIN}\n{readme_block(figures)}\n{END}{after}", encoding="utf-8")


def readme_block(figures: dict[str, Any]) -> str:
    """The text between the markers of the README."""
    machine = figures["hardware"]["gpu"] or figures["hardware"]["cpu"]
    return f"""\
![Speed of local training relative to the textbook loop]({FIGURES.with_suffix(".svg")})

Speed of FedAvg on CIFAR-10 with 100 clients (LeNet-5 with batch norm), relative to the textbook PyTorch loop
on the same number of cores: local training, then the whole run. Measured on an idle {machine}, commit
{figures["commit"][:10]} ([how it is measured]({FIGURES.with_name("README.md")}#other-frameworks)).

{readme_table(figures)}"""
