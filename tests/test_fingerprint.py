"""What names the code in a key: an edit that can move a number gives another name, and no other edit does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import dedent

import pytest

import pfl.run.fingerprint
from pfl.core.config import Config
from pfl.core.errors import InvalidInput
from pfl.methods import METHODS
from pfl.models import MODELS
from pfl.run.fingerprint import AcceptedCode, Components, components, name_of, question_of, unknown
from pfl.run.validation import validated
from pfl.testing import entering
from pfl.testing.entering import EditOutcome
from tests.command import python
from tests.repository import ROOT, replace_text
from tests.test_registry import SHALLOW, install

DIGITS = (1, 8, 8), 10
NAMES = ["engine", "kernels", *(f"method {m}" for m in METHODS), *(f"network {m}" for m in MODELS)]


def config(method: str = "fedavg", **changes: object) -> Config:
    return validated(Config(method=method, **changes))  # type: ignore[arg-type]


# ---- what an edit changes ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "pfl", folder / "pfl", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture(scope="module")
def before(copied: Path) -> dict[str, str]:
    return digests(copied)


@pytest.fixture
def tree(copied: Path, before: dict[str, str]) -> Iterator[Path]:
    """A copy of the package that a test may edit."""
    assert before
    kept = {path: path.read_bytes() for path in copied.rglob("*.*") if path.is_file()}
    yield copied / "pfl"
    for path in [path for path in copied.rglob("*.*") if path.is_file() and path not in kept]:
        path.unlink()
    for path, content in kept.items():
        if not path.exists() or path.read_bytes() != content:
            path.write_bytes(content)


def digests(folder: Path) -> dict[str, str]:
    """The digest of every component of the package in ``folder``."""
    tree = Components([folder])
    return {name: tree.digest(name) for name in NAMES}


def changed(before: dict[str, str], folder: Path) -> set[str]:
    after = digests(folder)
    return {name for name in NAMES if before[name] != after[name]}


EDITS = {
    "pooled accuracy as a mean over clients": (
        *("engine/evaluation.py", "float(100 * correct.sum() / tests.sum())", "float(accuracy.mean())"),
        "engine",
    ),
    "steps of the learning rate with ceil for floor": (
        *("core/config.py", "(past // self.lr_step)", "(-(-past // self.lr_step))"),
        "engine",
    ),
    "conv_block.cpp": ("kernels/conv_block.cpp", "value - vec{}", "value - vec{} + 1", "kernels"),
    "compiler flags": ("kernels/__init__.py", '"-O2"', '"-Ofast"', "kernels"),
    "a Triton kernel": ("kernels/triton_kernels.py", 'float("-inf")', 'float("-1")', "kernels"),
    "stacked.py": ("engine/stacked.py", "IMAGES = 8192", "IMAGES = 4096", "engine"),
    "the statistics that normalise images": ("data/statistics.py", "/ 255", "/ 256", "engine"),
    "what is read of the cache": ("data/stored.py", "tuple(meta[name])", "meta['std']", "engine"),
    "a split for validation": ("data/rule.py", "rng.permutation(", "np.arange(", "engine"),
    "a default, which is in no key": ("methods/fedprox.py", "hyper(1.0", "hyper(0.5", "method fedprox"),
    "a network": ("models/cnn_digits.py", "hidden=(32,)", "hidden=(48,)", "network cnn_digits"),
    "a helper of methods": (
        *("methods/_clusters.py", "* weights\n", "* weights**2\n"),
        "method clusterfl, method fesem",
    ),
    "another import of the same name": (
        "methods/fedprox.py",
        "from pfl.core.hyper import hyper",
        "from pfl.core.registry import Registry as hyper",
        "method fedprox",
    ),
    "an import inside a function": (
        *("models/cnn_digits.py", "_convnet import ConvNet", "_adapted import ConvNet"),
        "network cnn_digits",
    ),
}  # fmt: skip


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_that_can_move_numbers_changes_the_digest_of_its_component_alone(edit, tree, before):
    name, old, new, component = EDITS[edit]
    replace_text(tree / name, old, new)
    assert changed(before, tree.parent) == set(component.split(", "))


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("methods/fedprox.py", "class FedProx", "# a comment\n\n\nclass FedProx"),
        ("methods/fedprox.py", "with a proximal term", "with a term"),
        ("methods/fedprox.py", "batches[0]), self.mu)", "batches[0]), (\n            self.mu\n        ))"),
        ("methods/fedprox.py", "search=(1e-4, 3.0), log=True", "search=(1e-3, 2.0), high=5.0"),
        ("methods/fedprox.py", "weight of the proximal term", "weight"),
        ("methods/fedprox.py", 'family = "local objective"', 'family = "mixing"'),
        ("engine/traffic.py", "    from torch import Tensor\n", "    from torch import Tensor, device\n"),
        ("engine/groups.py", '"""Parameter groups', '"""Groups of parameters'),
        ("kernels/conv_block.cpp", "// A block of a convolutional network", "//  A  block"),
        ("kernels/conv_block.cpp", "using real = REAL;", "using   real = REAL;  // the type"),
        ("data/datasets/digits.py", "np.rint", "np.floor"),
        ("data/partitions/shards.py", '"""', '"""Other. '),
        ("run/sources.py", "import subprocess\n", "import subprocess\n\nNEW = 1\n"),
        ("core/version.py", 'VERSION = "', 'VERSION = "9.'),
        ("cli/run.py", "def ", "\n\ndef other():\n    return 1\n\n\ndef "),
    ],
)
def test_an_edit_that_moves_no_number_changes_no_digest(name, old, new, tree, before):
    file = tree / name
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    assert changed(before, tree.parent) == set()


def test_digests_are_the_same_without_triton_and_without_a_compiler(tmp_path):
    code = (
        "import json, sys\n"
        "sys.modules['triton'] = None\n"
        "from pfl.run.fingerprint import components\n"
        "print(json.dumps(components()))"
    )
    done = python("-c", code, env={"CXX": "", "PFL_CACHE": str(tmp_path)})
    assert json.loads(done.stdout) == components()


def test_the_engine_is_all_that_a_simulation_runs_and_no_component_of_its_own():
    engine = pfl.run.fingerprint.files_of("engine")
    reached = {str(path.relative_to(ROOT / "pfl")) for path in engine}
    assert reached >= {str(path.relative_to(ROOT / "pfl")) for path in (ROOT / "pfl/engine").glob("*.py")}
    assert reached >= {
        "core/config.py",
        "core/rng.py",
        "data/augmentation.py",
        "data/federation.py",
        "models/_network.py",
    }
    assert not any(f"methods/{name}.py" in reached for name in METHODS)
    assert not any(f"models/{name}.py" in reached for name in MODELS)
    kernels = {path.name for path in pfl.run.fingerprint.files_of("kernels")}
    assert kernels >= {"conv_block.cpp", "conv_block.py", "triton_kernels.py"}


# ---- names ---------------------------------------------------------------------------------------------


def test_the_tree_s_digests_are_accepted():
    assert unknown() == {}, "run `pfl behaviours`, and commit pfl/behaviours.json"


@pytest.fixture
def accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that accepts the tree as it is, in place of the simulator's own."""
    file = tmp_path / "behaviours.json"
    monkeypatch.setattr(pfl.run.fingerprint, "BUILTIN", file)
    question = question_of(config("fedprox"), *DIGITS)
    tree = {name: [digest] for name, digest in components().items()}
    AcceptedCode(components=tree, names={question: "fedprox-of-old"}).save(file)
    pfl.run.fingerprint.forget()
    yield file
    pfl.run.fingerprint.forget()


