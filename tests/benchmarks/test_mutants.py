"""Mutants of the code, each with one edit."""

from __future__ import annotations

import ast
import json
import shutil

import pytest

from benchmarks import mutants
from benchmarks.mutants import ROOT, SCOPE, sample
from tests.command import python

CODE = '''"""A text with 1 < 2."""
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import math


def f(x: int = 3) -> bool:
    x += 1
    if not x > 2 or True:
        log.warning("above %d", 2)
    server.count("head", down=x)
    server.state["é"] = x - 0.5
    return x == 7


a: float = hyper(1.0, "weight", low=0.0, search=(0.1, 2.0))
'''


def edits(code: str, kind: str) -> list[tuple[str, str]]:
    """What is replaced, and by what."""
    of_kind = [edit for edit in mutants._python(code) if edit[0] == kind]
    return [(code.encode()[first:last].decode(), after) for _, first, last, after in of_kind]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("comparison", [("x > 2", "(x >= 2)"), ("x == 7", "(x != 7)")]),
        (
            "constant",
            [
                ("3", "4"),
                ("1", "2"),
                ("True", "False"),
                ("2", "3"),
                ("0.5", "1.0"),
                ("7", "8"),
                ("1.0", "2.0"),
            ],
        ),
        (
            "operator",
            [
                ("not x > 2 or True", "(not x > 2 and True)"),
                ("not x > 2", "(x > 2)"),
                ("x - 0.5", "(x + 0.5)"),
            ],
        ),
    ],
)
def test_what_can_be_a_number_is_edited(kind, expected):
    assert sorted(edits(CODE, kind)) == sorted(expected)


def test_statements_are_left_out():
    starts = [before.split("\n")[0] for before, after in edits(CODE, "statement left out") if after == "pass"]
    assert starts == [
        "x += 1",
        "if not x > 2 or True:",
        'server.count("head", down=x)',
        'server.state["é"] = x - 0.5',
    ]


def test_cpp_is_edited_outside_of_comments_and_templates():
    code = "template <int N = 4>\n#define A 2\nfor (int i = 0; i < n; ++i) x[i] += 2 * y; // i < 3\n"
    assert {(kind, after) for kind, _, _, after in mutants._cpp(code)} == {
        ("comparison", " <= "),
        ("constant", "1"),
        ("constant", "3"),
        ("operator", " + "),
        ("operator", " -= "),
    }


def test_the_sample_is_the_same_for_a_seed_and_covers_every_area():
    drawn = sample(3)
    assert drawn == sample(3) != sample(4)
    assert len(set(drawn)) == sum(count for _, count in SCOPE.values()) >= 100
    assert {mutant.area for mutant in drawn} == set(SCOPE)


def test_a_mutant_is_code_that_differs_in_one_place(tmp_path):
    for mutant in [mutant for mutant in sample(0) if mutant.file.endswith(".py")][:20]:
        copy = tmp_path / mutant.file
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / mutant.file, copy)
        mutant.apply(tmp_path)
        assert ast.dump(ast.parse(copy.read_text())) != ast.dump(ast.parse((ROOT / mutant.file).read_text()))


STUDY = """
import json, sys
from pathlib import Path
from benchmarks import mutants

mutants._import_libraries()
study = mutants.MutantStudy(Path(sys.argv[1]))
name = "pfl/methods/fedprox.py"
source = (mutants.ROOT / name).read_bytes()
for before, after in json.loads(sys.argv[2]):
    mutant = mutants.Mutant("methods", name, 1, source.index(before.encode()), "", before, after)
    print(study.examine(mutant)["outcome"])
"""


@pytest.mark.slow
def test_an_edit_that_moves_a_number_is_seen_and_a_flag_of_a_dataclass_is_not(tmp_path):
    edits = [
        ("batches[0]), self.mu)", "batches[0]), self.mu / 3)"),
        ("frozen=True", "frozen=1"),
        ("client.pulled(", "client.nothing("),
    ]
    # In a process of its own, as this one has imported the simulator as it is.
    done = python("-c", STUDY, tmp_path, json.dumps(edits), cwd=ROOT)
    assert done.stdout.splitlines() == ["seen", "moves no number", "raises"]
