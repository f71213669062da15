"""What ``import pfl`` offers."""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.container import ErrorbarContainer

import pfl
from pfl.core.config import Execution
from pfl.core.errors import InvalidInput, OptionWarning
from pfl.core.hyper import hyper
from pfl.methods import METHODS
from pfl.methods.fedprox import FedProx
from pfl.methods.fedrep import FedRep
from pfl.testing.synthetic import make_clients, make_dataset

SHORT = {"rounds": 2, "epochs": 1, "eval_every": 1, "progress": False}


@pytest.fixture(scope="module")
def runs():
    """Two seeds of a method on digits."""
    return pfl.simulate("pfedsim", dataset="digits", partition="dirichlet:0.1", clients=5, seeds=2, **SHORT)


@pytest.fixture(autouse=True)
def no_window():
    mpl.use("Agg")


def test_names_suffice_for_a_simulation(runs):
    assert [run.labels for run in runs] == [{"method": "pfedsim", "seed": seed} for seed in (0, 1)]
    assert runs[0].metrics.rounds[-1].round == 2


@pytest.mark.parametrize(
    ("what", "rows", "columns"),
    [
        ("curves", 8, {"seed", "round", "moment", "pooled", "train_loss", "bytes_up"}),
        ("clients", 10, {"seed", "client", "train", "test", "accuracy"}),
        ("summary", 2, {"seed", "pooled", "client_mean", "best", "wall_seconds"}),
    ],
)
def test_results_are_frames(what, rows, columns, runs):
    frame = runs.to_frame(what)
    assert columns <= set(frame.columns)
    assert len(frame) == rows


def test_a_plot_of_two_methods_has_a_line_for_each(runs):
    other = pfl.simulate("fedavg", clients=5, **SHORT)
    axes = (runs + other).plot()
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["pfedsim", "fedavg"]
    mean = runs.to_frame("summary")["pooled"].mean()
    assert axes.get_lines()[0].get_ydata()[-1] == pytest.approx(mean)


@pytest.mark.parametrize("what", ["curves", "summary"])
def test_a_name_with_dollar_signs_is_plotted_as_it_is(what, runs, tmp_path):
    labels = [{**run.labels, "method": r"$\frac{$"} for run in runs]
    named = pfl.Runs(tuple(replace(run, labels=own) for run, own in zip(runs, labels, strict=True)))
    with mpl.rc_context({"svg.fonttype": "none"}):
        named.plot(what).figure.savefig(tmp_path / "plot.svg")
    assert r">$\frac{$</text>" in (tmp_path / "plot.svg").read_text()


@pytest.mark.parametrize("what", ["curves", "clients"])
def test_a_legend_names_all_runs_whatever_their_labels(what, runs):
    labels = (None, float("nan"), "_own", ["a"], "")
    labelled = [replace(runs[0], labels={"method": label}) for label in labels]
    texts = pfl.Runs(tuple(labelled)).plot(what).get_legend().get_texts()
    assert [text.get_text().lstrip("\u200b") for text in texts] == ["None", "nan", "_own", "['a']", ""]


def test_runs_that_are_printed_alike_are_one_group_and_need_other_seeds(runs):
    first = pfl.Runs((replace(runs[0], labels={"method": "1", "seed": 0}),))
    second = pfl.Runs((replace(runs[1], labels={"method": 1, "seed": 1}),))
    assert len((first + second).plot("summary").patches) == 1
    with pytest.raises(InvalidInput, match=r"labels: duplicate run labels \(method 1, seed 0\)"):
        first + pfl.Runs((replace(runs[1], labels={"method": 1, "seed": 0}),))


@pytest.mark.parametrize("label", [1, "", " "])
def test_a_label_is_a_name(label):
    with pytest.raises(InvalidInput, match=r"label: .* expected a name for frames and plots"):
        pfl.simulate("fedavg", clients=5, label=label, **SHORT)


def test_a_plot_counts_clients_in_integers_and_its_legend_covers_no_curve(runs):
    axes = runs.plot("clients")
    axes.figure.draw_without_rendering()
    assert all(tick == round(tick) for tick in axes.get_xticks())
    assert axes.get_legend().get_window_extent().x0 >= axes.get_window_extent().x1


