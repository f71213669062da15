"""What `pfl behaviours` enters: old names where the battery agrees, new ones where it does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import typer

from pfl.cli import behaviours as command
from pfl.core.errors import InvalidInput
from pfl.core.registry import Registry
from pfl.run import fingerprint
from pfl.run.fingerprint import AcceptedCode, Values
from pfl.testing import entering
from pfl.testing.battery import Answer, Difference
from pfl.testing.cases import Case
from pfl.testing.entering import enter, examine
from tests.refusal import refusal

BASE = {"model": "cnn_digits"}
PROX = Case("fedprox, defaults", "method fedprox", {**BASE, "method": "fedprox"})
LENET = Case("lenet5", "network lenet5", {"model": "lenet5"})
ON_LENET = Case("fedprox, on a LeNet", "method fedprox", {"model": "lenet5", "method": "fedprox"})
STEP = Case("step", None, BASE)
CASES = [PROX, LENET, ON_LENET, STEP]
DIGESTS = {
    "engine": "e2",
    "kernels": "k1",
    "method fedprox": "p2",
    "method fedavg": "a1",
    "network lenet5": "l2",
    "network cnn_digits": "c1",
}
NAMES = {
    "fedavg, cnn_digits, 1x8x8, 10 classes": "fedavg-1",
    "fedprox, cnn_digits, 1x8x8, 10 classes": "fedprox-1",
    "fedprox, lenet5, 3x32x32, 10 classes": "fedprox-2",
}


def accepted(**components: str) -> AcceptedCode:
    """What was accepted before an edit: every component's digest of today, or another one."""
    digests = {name: [components.get(name.replace(" ", "_"), digest)] for name, digest in DIGESTS.items()}
    return AcceptedCode(digests, {}, dict(NAMES), {case.key: {"train loss": [1.0]} for case in CASES})


class Battery:
    """Stands for the simulations: each case computes what is recorded, unless it is among ``values``."""

    def __init__(self) -> None:
        self.values: dict[str, Values] = {}
        self.disagreeing: list[str] = []
        self.ran: list[str] = []

    def answers(self, chosen: Sequence[Case], recorded: dict[str, Values]) -> list[Answer]:
        self.ran += [case.name for case in chosen]
        return [self._answer(case, recorded.get(case.key)) for case in chosen]

    def _answer(self, case: Case, known: Values | None) -> Answer:
        values = self.values.get(case.name, {"train loss": [1.0]})
        moved = None if known is None else [Difference("train loss", "loop", 1.0, 2.0)] * (values != known)
        ways = [Difference("train loss", "stacked", 1.0, 2.0)] * (case.name in self.disagreeing)
        return Answer(case, values, moved, ways, moved != [])


@pytest.fixture
def battery(monkeypatch: pytest.MonkeyPatch) -> Battery:
    battery = Battery()
    monkeypatch.setattr(entering, "answers", battery.answers)
    monkeypatch.setattr("pfl.testing.battery.METHODS", Registry("method", "pfl.methods"))
    monkeypatch.setattr("pfl.testing.battery.METHODS._files", frozenset({"fedavg", "fedprox"}), raising=False)
    monkeypatch.setattr(fingerprint, "components", lambda *_: dict(DIGESTS))
    return battery


@pytest.fixture
def entered(tmp_path: Path) -> Callable[[AcceptedCode], AcceptedCode]:
    """What the file lists after the edit has been entered."""

    def enter_in(before: AcceptedCode) -> AcceptedCode:
        file = tmp_path / "behaviours.json"
        before.save(file)
        enter(before, CASES, examine(before, CASES, before.unknown(DIGESTS)), file)
        return AcceptedCode.load(file)

    return enter_in


def test_where_all_agrees_every_name_is_kept(battery, entered):
    after = entered(accepted(engine="e1"))
    assert after.names == NAMES
    assert after.revisions == {}
    assert after.components["engine"] == ["e1", "e2"]
    assert set(battery.ran) == {case.name for case in CASES}


def test_only_what_was_edited_is_run(battery, entered):
    entered(accepted(method_fedprox="p1"))
    assert battery.ran == [PROX.name, ON_LENET.name]


def test_what_has_moved_has_new_names_and_all_else_keeps_its_own(battery, entered):
    battery.values[PROX.name] = {"train loss": [2.0]}
    after = entered(accepted(engine="e1"))
    assert list(after.names) == ["fedavg, cnn_digits, 1x8x8, 10 classes"]
    assert list(after.revisions) == ["method fedprox"]
    assert after.battery[PROX.key] == {"train loss": [2.0]}
    assert after.components["engine"] == ["e2"]