def names(*methods: str) -> list[str]:
    return [name_of(config(method), *DIGITS) for method in methods]


def edit(monkeypatch: pytest.MonkeyPatch, **digests: str) -> None:
    """Let components have other digests."""
    known = pfl.run.fingerprint.components()
    edited = known | {name.replace("_", " "): digest for name, digest in digests.items()}
    monkeypatch.setattr(Components, "digest", lambda _, name: edited[name])
    pfl.run.fingerprint.forget()


@pytest.mark.usefixtures("accepted")
def test_a_question_keeps_its_name_while_the_digests_of_its_components_are_accepted(monkeypatch):
    fedavg, fedprox = names("fedavg", "fedprox")
    assert fedprox == "fedprox-of-old"
    edit(monkeypatch, method_fedprox="other")
    assert names("fedavg")[0] == fedavg
    assert names("fedprox")[0] not in (fedprox, "")
    edit(monkeypatch, kernels="other")
    assert names("fedavg")[0].startswith("fedavg-")
    assert names("fedavg")[0] != fedavg


def enter(moved: list[str], file: Path) -> None:
    """Accept the current digests, where the results of these methods have moved."""
    entering.enter(AcceptedCode.load(file), [], EditOutcome(moved={name: [] for name in moved}), file)


def test_a_digest_that_is_entered_gives_the_old_names_back(accepted, monkeypatch):
    old = names("fedavg", "fedprox")
    edit(monkeypatch, engine="other", method_fedprox="another")
    assert set(unknown()) == {"engine", "method fedprox"}
    enter([], accepted)
    assert unknown() == {}
    assert names("fedavg", "fedprox") == old