@pytest.mark.parametrize("what", ["clients", "summary"])
def test_clients_and_summary_are_drawn_on_given_axes(what, runs):
    axes = mpl.pyplot.figure().subplots()
    assert runs.plot(what, ax=axes) is axes
    assert axes.get_ylabel() == "accuracy (%)"


def test_objects_stand_for_names():
    dataset = make_dataset()
    method = FedProx(mu=0.5)
    runs = pfl.simulate(method, dataset, make_clients(dataset, [8, 8]), model="lenet5_bn", **SHORT)
    named = pfl.simulate(
        "fedprox",
        dataset,
        make_clients(dataset, [8, 8]),
        model="lenet5_bn",
        hyperparameters={"mu": 0.5},
        **SHORT,
    )
    assert runs[0].metrics == named[0].metrics


def test_a_method_and_a_network_of_a_notebook_are_simulated():
    @dataclass(frozen=True)
    class Halfway(pfl.Method):
        def aggregate(self, server):
            return {"head": server.average()}

    def shallow(shape, classes):
        from torch import nn

        pixels = shape[0] * shape[1] * shape[2]
        return nn.Sequential(nn.Flatten(), nn.Linear(pixels, 8), nn.ReLU(), nn.Linear(8, classes))

    (run,) = pfl.simulate(Halfway, clients=4, model=shallow, **SHORT)
    assert run.labels["method"] == "halfway"
    assert METHODS["halfway"] is Halfway
    assert METHODS.plugin("halfway") is None


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"round": 3}, "option: round is not accepted.*did you mean 'rounds'"),
        ({"seeds": 0}, "seeds: .* is not accepted"),
        ({"partition": "dirichlet:-1"}, "is not accepted"),
        ({"seed": 3}, "option: seed is not accepted.*did you mean 'seeds'"),
        ({"method": "fedprox", "mu": 0.1}, r"mu is not accepted; expected hyperparameters=\{'mu': 0.1\}"),
        ({"seeds": 2.5}, "seeds: 2.5 is not accepted; expected a number of seeds"),
        ({"method": 3}, "method: 3 is not accepted; expected a name"),
        ({"model": 3}, "model: 3 is not accepted; expected a name"),
        ({"dataset": 3}, "dataset: 3 is not accepted; expected a name"),
        ({"hyperparameters": None}, "hyperparameters: None is not accepted; expected a mapping"),
        ({"execution": "cpu"}, "execution: cpu is not accepted; expected an Execution"),
        (
            {"execution": Execution(moments=(5,))},
            "moments: 5 is not accepted; expected some of post_aggregation, post_local, as fedavg has",
        ),
        ({"execution": Execution(moments=([1],))}, r"moments: \[1\] is not accepted; expected some of"),
        (
            {"execution": Execution(moments=("adapted",))},
            "moments: adapted is not accepted; expected some of",
        ),
        (
            {"method": FedRep(), "execution": Execution(moments=("post_local", "adapted"))},
            "moments: adapted is not accepted; expected some of post_aggregation, post_local, as fedrep has",
        ),
        ({"execution": Execution(moments="adapted")}, "moments: 'adapted' is not accepted; expected a tuple"),
        (
            {"execution": Execution(moments=None)},
            "moments: None is not accepted; expected a tuple of moments",
        ),
        ({"execution": Execution(until="1")}, "until: '1' is not accepted; expected a round"),
        ({"execution": Execution(save=5)}, "save: 5 is not accepted; expected a path"),
        ({"execution": Execution(checkpoint_dir=5)}, "checkpoint_dir: 5 is not accepted; expected a path"),
        ({"observe": "similarities", "measure": print}, "measure: a function is not accepted"),
        ({"metrics": ["aurco"]}, "metrics: aurco is not accepted; expected one of .*did you mean 'auroc'"),
        ({"metrics": "auroc"}, "metrics: auroc is not accepted; expected a list of names"),
        ({"measure": 3}, "measure: 3 is not accepted; expected a function"),
        ({"seeds": "0,1"}, "seeds: 0,1 is not accepted; expected a number of seeds"),
        ({"clients": "4"}, "clients: '4' is not accepted; expected a positive integer"),
        ({"rounds": "4"}, "rounds: '4' is not accepted; expected a positive integer"),
        ({"clients": 4.0}, "clients: 4.0 is not accepted; expected a positive integer"),
        ({"clients": True}, "clients: True is not accepted; expected a positive integer"),
        ({"partition": 3}, "partition: 3 is not accepted; expected a rule"),
        ({"device": "cpu"}, r"device is not accepted; expected execution=Execution\(device='cpu'\)"),
        ({"execution": Execution(device=3)}, "device: 3 is not accepted; expected cpu"),
        ({"model": lambda *_: None}, "expected a function that returns an nn.Module, not None"),
        ({"model": ""}, "model: '' is not accepted; expected one of"),
        ({"on_round": 3}, "on_round: 3 is not accepted; expected a function of the round"),
        ({"batch_order": np.array(["fixed", "fixed"])}, "^batch_order: .* expected shuffled or fixed or"),
        ({"batch_order": "sorted"}, "^batch_order: sorted is .* expected shuffled or fixed or class_stream$"),
        ({"last_batch": "cut"}, "^last_batch: cut is not accepted; expected kept or dropped$"),
        (
            {"augmentation": "flip"},
            "^augmentation: flip is .* none or crop_flip or crop_flip_rotate or flip_rotate$",
        ),
        (
            {"input_scale": "raw"},
            "^input_scale: raw is not accepted; "
            "expected normalised or symmetric or unit or raw255 or mnist or cifar10 or cifar100$",
        ),
        ({"lr_schedule": "linear"}, "lr_schedule: linear is not accepted; expected constant or step"),
        ({"lr_step": 5}, "lr_step: 5 is not accepted; expected the default unless lr_schedule is step"),
        (
            {"lr_gamma": 0.5, "lr_schedule": "cosine"},
            "lr_gamma: 0.5 is not .* unless lr_schedule is step",
        ),
        ({"lr_warmup": -1}, "lr_warmup: -1 is not accepted; expected a non-negative integer"),
        ({"patience": -1}, "patience: -1 is not accepted; expected a non-negative integer"),
        ({"min_delta": 0.5}, "min_delta: 0.5 is not accepted; expected the default unless patience is set"),
        ({"stop_share": 0.5}, "stop_share: 0.5 is not accepted; expected the default unless patience is set"),
        ({"patience": 2, "stop_share": 0.0}, r"stop_share: 0.0 is not accepted; expected .* in \(0, 1\)$"),
        ({"patience": 2, "stop_share": 1.5}, r"stop_share: 1.5 is not accepted; expected .* in \(0, 1\)$"),
        ({"patience": 2, "observe": "similarities"}, "patience: 2 .* expected 0 with observe similarities"),
        ({"unseen": 1.0}, r"unseen: 1.0 is not accepted; expected a number in \[0, 1\)"),
        ({"unseen": "0.2"}, "unseen: '0.2' is not accepted"),
        ({"unseen_epochs": 2}, "unseen_epochs: 2 is not accepted; expected the default unless unseen is set"),
        ({"unseen": 0.2, "unseen_epochs": -1}, "unseen_epochs: -1 is not accepted; expected a non-negative"),
    ],
)
def test_a_mistake_is_one_clear_line(arguments, line):
    with pytest.raises(InvalidInput, match=line):
        pfl.simulate(**arguments)


