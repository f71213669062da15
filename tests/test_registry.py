"""Components are found by file, and by entry point of somebody else's package."""

import re
import subprocess
import textwrap
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from pfl.client_metrics import CLIENT_METRICS
from pfl.core import registry
from pfl.core.errors import InvalidInput
from pfl.data.datasets import DATASETS
from pfl.data.partitions import PARTITIONS
from pfl.methods import METHODS
from pfl.models import MODELS, weights_of
from tests.command import pfl, python


def test_a_file_is_a_component():
    assert METHODS["fedper"].__name__ == "FedPer"
    assert "_network" not in MODELS


def test_an_entry_point_that_does_not_load_is_one_clear_line(monkeypatch):
    point = EntryPoint("broken", "nowhere.at_all", "pfl.methods")
    monkeypatch.setitem(METHODS._points, "broken", point)
    with pytest.raises(
        InvalidInput, match=r"^method: cannot load plugin broken: nowhere.at_all \(ModuleNotFoundError"
    ):
        METHODS["broken"]


def test_the_printed_name_is_the_summary_up_to_the_colon():
    titles = [METHODS.title(name) for name in ("pfedsim", "fedap", "fedavg_async", "local")]
    assert titles == ["pFedSim", "f-FedAP", "FedAvg (async)", "Local"]
    assert METHODS.title("no_such_method") == "no_such_method"


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_printed_name(name):
    assert METHODS.title(name) != name
    assert len(METHODS.title(name)) < 25


def test_a_file_in_another_encoding_is_named(tmp_path):
    folder = tmp_path / "plugins" / "methods"
    folder.mkdir(parents=True)
    (folder / "mine.py").write_bytes("x = 3".encode("utf-16"))
    done = run_in(tmp_path, "--method", "mine")
    assert "cannot load plugin mine: plugins.methods.mine (SyntaxError: " in done.stderr


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("def f(:", r"mine.py:1 \(SyntaxError: invalid syntax"),
        ("\nimport nothing_there", r"mine.py:2 \(ModuleNotFoundError: No module named 'nothing_there'\)"),
        ("x = 3", r"mine \(ValueError: it defines 0 subclasses of Method instead of one\)"),
    ],
)
def test_a_file_that_does_not_load_is_one_line_with_its_place_and_hides_no_other(tmp_path, source, reason):
    folder = tmp_path / "plugins" / "methods"
    folder.mkdir(parents=True)
    (folder / "mine.py").write_text(source)
    done = run_in(tmp_path, "--method", "mine")
    assert re.search(f"^pfl: error: method: cannot load plugin mine: .*{reason}", done.stderr)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    listed = python("-m", "pfl", "methods", cwd=tmp_path)
    assert "\nfedavg " in listed.stdout
    assert re.search(f"^pfl: warning: left out: method: cannot load plugin mine: .*{reason}", listed.stderr)


@pytest.mark.parametrize("command", ["models", "datasets", "metrics"])
def test_a_list_says_which_plugins_do_not_load(command, monkeypatch, tmp_path):
    for package, source in {
        "failing": "import nothing_there",
        "leaving": "raise SystemExit('no licence')",
    }.items():
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    components = {"models": MODELS, "datasets": DATASETS, "metrics": CLIENT_METRICS}[command]
    for package in ("failing", "leaving"):
        point = EntryPoint(f"a_{package}", f"{package}.mine", components.package)
        monkeypatch.setitem(components._points, f"a_{package}", point)
    done = pfl(command)
    assert (
        "a_failing            (does not load, ModuleNotFoundError, No module named 'nothing_there')\n"
        in done.stdout
    )
    assert "a_leaving            (does not load, SystemExit, no licence)\n" in done.stdout
    assert done.stdout.count("\n") == len(components)