def test_only_those_whose_numbers_moved_get_new_names(accepted, monkeypatch):
    fedavg, fedprox = names("fedavg", "fedprox")
    edit(monkeypatch, engine="other")
    enter(["method fedprox"], accepted)
    assert names("fedavg")[0] == fedavg
    assert names("fedprox")[0] != fedprox
    assert AcceptedCode.load(accepted).components["engine"] == ["other"]
    assert AcceptedCode.load(accepted).names == {}


def test_an_edit_that_moves_numbers_and_is_undone_is_unknown_again(accepted, monkeypatch):
    old = AcceptedCode.load(accepted).components["engine"]
    edit(monkeypatch, engine="other")
    enter(["method fedprox"], accepted)
    edit(monkeypatch, engine=old[0])
    assert set(unknown()) == {"engine"}


@pytest.mark.parametrize("content", ["", "[]", '{"components": 1}', '{"fedavg, lenet5": {}}'])
def test_a_file_of_another_form_is_one_clear_line(content, tmp_path):
    (tmp_path / "behaviours.json").write_text(content)
    with pytest.raises(InvalidInput, match=r"behaviours: .*behaviours.json is not accepted; expected a file"):
        AcceptedCode.load(tmp_path / "behaviours.json")


def test_trials_that_differ_in_numbers_alone_share_one_name():
    searched = config("fedprox", hyperparameters={"mu": 0.3}, lr=0.2, rounds=500, batch_size=64)
    assert question_of(searched, *DIGITS) == question_of(config("fedprox"), *DIGITS)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": "fedcac", "hyperparameters": {"collab": "none"}}, "collab=none"),
        ({"method": "fedcac", "hyperparameters": {"fling_zero_rule": True}}, "fling_zero_rule=True"),
        ({"method": "feddyn", "hyperparameters": {"clip": 0.0}}, "clip=0"),
        ({"method": "fesem", "hyperparameters": {"mu": 0.1}}, "mu=some"),
        ({"momentum": 0.9}, "momentum=some"),
        ({"validation": 0.2}, "validation=some"),
        ({"lr_schedule": "cosine"}, "lr_schedule=cosine"),
        ({"lr_schedule": "step", "lr_step": 50}, "lr_schedule=step"),
        ({"lr_warmup": 20}, "lr_warmup=some"),
        ({"patience": 5}, "patience=some"),
        ({"unseen": 0.2}, "unseen=some"),
        ({"bn_stats": "local"}, "bn_stats=local"),
        ({"observe": "similarities"}, "observe=similarities"),
        ({"metrics": ("ece", "auroc")}, "metric auroc, metric ece"),
    ],
)
def test_choices_and_what_is_switched_off_are_questions_of_their_own(changes, said):
    images = (1, 16, 16), 4
    usual = config(changes.get("method", "fedavg"), model="lenet5_bn")
    asked = config(model="lenet5_bn", **changes)
    assert question_of(asked, *images) == f"{question_of(usual, *images)}, {said}"