def test_a_tilde_in_a_path_is_the_home_folder(home):
    execution = Execution(save="~/models.pt", checkpoint_dir="~/state")
    pfl.simulate(clients=4, execution=execution, **SHORT)
    assert pfl.load_models("~/models.pt").clients == 4
    assert (home / "state/checkpoint.pt").exists()
    digits = pfl.load("digits")
    digits.save("~/own.npz")
    assert pfl.load("~/own.npz", progress=False).content == digits.content
    assert not any(Path.cwd().iterdir())


@pytest.mark.parametrize(
    ("call", "parameter"),
    [
        (pfl.load, "dataset"),
        (lambda path: pfl.load("mnist", source=path), "DATA_SOURCE"),
        (lambda path: pfl.load("mnist", raw=path), "raw"),
        (lambda path: pfl.load("digits").save(path), "path"),
        (lambda path: pfl.from_table(path.replace("npz", "csv"), label="class"), "table"),
        (pfl.load_models, "models"),
        (lambda path: pfl.make_partition(f"file:{path}", pfl.load("digits"), None), "partition"),
        (lambda path: pfl.simulate(clients=4, execution=Execution(save=path)), "save"),
        (lambda path: pfl.simulate(clients=4, execution=Execution(checkpoint_dir=path)), "checkpoint_dir"),
    ],
)
def test_a_home_folder_that_nobody_has_is_one_clear_line(call, parameter, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = rf"^{parameter}: ~nobody-here/\S+ is not accepted; expected a path \(Could not determine home"
    with pytest.raises(InvalidInput, match=line):
        call("~nobody-here/own.npz")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["save", "checkpoint_dir"])
