"""Results of simulations as pandas frames and matplotlib plots, which are imported when used."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from pfl.core.errors import Conflict, InvalidInput, Missing
from pfl.core.text import distinct, drawn_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

    from pfl.engine.result import Result

What = Literal["curves", "clients", "summary"]
Values = dict[str, Any]
Rows = Callable[["Result"], Iterator[Values]]
Draw = Callable[[Any, str, Any], None]


@dataclass(frozen=True)
class Runs(Sequence["Result"]):
    """Results of simulations, of one seed each.

    >>> runs = pfl.simulate("fedavg", clients=4, rounds=2, epochs=1, seeds=2, progress=False)
    >>> len(runs), runs[1].labels
    (2, {'method': 'fedavg', 'seed': 1})
    """

    runs: tuple[Result, ...]

    def __repr__(self) -> str:
        return f"Runs({'; '.join(_named(run.labels) for run in self)})"

    def __getitem__(self, place: Any) -> Any:
        return Runs(self.runs[place]) if isinstance(place, slice) else self.runs[place]

    def __len__(self) -> int:
        return len(self.runs)

    def __add__(self, other: Runs) -> Runs:
        """Add other runs, for example of another method, to compare them in one plot.

        Raises:
            InvalidInput: duplicate run labels, or ``other`` is not `Runs`.
        """
        if not isinstance(other, Runs):
            raise InvalidInput("runs", type(other).__name__, "runs of simulate, or a slice of them")
        known = {_named(run.labels) for run in self}
        for run in other:
            if (name := _named(run.labels)) in known:
                raise Conflict("labels", f"duplicate run labels ({name})", "see simulate's label")
        return Runs((*self.runs, *other.runs))

    def to_frame(self, what: What = "curves") -> DataFrame:
        """The results as a pandas data frame.

        Args:
            what: ``curves``, a row per evaluation and moment; ``clients``, a row per client, of the last
                evaluation; ``summary``, a row per simulation. Accuracies are in percent.

        Raises:
            InvalidInput: ``what`` is unknown, or pandas is missing.
        """
        rows, _ = _view(what)
        pandas = _library("pandas")
        frame: DataFrame = pandas.DataFrame([{**run.labels, **row} for run in self for row in rows(run)])
        return frame

    def plot(self, what: What = "curves", ax: Axes | None = None) -> Axes:
        """Matplotlib axes with the mean over seeds and, but for ``clients``, the sample standard deviation.

        Runs whose labels differ only in the seed are seeds of one simulation.

        Args:
            what: ``curves``, accuracy by round; ``clients``, the clients' accuracies in ascending order;
                ``summary``, the accuracy of the last round.
            ax: where to draw; by default on a new figure.

        Raises:
            InvalidInput: ``what`` is unknown, there is no run, or matplotlib or pandas is missing.
        """
        _, draw = _view(what)
        if not self.runs:
            raise InvalidInput("plot", "no run", "at least one")
        groups: dict[str, list[Result]] = {}
        for run in self:
            text = ", ".join(str(value) for name, value in run.labels.items() if name != "seed")
            groups.setdefault(text, []).append(run)
        beside = {"loc": "upper left", "bbox_to_anchor": (1, 1)} if ax is None else {}
        if ax is None:
            _, ax = _library("matplotlib.pyplot").subplots(layout="constrained")
        for text, own in groups.items():
            draw(ax, drawn_text(text), Runs(tuple(own)).to_frame(what))
        ax.set_ylabel("accuracy (%)")
        if what == "summary":
            ax.tick_params("x", labelrotation=90)  # otherwise many names would overlap
        else:
            ax.locator_params("x", integer=True)
            ax.legend(**beside)  # inside, a long legend would cover curves
        return ax


def _named(labels: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in labels.items())


def _view(what: str) -> tuple[Rows, Draw]:
    if what not in get_args(What):
        raise InvalidInput("what", what, " or ".join(get_args(What)))
    return _VIEWS[what]


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        package = name.partition(".")[0]
        raise Missing(package, "not installed", f"it for to_frame and plot (pip install {package})") from None


def _curves(run: Result) -> Iterator[Values]:
    for entry in run.metrics.rounds:
        for moment, accuracy in entry.moments.items():
            traffic = {"bytes_down": entry.bytes_down, "bytes_up": entry.bytes_up}
            yield {
                "round": entry.round,
                "moment": moment,
                "headline": moment == run.metrics.headline,
                **dataclasses.asdict(accuracy),
                "train_loss": entry.train_loss,
                **traffic,
            }


def _clients(run: Result) -> Iterator[Values]:
    for place, client in enumerate(run.metrics.per_client):
        own = dataclasses.asdict(client)
        metrics = {name: metric.per_client[place] for name, metric in run.metrics.scalars.items()}
        yield own | distinct("metric_", metrics, {*run.labels, *own})


def _summary(run: Result) -> Iterator[Values]:
    pooled, mean = run.metrics.reached("pooled"), run.metrics.reached("client_mean")
    metrics: Values = {}
    for name, metric in run.metrics.scalars.items():
        metrics |= {name: metric.pooled, f"{name}_client_mean": metric.client_mean}
    unseen = run.metrics.unseen.pooled if run.metrics.unseen else {}
    accuracies = {
        "pooled": pooled.last,
        "client_mean": mean.last,
        "best": pooled.best,
        "best_round": pooled.best_round,
        "worst_decile": run.metrics.worst_decile,
        "client_deviation": run.metrics.client_deviation,
        **{f"unseen_{name}": accuracy for name, accuracy in unseen.items()},
    }
    others = {
        "diverged_at": run.metrics.diverged_at,
        "stopped_at": run.metrics.stopped_at,
        "bytes_down": run.metrics.bytes_down,
        "bytes_up": run.metrics.bytes_up,
        **dataclasses.asdict(run.measured),
    }
    yield accuracies | distinct("metric_", metrics, {*run.labels, *accuracies, *others}) | others


def _draw_curves(ax: Any, label: str, frame: Any) -> None:
    rounds = frame[frame["headline"]].groupby("round")["pooled"]
    mean, deviation = rounds.mean(), rounds.std()
    ax.plot(mean.index, mean, ".-", label=label)
    ax.fill_between(mean.index, mean - deviation, mean + deviation, alpha=0.2)
    ax.set_xlabel("round")


def _draw_clients(ax: Any, label: str, frame: Any) -> None:
    accuracies = frame.groupby("client")["accuracy"].mean().dropna().sort_values()
    ax.plot(range(1, len(accuracies) + 1), accuracies, ".-", label=label)
    ax.set_xlabel("clients, by accuracy")


def _draw_summary(ax: Any, label: str, frame: Any) -> None:
    ax.bar(label, frame["pooled"].mean(), yerr=frame["pooled"].std())


_VIEWS: dict[str, tuple[Rows, Draw]] = {
    "curves": (_curves, _draw_curves),
    "clients": (_clients, _draw_clients),
    "summary": (_summary, _draw_summary),
}
"""The rows of each frame, and the function that draws it."""