@pytest.mark.usefixtures("accepted")
def test_an_edit_of_a_metric_renames_the_trials_that_have_it(monkeypatch):
    def asked():
        return [
            name_of(config("fedavg", metrics=metrics), *DIGITS)
            for metrics in ((), ("ece",), ("auroc", "ece"))
        ]

    digests = {f"metric_{name}": Components().digest(f"metric {name}") for name in ("auroc", "ece")}
    edit(monkeypatch, **digests)
    before = asked()
    assert len(set(before)) == 3
    edit(monkeypatch, **{**digests, "metric_auroc": "other"})
    assert [old == new for old, new in zip(before, asked(), strict=True)] == [True, True, False]


# ---- plugins -------------------------------------------------------------------------------------------

METHOD = '''
    """Halfway: averages the head only."""

    from dataclasses import dataclass

    from pfl.engine.method import Method


    @dataclass(frozen=True)
    class Halfway(Method):
        def aggregate(self, server):
            from helping import group

            return {group(): server.average()}
'''
ASK = """
import json, sys
from pathlib import Path
from pfl.run import fingerprint
from pfl.core.config import Config
from pfl.run.validation import validated
if Path("builtin.json").exists():
    fingerprint.BUILTIN = Path("builtin.json")
if sys.argv[1] == "enter":
    from pfl.testing.entering import EditOutcome, enter
    file = Path("behaviours.json")
    enter(fingerprint.AcceptedCode.load(file), [], EditOutcome(), file)
if sys.argv[1] == "unknown":
    sys.exit(" ".join(fingerprint.unknown()))
pairs = [pair.split("/") for pair in sys.argv[2:]]
configs = [validated(Config(method=method, model=model)) for method, model in pairs]
print(json.dumps([fingerprint.name_of(config, (1, 8, 8), 10) for config in configs]))
"""


@pytest.fixture
def plugins(tmp_path: Path) -> Path:
    """A folder with a method and a network of two packages, and a module that the method imports."""
    method = install(tmp_path / "method", "pfl.methods", "halfway", METHOD)
    network = install(tmp_path / "network", "pfl.models", "shallow", SHALLOW)
    (network / "mine").rename(network / "other")
    for file in network.glob("*/entry_points.txt"):
        replace_text(file, "mine.", "other.")
    replace_text(network / "mine-1.0.dist-info/METADATA", "Name: mine", "Name: other")
    (network / "mine-1.0.dist-info").rename(network / "other-1.0.dist-info")
    (tmp_path / "helping.py").write_text('def group():\n    return "head"\n')
    (method / "mine/numbers.json").write_text("[1]")
    (tmp_path / "project").mkdir()
    return tmp_path


PAIRS = ["halfway/cnn_digits", "halfway/shallow", "fedavg/shallow", "fedavg/cnn_digits"]


