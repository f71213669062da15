"""The speed report, drawn from the figures in ``reports/engineering/speed/*.json`` alone.

``python -m benchmarks.report``. What has not been measured is left out, with its section.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.peers.table import TEXTBOOK, summary
from benchmarks.workload import write_page
from pipeline.report.plots import COLOURS, as_svg, wide_figure
from pipeline.svg import Axes, Canvas

FOLDER = Path("reports/engineering/speed")
REFERENCE, OURS, THIRD = COLOURS[:3]
Figures = dict[str, Any]


def main() -> None:
    """Write ``reports/engineering/speed/README.md`` and its plots."""
    speed = {
        name: json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
        for name in (*BENCHMARKS, *TABLES)
        if (FOLDER / f"{name}.json").exists()
    }
    for name in speed.keys() & PLOTS.keys():
        (FOLDER / f"{name}.svg").write_text(as_svg(PLOTS[name])(speed[name]), encoding="utf-8")
    context: dict[str, Any] = {
        "median": median,
        "times_textbook": times_textbook,
        "peers": summary,
        "tables": TABLES,
    }
    write_page(FOLDER, "speed.md.j2", speed=speed, **context)


def peers(figures: Figures) -> Canvas:
    """Samples per second of local training as multiples of the textbook loop's, a panel per network."""
    rows = summary(figures)
    models = list(dict.fromkeys(row["model"] for row in rows))
    counts = sorted({row["cores"] for row in rows})
    names = [name for name in figures["titles"] if name != TEXTBOOK]
    figure, axes = _panels(len(models), 1 + 0.4 * len(names))
    for panel, model in zip(axes, models, strict=True):
        ratios = {(row["peer"], row["cores"]): row["training_ratio"] for row in rows if row["model"] == model}
        for number, cores in enumerate(count for count in counts if (names[0], count) in ratios):
            places = [place + 0.38 * (number - (len(counts) - 1) / 2) for place in range(len(names))]
            values = [ratios[name, cores] for name in names]
            label = f"{cores} core{'s' * (cores > 1)}"
            bars = panel.barh(places, values, 0.36, color=(OURS, THIRD)[number % 2], label=label)
            panel.bar_label(bars, fmt="%.1f", padding=2)
        panel.axvline(1, color=REFERENCE)
        panel.set_yticks(range(len(names)), [figures["titles"][name] for name in names])
        panel.tick_params(labelleft=panel is axes[0])
        panel.invert_yaxis()
        panel.margins(x=0.12)
        panel.grid(visible=False, axis="y")
        panel.set_title(model)
        panel.set_xlabel("relative to the textbook loop on the same number of cores")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper")
    return figure


def throughput(figures: Figures) -> Canvas:
    """Samples per second, textbook and ours, of local training and of whole rounds."""
    models = figures["models"]
    figure, axes = _panels(2, 1 + 0.3 * len(models))
    for panel, part in zip(axes, ("training", "round"), strict=True):
        rates = {
            who: [median(model[part][who]) for model in models.values()] for who in ("textbook", "engine")
        }
        _bars(panel, list(models), rates["textbook"], rates["engine"])
        panel.set_title({"training": "Local training", "round": "With aggregation and evaluation"}[part])
        panel.set_xlabel("training samples per second")
    axes[1].tick_params(labelleft=False)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper")
    return figure


def kernels(figures: Figures) -> Canvas:
    """A step's speed as a multiple of the textbook network's, by batch size, in each precision."""
    models = figures["models"]
    figure, axes = _panels(len(models), 2.6)
    for panel, (name, sizes) in zip(axes, models.items(), strict=True):
        for kind, colour in (("kernels", OURS), ("bf16", THIRD)):
            times = {int(size): by_kind for size, by_kind in sizes.items() if kind in by_kind}
            ratios = [by_kind["textbook"] / by_kind[kind] for by_kind in times.values()]
            panel.plot(list(times), ratios, "o-", color=colour, label={"kernels": "fp32"}.get(kind, kind))
        panel.axhline(1, color=REFERENCE)
        panel.set_title(name)
        panel.set_xlabel("images")
        panel.set_ylim(bottom=0)
    axes[0].set_ylabel("relative to the textbook step")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper")
    return figure


def methods(figures: Figures) -> Canvas:
    """Each method's cost relative to FedAvg's, per round and per training sample."""
    methods = dict(sorted(figures["methods"].items(), key=lambda item: item[1]["relative"]))
    figure, axes = _panels(2, 0.8 + 0.2 * len(methods))
    titles = {"relative": "A round", "relative_by_sample": "A training sample"}
    for panel, (name, title) in zip(axes, titles.items(), strict=True):
        panel.barh(list(methods), [times[name] for times in methods.values()], color=OURS)
        panel.axvline(1, color=REFERENCE)
        panel.set_title(title)
        panel.set_xlabel("times FedAvg's")
        panel.margins(y=0.01)
    return figure


def gpu(figures: Figures) -> Canvas:
    """Local training's samples per second as a multiple of the textbook loop's, by stack and precision."""
    figure, axes = _panels(len(figures["work"]), 3.4)
    precisions = figures["peak_flop_per_second"]
    for panel, (name, measured) in zip(axes, figures["work"].items(), strict=True):
        for number, precision in enumerate(precision for precision in precisions if precision in measured):
            ratios = times_textbook(measured, precision)
            places = [place + number / (1 + len(precisions)) for place in range(len(ratios))]
            panel.barh(
                places,
                list(ratios.values()),
                0.9 / (1 + len(precisions)),
                color=COLOURS[number + 1],
                label=precision,
            )
            panel.set_yticks(range(len(ratios)), list(ratios) if panel is axes[0] else [])
        panel.invert_yaxis()
        panel.set_title(name)
        panel.set_xlabel("times the textbook loop")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper")
    return figure


def times_textbook(measured: Figures, precision: str) -> dict[str, float]:
    """The speed of each stack as a multiple of the textbook loop's on the same device."""
    usual = median(measured["textbook"])
    stacks = measured[precision]["stacks"]
    return {stack: median(rounds["samples_per_second"]) / usual for stack, rounds in stacks.items()}


def _panels(count: int, height: float = 2.8) -> tuple[Canvas, list[Axes]]:
    """A figure of ``count`` panels side by side."""
    figure = wide_figure(height)
    panels = list(figure.subplots(1, count, squeeze=False)[0])
    for panel in panels:
        panel.set_axisbelow(True)
    return figure, panels


def _bars(panel: Axes, names: list[str], textbook: list[float], ours: list[float]) -> None:
    """A pair of bars for each of ``names``, from top to bottom."""
    places = range(len(names))
    panel.barh([place - 0.19 for place in places], textbook, 0.36, color=REFERENCE, label="textbook")
    panel.barh([place + 0.19 for place in places], ours, 0.36, color=OURS, label="ours")
    panel.set_yticks(places, names)
    panel.invert_yaxis()
    panel.grid(visible=False, axis="y")


PLOTS: dict[str, Callable[[Figures], Canvas]] = {
    plot.__name__: plot for plot in (peers, throughput, kernels, methods, gpu)
}
"""The function that draws a benchmark, by its name."""

BENCHMARKS = (*PLOTS, "startup", "sweep", "accuracy")
"""All benchmarks; those without a plot have a table alone."""

TABLES = {
    "tiles": ["throughput", "--precisions"],
    "bf16": ["accuracy", "--bf16"],
    "bf16-schedule": ["accuracy", "--bf16", "--model", "lenet5_bn", "--rounds", "100"],
}
"""Measurements on a CPU with Intel AMX: the benchmark and its options, by name."""


if __name__ == "__main__":
    main()