def test_a_rule_that_does_not_load_hides_no_other(monkeypatch):
    monkeypatch.setitem(
        PARTITIONS._points, "broken", EntryPoint("broken", "nowhere.at_all", "pfl.data.partitions")
    )
    done = pfl("partitions")
    assert done.stderr.startswith(
        "pfl: warning: left out: partition: cannot load plugin broken: nowhere.at_all "
    )
    assert "\ndirichlet:ALPHA " in done.stdout
    assert done.stderr.count("\n") == 1


def test_a_file_of_a_project_whose_name_cannot_be_imported_is_one_clear_line(tmp_path):
    (tmp_path / "plugins/methods").mkdir(parents=True)
    (tmp_path / "plugins/methods/my-method.py").touch()
    done = run_in(tmp_path, "--method", "fedavg")
    assert done.returncode == 2
    assert done.stderr == (
        "pfl: error: plugins/methods: my-method.py is not accepted; "
        "expected a name of letters, digits and underscores, such as my_method.py\n"
    )


def test_a_plugin_that_ends_the_process_when_it_is_imported_is_one_clear_line(tmp_path):
    done = run_with(install(tmp_path, "pfl.methods", "quits", "raise SystemExit(3)"), "--method", "quits")
    assert done.returncode == 2
    assert done.stderr.startswith("pfl: error: method: cannot load plugin quits: ")
    assert "SystemExit: 3" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_plugin_that_ends_the_process_while_it_runs_is_one_clear_line(tmp_path):
    source = '''
        """Ends the process."""

        import sys

        from pfl import Method


        class Leaves(Method):
            def dispatch(self, server):
                sys.exit(3)
    '''
    done = run_with(install(tmp_path, "pfl.methods", "leaves", source), "--method", "leaves")
    assert done.returncode == 2
    assert done.stderr == "pfl: error: a plugin or a library has called sys.exit(3)\n"


def test_a_plugin_with_the_name_of_a_built_in_is_one_clear_line_when_it_is_used(tmp_path):
    source = '''
        """Another FedPer."""

        from pfl import Method


        class FedPer(Method):
            pass
    '''
    package = install(tmp_path, "pfl.methods", "fedper", source)
    assert run_with(package, "--method", "fedavg").returncode == 0
    done = run_with(package, "--method", "fedper")
    assert done.returncode == 2
    assert done.stderr == (
        "pfl: error: method: fedper is not accepted; expected another name in the package mine "
        "(mine.fedper): a built-in method has it\n"
    )


def test_the_folder_of_a_plugin_may_have_a_name_that_begins_with_pfl(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "__file__", str(tmp_path / "pfl/core/registry.py"))
    monkeypatch.setitem(METHODS._points, "mine", EntryPoint("mine", "mine_of_pfl", "pfl.methods"))
    monkeypatch.syspath_prepend(tmp_path / "pfl_mine")
    (tmp_path / "pfl_mine").mkdir()
    (tmp_path / "pfl_mine/mine_of_pfl.py").write_text("\n1 / 0")
    with pytest.raises(InvalidInput, match=r"plugin mine: .*/pfl_mine/mine_of_pfl.py:2 \(ZeroDivisionError"):
        METHODS["mine"]