def run_ask(plugins: Path, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    path = [ROOT, plugins / "method/site", plugins / "network/site", plugins]
    environment = {"PYTHONPATH": os.pathsep.join(map(str, path)), "PFL_CACHE": str(plugins / "cache")}
    return python("-c", ASK, *arguments, env=environment, cwd=plugins / "project", check=check)


def ask(plugins: Path, what: str = "ask", pairs: Sequence[str] = PAIRS) -> dict[str, str]:
    return dict(zip(pairs, json.loads(run_ask(plugins, what, *pairs).stdout), strict=True))


def test_an_edit_of_a_plugin_or_of_what_it_imports_or_reads_renames_what_uses_it(plugins):
    last = ask(plugins)

    def moved() -> set[str]:
        now = ask(plugins)
        different = {pair for pair in PAIRS if now[pair] != last[pair]}
        last.update(now)
        return different

    assert moved() == set()
    (plugins / "helping.py").write_text('def group():\n    return "extractor"\n')
    assert moved() == {"halfway/cnn_digits", "halfway/shallow"}
    (plugins / "method/site/mine/numbers.json").write_text("[2]")
    assert moved() == {"halfway/cnn_digits", "halfway/shallow"}
    replace_text(plugins / "network/site/other/shallow.py", "16", "24")
    replace_text(plugins / "method/site/mine/halfway.py", "averages the head only", "averages as it is told")
    assert moved() == {"halfway/shallow", "fedavg/shallow"}


def test_another_target_of_an_entry_point_renames_what_uses_it(plugins):
    mine = plugins / "method/site/mine"
    (mine / "other.py").write_text((mine / "halfway.py").read_text().replace("group()", '"extractor"'))
    before = ask(plugins)
    (entry_points,) = plugins.glob("method/site/*/entry_points.txt")
    replace_text(entry_points, "mine.halfway", "mine.other")
    after = ask(plugins)
    moved = {pair for pair in PAIRS if before[pair] != after[pair]}
    assert moved == {"halfway/cnn_digits", "halfway/shallow"}


def test_the_author_of_a_plugin_accepts_its_digests_in_the_project(plugins):
    entered = ask(plugins, "enter")
    replace_text(plugins / "network/site/other/shallow.py", "16", "24")
    assert ask(plugins)["fedavg/shallow"] != entered["fedavg/shallow"]
    assert ask(plugins, "enter") == entered


def test_the_first_acceptance_keeps_the_names_and_other_code_never_has_them(plugins):
    def names(what: str = "ask") -> dict[str, str]:
        return ask(plugins, what, PAIRS[:3])

    first = names()
    assert names("enter") == first
    replace_text(plugins / "network/site/other/shallow.py", "16", "24")
    replace_text(plugins / "method/site/mine/halfway.py", "group()", '"extractor"')
    (plugins / "project/behaviours.json").unlink()
    second = names()
    assert set(second.values()).isdisjoint(first.values())
    assert names("enter") == second


def test_code_that_another_file_accepts_does_not_have_the_names_of_the_project_s(plugins):
    first, file = ask(plugins, "enter"), plugins / "project/behaviours.json"
    file.rename(plugins / "network/site/behaviours.json")
    assert ask(plugins) == first
    replace_text(plugins / "network/site/other/shallow.py", "16", "24")
    assert ask(plugins, "enter")["halfway/shallow"] != first["halfway/shallow"]
    replace_text(plugins / "network/site/other/shallow.py", "24", "16")
    assert ask(plugins)["halfway/shallow"] != first["halfway/shallow"]


def test_the_file_of_another_plugin_accepts_nothing_for_a_method_that_it_has_not_tried(plugins):
    ask(plugins, "enter")
    entered = AcceptedCode.load(plugins / "project/behaviours.json")
    (plugins / "project/behaviours.json").unlink()
    before = ask(plugins)
    del entered.components["method halfway"]
    entered.components["engine"] = ["other"]
    entered.save(plugins / "network/site/behaviours.json")
    moved = {pair for pair, name in ask(plugins).items() if name != before[pair]}
    assert moved == {"fedavg/shallow"}


def test_a_built_in_method_is_judged_by_the_simulators_file_also_on_the_network_of_a_plugin(plugins):
    builtin = plugins / "project/builtin.json"
    accepted = AcceptedCode({name: [digest] for name, digest in components().items()})
    accepted.save(builtin)
    before = ask(plugins, "enter")

    def moved() -> set[str]:
        accepted.save(builtin)
        now = ask(plugins)
        return {pair for pair in PAIRS if now[pair] != before[pair]}

    listed = AcceptedCode.load(plugins / "project/behaviours.json").components
    assert set(listed) == {"engine", "kernels", "method halfway", "network shallow"}
    accepted.revisions["method fedavg"] = "other"
    assert moved() == {"fedavg/shallow", "fedavg/cnn_digits"}
    accepted.revisions = {}
    accepted.components["method fedavg"] = ["other"]
    assert moved() == {"fedavg/shallow", "fedavg/cnn_digits"}
    accepted.components["engine"] = ["other"]
    assert moved() == {"fedavg/shallow", "fedavg/cnn_digits"}


def test_an_engine_that_the_project_does_not_accept_is_unknown(plugins):
    def unknown() -> str:
        return run_ask(plugins, "unknown", check=False).stderr.strip()

    AcceptedCode({name: [digest] for name, digest in components().items()}).save(
        plugins / "project/builtin.json"
    )
    assert unknown().startswith("engine kernels ")
    ask(plugins, "enter")
    assert unknown() == ""
    entered = AcceptedCode.load(plugins / "project/behaviours.json")
    entered.components["engine"] = ["other"]
    entered.save(plugins / "project/behaviours.json")
    assert unknown() == "engine"


def test_each_file_in_a_project_s_folder_of_plugins_is_a_component_of_its_own(plugins):
    methods = plugins / "project/plugins/methods"
    methods.mkdir(parents=True)
    (methods / "halved.py").write_text(dedent(METHOD).replace("helping", "plugins._shared"))
    (methods.parent / "_shared.py").write_text("def group():\n    return 'head'\n")

    def name() -> str:
        return ask(plugins, pairs=["halved/cnn_digits"])["halved/cnn_digits"]

    before = name()
    (methods / "other.py").write_text(dedent(METHOD).replace("Halfway", "Other"))
    assert name() == before
    replace_text(methods.parent / "_shared.py", "head", "extractor")
    assert name() != before


# ---- the code that was imported ------------------------------------------------------------------------

RUN = """
import os, sys
from pathlib import Path
from pfl.run import fingerprint
from pfl.core.config import Config
from pfl.methods import METHODS
from pfl.run.validation import validated
METHODS["fedprox"]
print(fingerprint.name_of(validated(Config(method="fedprox")), (1, 8, 8), 10))
exec(sys.argv[1])
fingerprint.check_unchanged("fedprox", "cnn_digits")
"""
SAME_SIZE = "batches[0]), self.mu", "batches[1]), self.mu"


@pytest.fixture
def running(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "pfl", tmp_path / "pfl", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "pfl/methods/fedprox.py"


def run(file: Path, meanwhile: str = "") -> subprocess.CompletedProcess[str]:
    root = file.parents[2]
    environment = {"PYTHONPATH": str(root), "PFL_CACHE": str(root / "cache"), "PYTHONDONTWRITEBYTECODE": ""}
    return python("-c", RUN, meanwhile, env=environment, cwd=root, check=False)


def keeping_times(file: Path) -> str:
    """A program that edits ``file`` as ``cp -p`` does: of the same size, with the old times."""
    return (
        f"p = Path({str(file)!r}); s = p.stat(); p.write_text(p.read_text().replace(*{SAME_SIZE!r})); "
        "os.utime(p, ns=(s.st_atime_ns, s.st_mtime_ns))"
    )


def test_code_that_was_edited_after_it_was_imported_gets_no_record(running):
    assert run(running).returncode == 0
    done = run(running, keeping_times(running))
    assert done.returncode == 1
    assert f"source changed during the run: {running}; run it again" in done.stderr.splitlines()[-1]


def test_a_file_that_is_touched_or_linked_is_no_edit(running):
    file, other = str(running), str(running.parents[2] / "linked")
    done = run(running, f"os.link({file!r}, {other!r}); Path({file!r}).touch()")
    assert done.returncode == 0, done.stderr


def test_a_compiled_file_of_other_code_with_the_same_times_is_found_and_removed(running):
    old = run(running).stdout
    exec(keeping_times(running), {"Path": Path, "os": os})
    refused = run(running)
    assert refused.returncode == 1
    assert refused.stderr.splitlines()[-1].endswith(f"source changed during the run: {running}; run it again")
    done = run(running)
    assert (done.returncode, done.stdout != old) == (0, True)