def test_a_folder_that_cannot_be_made_is_one_clear_line_before_the_first_round(option, tmp_path):
    (tmp_path / "file").touch()
    execution = Execution(**{option: str(tmp_path / "file/below")})
    with pytest.raises(InvalidInput, match=f"^{option}: .*file/below.* is not accepted"):
        pfl.simulate(clients=4, execution=execution, on_round=lambda *_: pytest.fail("a round"), **SHORT)


def failing(*_):
    raise KeyError("no such class")


def silent(scores, labels):
    (scores.argmax(1) == labels).mean()


def dividing(_, labels):
    return 1 / (labels != labels[0]).sum().item()


def counts(_, labels):
    return np.unique(labels, return_counts=True)[1]


@pytest.mark.parametrize(
    ("metric", "why"),
    [
        (failing, r"\(KeyError: 'no such class'\)"),
        (silent, r"returns numbers \(ValueError: None, which"),
        (dividing, r"a single class \(ZeroDivisionError"),
        (counts, r"a single class \(ValueError: an array of another shape"),
    ],
)
def test_a_metric_that_fails_is_one_clear_line_before_the_first_round(metric, why):
    with pytest.raises(InvalidInput, match=rf"^metrics: {metric.__name__} .* {why}"):
        pfl.simulate(clients=4, metrics=[metric], on_round=lambda *_: pytest.fail("a round"), **SHORT)


def test_functions_of_one_name_are_refused_and_the_name_of_another_column_has_a_prefix():
    def pooled(*_):
        return -1

    def accuracy(*_):
        return -2

    with pytest.raises(InvalidInput, match=r"^metrics: <lambda> .* distinct names"):
        pfl.simulate(clients=4, metrics=[lambda *_: 1, lambda *_: 2], **SHORT)
    runs = pfl.simulate(clients=4, metrics=[pooled, accuracy], **SHORT)
    summary, clients = runs.to_frame("summary"), runs.to_frame("clients")
    assert (summary["pooled"] >= 0).all() and (summary["metric_pooled"] == -1).all()
    assert (clients["accuracy"] >= 0).all() and (clients["metric_accuracy"] == -2).all()


def test_a_metric_is_a_name_or_a_function():
    def mistakes(scores, labels):
        return (scores.argmax(1) != labels).sum()

    runs = pfl.simulate("fedavg", clients=4, metrics=[mistakes, "auroc", "recall"], **SHORT)
    metrics = runs[0].metrics.client_metrics
    assert list(metrics) == ["auroc", "mistakes", "recall"]
    summary, clients = runs.to_frame("summary"), runs.to_frame("clients")
    assert clients["mistakes"].sum() == summary["mistakes"][0] == metrics["mistakes"].pooled
    assert clients["auroc"].mean() == pytest.approx(summary["auroc_client_mean"][0])
    assert "recall" not in [*summary, *clients]