def test_a_number_of_the_engine_moves_every_method(battery, entered):
    battery.values[STEP.name] = {"train loss": [2.0]}
    after = entered(accepted(engine="e1"))
    assert after.names == {}
    assert "method fedavg" in after.revisions


@pytest.mark.parametrize("other", ["method_fedavg", "network_cnn_digits"])
def test_a_number_of_the_engine_moves_every_method_also_if_another_component_is_edited(
    other, battery, entered
):
    battery.values[STEP.name] = {"train loss": [2.0]}
    after = entered(accepted(engine="e1", **{other: "x1"}))
    assert set(after.revisions) == {"method fedavg", "method fedprox"}


def test_the_engine_and_a_component_that_both_may_have_moved_a_number_are_refused(battery, entered):
    battery.values = {case.name: {"train loss": [2.0]} for case in (LENET, ON_LENET)}
    said = refusal(entered, accepted(engine="e1", network_lenet5="l1"))
    assert said == (
        "edits: the results of 'fedprox, on a LeNet' may have changed by that of the engine or of network "
        "lenet5; accept one of the two edits first"
    )
    battery.values.pop(LENET.name)
    assert list(entered(accepted(engine="e1", network_lenet5="l1")).revisions) == ["method fedprox"]


def test_a_network_that_moves_is_recorded_again_in_the_cases_of_methods(battery, entered):
    battery.values = {case.name: {"train loss": [2.0]} for case in (LENET, ON_LENET)}
    after = entered(accepted(network_lenet5="l1"))
    assert battery.ran == [LENET.name, ON_LENET.name]
    assert after.battery[ON_LENET.key] == {"train loss": [2.0]}
    assert list(after.revisions) == ["network lenet5"]
    assert list(after.names) == [question for question in NAMES if "lenet5" not in question]


@pytest.mark.usefixtures("battery")
def test_a_case_that_an_edited_engine_brings_proves_nothing_for_a_plugin(monkeypatch, entered):
    before = accepted(engine="e1")
    del before.battery[ON_LENET.key]
    assert not examine(before, CASES, ["engine"]).moved
    monkeypatch.setattr(fingerprint, "is_plugin", lambda component: component == "method fedprox")
    assert not examine(before, CASES, ["network lenet5"]).moved
    assert list(entered(before).revisions) == ["method fedprox"]
    del before.components["method fedprox"]
    assert not examine(before, CASES, ["engine", "method fedprox"]).moved


@pytest.mark.usefixtures("battery")
def test_a_component_that_is_entered_first_has_the_revision_of_its_code(entered):
    before = accepted()
    for name in ("method fedprox", "network lenet5"):
        del before.components[name]
    before.battery = {STEP.key: before.battery[STEP.key]}
    after = entered(before)
    assert list(after.names) == ["fedavg, cnn_digits, 1x8x8, 10 classes"]
    assert after.revisions == {
        name: fingerprint.revision(name, DIGESTS) for name in ("method fedprox", "network lenet5")
    }
    assert after.components["engine"] == DIGESTS["engine"].split()


@pytest.mark.usefixtures("battery")
def test_a_component_that_is_gone_is_no_longer_listed(entered):
    before = accepted()
    before.components["method gone"] = ["g1"]
    assert "method gone" not in entered(before).components


@pytest.mark.usefixtures("battery")
def test_results_of_other_cases_are_forgotten_and_new_ones_recorded(entered):
    before = accepted()
    before.battery = {"a case of old #123456": {"train loss": [3.0]}}
    after = entered(before)
    assert set(after.battery) == {case.key for case in CASES}
    assert after.names == NAMES
    assert after.revisions == {}


@pytest.mark.usefixtures("battery")
def test_a_case_that_edited_code_makes_another_question_has_moved(entered):
    before = accepted(method_fedprox="p1")
    before.battery["fedprox, defaults #123456"] = before.battery.pop(PROX.key)
    assert list(entered(before).revisions) == ["method fedprox"]


def test_ways_that_disagree_are_a_mistake(battery):
    battery.disagreeing = [STEP.name]
    before = accepted(engine="e1")
    outcome = examine(before, CASES, before.unknown(DIGESTS))
    assert [answer.case.name for answer in outcome.mistakes] == [STEP.name]