def test_the_weights_of_a_plugin_and_of_an_object_are_those_that_their_module_names(tmp_path, monkeypatch):
    source = (
        "from pathlib import Path\ndef small(*_): pass\n"
        "def weights_file(): return Path(__file__).with_name('net-0123abcd.pt')\n"
    )
    (tmp_path / "net-0123abcd.pt").touch()
    (tmp_path / "of_weights.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(MODELS._points, "small", EntryPoint("small", "of_weights:small", "pfl.models"))
    MODELS.add("object", MODELS["small"])
    MODELS.add("without", lambda *_: None)
    named = [weights_of(name) for name in ("small", "object", "without")]
    assert named == ["net-0123abcd.pt", "net-0123abcd.pt", None]


def test_other_weights_in_a_file_of_the_same_name_are_told_apart(tmp_path, monkeypatch):
    file, names = tmp_path / "w.pt", []
    monkeypatch.setattr("pfl.models.mobilenet_v2.weights_file", lambda: file)
    for content in ("1", "2", "1"):
        file.write_text(content)
        names.append(weights_of("mobilenet_v2"))
    assert names[0] == names[2] != names[1]
    assert names[0].startswith("w.pt ")


@pytest.mark.parametrize(("encoding", "first"), [("utf-8-sig", ""), ("latin-1", "# coding: latin-1\n")])
def test_a_summary_is_read_in_the_encoding_of_its_file(tmp_path, encoding, first):
    file = tmp_path / "mine.py"
    file.write_text(f'{first}"""Für alle."""\n', encoding=encoding)
    assert registry._declared(str(file))[0] == "Für alle."


def test_a_file_in_the_folder_of_plugins_of_a_project_is_a_component(tmp_path):
    source = '"""Mine."""\n\nfrom pfl import Method\n\n\nclass Mine(Method):\n    pass\n'
    folder = tmp_path / "plugins" / "methods"
    folder.mkdir(parents=True)
    (folder / "mine.py").write_text(source)
    (folder / "_shared.py").write_text("raise AssertionError('no component')")
    done = run_in(tmp_path, "--method", "mine")
    assert done.returncode == 0, done.stderr
    assert "mine on digits" in done.stdout
    listed = python("-m", "pfl", "methods", cwd=tmp_path)
    assert "mine " in listed.stdout
    assert "_shared" not in listed.stdout


def install(folder: Path, group: str, name: str, source: str) -> Path:
    """Lay out a tiny installed package whose module ``name`` is an entry point of ``group``."""
    package = folder / "site"
    info = package / "mine-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = mine.{name}\n")
    (package / "mine").mkdir()
    (package / "mine" / "__init__.py").touch()
    (package / "mine" / f"{name}.py").write_text(textwrap.dedent(source))
    return package


def run_with(package: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A short `pfl run` that sees ``package``."""
    return short_run(*arguments, env={"PYTHONPATH": str(package)})


def run_in(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A short `pfl run` in the folder of a project."""
    return short_run(*arguments, cwd=project)


def short_run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    short = ("--rounds", "2", "--epochs", "1", "--clients", "4")
    return python("-m", "pfl", "run", *short, *arguments, check=False, **options)


def test_a_method_of_another_package_runs(tmp_path):
    source = '''
        """Halfway: averages the head only."""

        from dataclasses import dataclass

        from pfl import Method


        @dataclass(frozen=True)
        class Halfway(Method):
            def aggregate(self, server):
                return {"head": server.average()}
    '''
    done = run_with(install(tmp_path, "pfl.methods", "halfway", source), "--method", "halfway")
    assert done.returncode == 0, done.stderr
    assert "halfway on digits" in done.stdout


SHALLOW = '''
    """Shallow: one hidden layer."""


    def shallow(shape, classes):
        from torch import nn

        from pfl import Network

        channels, height, width = shape
        extractor = nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, 16), nn.ReLU())
        return Network(extractor, nn.Linear(16, classes))
'''


def test_a_network_of_another_package_runs_in_both_backends(tmp_path):
    package = install(tmp_path, "pfl.models", "shallow", SHALLOW)
    for backend in ("loop", "stacked"):
        done = run_with(package, "--model", "shallow", "--backend", backend)
        assert done.returncode == 0, done.stderr
        assert "shallow" in done.stdout


def test_a_plugin_may_add_a_metric(tmp_path):
    source = '''
        """Share of samples whose label is among the two highest scores."""


        def top2(scores, labels):
            return (scores.argsort(1)[:, -2:] == labels[:, None]).any(1).mean()
    '''
    package = install(tmp_path, "pfl.client_metrics", "top2", source)
    options = ["--metrics", "top2", "--checkpoint", str(tmp_path / "checkpoint")]  # which names the code
    done = run_with(package, *options, "--rounds", "1", "--epochs", "1")
    assert done.returncode == 0, done.stderr
    assert "seed 0: top2 0." in done.stdout