def test_numbers_of_numpy_are_numbers():
    options = {"rounds": np.int64(1), "lr": np.float32(0.25), "hyperparameters": {"mu": np.float64(0.5)}}
    given = {**SHORT, **options, "clients": np.int64(4), "seeds": np.arange(1, 3)}
    plain = {**SHORT, "rounds": 1, "lr": 0.25, "hyperparameters": {"mu": 0.5}, "clients": 4, "seeds": [1, 2]}
    ours, theirs = (pfl.simulate("fedprox", **arguments) for arguments in (given, plain))
    assert [run.metrics for run in ours] == [run.metrics for run in theirs]


def test_a_single_evaluation_and_its_spread_over_the_seeds_are_drawn():
    runs = pfl.simulate(clients=4, rounds=1, epochs=1, seeds=2, progress=False)
    (line,) = runs.plot().get_lines()
    assert line.get_marker() == "."
    (error,) = (drawn for drawn in runs.plot("summary").containers if isinstance(drawn, ErrorbarContainer))
    low, high = error.lines[2][0].get_segments()[0][:, 1]
    assert (high - low) / 2 == pytest.approx(runs.to_frame("summary")["pooled"].std())


def test_what_is_shown_of_objects_is_short(runs):
    assert repr(runs) == "Runs(method pfedsim, seed 0; method pfedsim, seed 1)"
    data = pfl.load("digits")
    assert repr(data) == "Dataset(digits: 1,797 images of 1x8x8 in 10 classes)"
    assert repr(pfl.make_partition("dirichlet:1", data, 4)).endswith("seed=0: 4 clients)")


def test_there_is_no_plot_of_nothing():
    with pytest.raises(InvalidInput, match="plot: no run is not accepted"):
        pfl.Runs(()).plot()


def test_another_view_of_runs_is_refused(runs):
    for show in (runs.to_frame, runs.plot):
        with pytest.raises(InvalidInput, match="what: rounds is not accepted; expected curves or clients or"):
            show("rounds")


def test_a_name_is_no_data_set_to_be_divided():
    with pytest.raises(InvalidInput, match=r"dataset: digits is not accepted; expected a data set"):
        pfl.make_partition("dirichlet:0.1", "digits", clients=3)
    with pytest.raises(InvalidInput, match="partition: 3 is not accepted; expected a rule"):
        pfl.make_partition(3, pfl.load("digits"), clients=3)


def test_a_checkpoint_needs_a_name_for_the_code_of_an_object(tmp_path):
    @dataclass(frozen=True)
    class Nameless(pfl.Method):
        def aggregate(self, server):
            return {"model": server.average()}

    with pytest.raises(InvalidInput, match=r"expected execution\.code as well, a name for the code"):
        pfl.simulate(Nameless, execution=Execution(checkpoint_dir=str(tmp_path)), **SHORT)
    named = Execution(checkpoint_dir=str(tmp_path), code="nameless, first version")
    assert pfl.simulate(Nameless, clients=4, execution=named, **SHORT)


@pytest.mark.parametrize(
    ("kind", "fields"), [(float, {"mu": 1.0}), (float, {}), (str, {"mu": hyper("raw", "a form")})]
)
def test_a_field_of_a_method_that_is_no_hyperparameter_is_one_clear_line(kind, fields):
    own = dataclass(frozen=True)(type("Own", (pfl.Method,), {"__annotations__": {"mu": kind}, **fields}))
    with pytest.raises(
        InvalidInput, match=r"^Own\.mu: its declaration is not accepted; expected hyper\(defa"
    ):
        pfl.simulate(own, clients=4, **SHORT)


def test_runs_of_equal_names_are_told_apart_by_a_label(runs):
    with pytest.raises(InvalidInput, match=r"labels: duplicate run labels \(method pfedsim, seed 0\)"):
        runs + runs
    with pytest.raises(InvalidInput, match=r"^runs: Result is not accepted; expected .* a slice of them"):
        runs + runs[0]
    assert runs[:1] + runs[1:] == runs
    labelled = pfl.simulate("pfedsim", clients=5, label="again", **SHORT)
    assert [run.labels["method"] for run in runs + labelled] == ["pfedsim", "pfedsim", "again"]


def test_a_valid_but_probably_unintended_option_is_a_warning():
    with pytest.warns(UserWarning, match="theta diverges"):
        pfl.simulate("pfedme", clients=4, hyperparameters={"lam": 500.0}, **SHORT)