@pytest.mark.usefixtures("battery")
def test_a_further_hyperparameter_does_not_rename_a_method():
    older = replace(PROX, options={**PROX.options, "hyperparameters": {"mu": 0.6}})
    newer = replace(PROX, options={**PROX.options, "hyperparameters": {"mu": 0.6, "nu": 0.1}})
    before = accepted(method_fedprox="p1")
    before.battery = {older.key: {"train loss": [1.0]}}
    outcome = examine(before, [newer], before.unknown(DIGESTS))
    assert [answer.moved for answer in outcome.answers] == [[]]
    assert not outcome.moved


def test_a_case_that_raises_now_is_a_mistake_and_one_of_a_new_plugin_proves_nothing(battery):
    battery.values[PROX.name] = {"error": "ValueError: fewer than ten clients"}
    before = accepted(method_fedprox="p1")
    outcome = examine(before, CASES, before.unknown(DIGESTS))
    assert [answer.case.name for answer in outcome.mistakes] == [PROX.name]
    del before.battery[PROX.key]
    outcome = examine(before, CASES, before.unknown(DIGESTS))
    assert not outcome.mistakes
    assert list(outcome.moved) == ["method fedprox"]


@pytest.mark.usefixtures("battery")
def test_edited_kernels_that_do_not_run_here_are_refused(monkeypatch):
    monkeypatch.setattr(entering, "kernels_are_usable", lambda: False)
    with pytest.raises(InvalidInput, match="a machine with a C\\+\\+ compiler"):
        examine(accepted(), CASES, ["kernels"])


@pytest.mark.usefixtures("battery")
def test_kernels_that_a_new_file_of_a_project_does_not_list_are_not_edited(monkeypatch, tmp_path):
    monkeypatch.setattr(entering, "kernels_are_usable", lambda: False)
    monkeypatch.setattr(fingerprint, "BUILTIN", tmp_path / "behaviours.json")
    accepted().save(fingerprint.BUILTIN)
    outcome = examine(AcceptedCode(), [PROX], DIGESTS)
    assert [answer.case for answer in outcome.answers] == [PROX]


def test_cases_of_plugins_are_recorded_in_the_users_own_file(monkeypatch, tmp_path):
    project, package = tmp_path / "project.json", tmp_path / "package.json"
    monkeypatch.setattr(entering, "cases", lambda: [PROX, STEP])
    monkeypatch.setattr(fingerprint, "is_plugin", lambda component: component == "method fedprox")
    monkeypatch.setattr(fingerprint, "project_files", lambda: [project, package])
    assert entering.files() == {fingerprint.BUILTIN: [STEP], package: [PROX]}
    project.touch()
    assert entering.files() == {fingerprint.BUILTIN: [STEP], project: [PROX]}


# ---- the command ---------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the command, after an edit of FedProx."""
    path = tmp_path / "behaviours.json"
    monkeypatch.setattr(fingerprint, "BUILTIN", path)
    monkeypatch.setattr(entering, "files", lambda: {path: CASES})
    monkeypatch.setattr(fingerprint, "unknown", lambda: AcceptedCode.load(path).unknown(DIGESTS))
    accepted(method_fedprox="p1").save(path)
    return path


def call(capsys: pytest.CaptureFixture[str], check: bool = False) -> tuple[int, str]:
    with pytest.raises(typer.Exit) as exit:
        command.behaviours(check)
    return exit.value.exit_code, capsys.readouterr().out


@pytest.mark.usefixtures("battery", "file")
def test_the_command_says_that_an_edit_is_harmless_and_enters_it(capsys):
    assert call(capsys, check=True)[0] == 1
    status, text = call(capsys)
    assert status == 0
    assert "method fedprox: agrees" in text
    assert call(capsys, check=True) == (0, "")
    assert call(capsys)[1] == "all code is in behaviours.json\n"


@pytest.mark.usefixtures("file")
def test_the_command_says_what_has_moved(battery, capsys):
    battery.values[PROX.name] = {"train loss": [2.0]}
    status, text = call(capsys)
    assert status == 0
    assert "method fedprox: results changed" in text
    assert "fedprox, defaults\n    train loss (loop): 1.0 -> 2.0" in text


def test_the_command_enters_no_mistake(file, battery, capsys):
    battery.disagreeing = [PROX.name]
    before = file.read_text()
    status, text = call(capsys)
    assert status == 1
    assert "train loss (stacked): 1.0 -> 2.0" in text
    assert file.read_text() == before