def test_an_accuracy_that_was_not_measured_is_one_clear_line(runs):
    with pytest.raises(InvalidInput, match="moment: adapted is not accepted; expected one of"):
        runs[0].metrics.reached(moment="adapted")
    with pytest.raises(InvalidInput, match=r"average: mean is not accepted.*did you mean 'client_mean'"):
        runs[0].metrics.reached("mean")


def test_progress_needs_no_accuracy_at_the_moment_that_is_reported(monkeypatch, capsys):
    monkeypatch.setattr("pfl.run.progress.SECONDS", 0.0)
    arguments = {**SHORT, "progress": True}
    pfl.simulate("fedavg", clients=4, execution=Execution(moments=("post_local",)), **arguments)
    first, *_, last = capsys.readouterr().err.splitlines()
    assert first == "fedavg: round 1 of 2"
    assert last.startswith("fedavg: round 2 of 2, accuracy")


def test_a_partition_of_other_data_is_refused():
    with pytest.raises(InvalidInput, match="a partition of digits"):
        pfl.simulate(dataset="digits", partition=make_clients(make_dataset(), [8, 8]))


def test_without_pandas_a_line_says_what_to_install(runs, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InvalidInput, match="pip install pandas"):
        runs.to_frame()


def test_warnings_are_about_the_network_that_runs():
    images = make_dataset((3, 32, 32), samples=80)
    with warnings.catch_warnings():
        warnings.simplefilter("error", OptionWarning)
        pfl.simulate("fedbn", images, clients=4, **SHORT)  # lenet5_bn has batch norm, cnn_digits none


def test_a_table_without_results_is_one_clear_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tables").mkdir()
    content = "title: T\ndataset: digits\nmodel: cnn_digits\nclients: 4\nseeds: [0]\nmethods: [fedavg]\n"
    (tmp_path / "tables/digits.yaml").write_text(f"{content}settings: {{dir: 'dirichlet:1.0'}}\n")
    with pytest.raises(InvalidInput, match=r"records are here; dvc exp run -S 'tables=\[digits\]' runs"):
        pfl.results("digits")
    with pytest.raises(InvalidInput, match="did you mean 'digits'"):
        pfl.results("digit")


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        pfl.simulat  # noqa: B018


@pytest.mark.parametrize(
    ("method", "name", "value"), [("pfedhn", "momentum", 0.5), ("fedfomo", "validation", 0.25)]
)
def test_an_option_that_shares_a_name_with_a_hyperparameter_sets_the_training_s(
    method, name, value, monkeypatch
):
    configs = []

    def simulated(given, *_):
        configs.extend(given)
        return [[]]

    monkeypatch.setattr("pfl.run.simulate.simulate_configs", simulated)
    usual = METHODS[method].__dataclass_fields__[name].default
    pfl.simulate(method, clients=4, **{name: value}, **SHORT)
    pfl.simulate(method, clients=4, hyperparameters={name: value}, **SHORT)
    pfl.simulate(method, clients=4, hyperparameters={name: value}, **{name: value / 2}, **SHORT)
    training = [getattr(config, name) for config in configs]
    own = [config.hyperparameters[name] for config in configs]
    assert training == [value, 0.0, value / 2]
    assert own == [usual, value, value]


@pytest.mark.parametrize(
    ("train", "test", "complaint"),
    [
        ([0, 1, -1], [2], "index -1 is not accepted; expected .* of integers from 0 to 239"),
        ([0, 1], [2, 240], "index 240 is not accepted; expected .* of integers from 0 to 239"),
        (
            [0, 1, 2],
            [2],
            "index 2 in both is not accepted; expected training and test samples that are disjoint",
        ),
    ],
)
def test_indices_of_a_partition_of_ones_own_are_checked(train, test, complaint, dataset, partition):
    lists = {
        "train": (*partition.train[:-1], np.array(train)),
        "test": (*partition.test[:-1], np.array(test)),
    }
    with pytest.raises(InvalidInput, match=rf"^partition: client 5: {complaint}"):
        pfl.simulate("fedavg", dataset, replace(partition, **lists), **SHORT)
