"""A digest of code follows from what the code does, and from nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pfl.core.digests import Code, digest_of_modules
from tests.repository import replace_text

SAMPLE = '''
"""A module with what versions of Python parse or print in different ways."""

from __future__ import annotations

import numpy as np
from helping import group, other

LARGE, SMALL, TEXT = 10**40, -1.5e-300, "a \\u00e9 \\N{SNOWMAN} \\\\"
BYTES = b"\\x00a", ..., None, True, 2j


@property
def described(value, /, *values, width: int = 8, **names):
    """A docstring."""
    match value:
        case [first, *rest] if (count := len(rest)) > 1:
            return f"{first!r:>{width}}" f" of {count=} " "and" f"{rest[0]:.{width}f}{{}}"
        case {"a": int(), **more} | more:
            return f"{np.random.default_rng(0)}{group(more)}"
        case _:
            pass


class Kept(dict, metaclass=type):
    """A docstring."""

    field: int = other(1)
    """A docstring."""

    async def run(self):
        async with self as inside, inside:
            return [x async for x in inside if x] or {**self}
        try:
            return lambda *a, b=1: (yield a @ b)
        except* ValueError as error:
            raise error from None
'''
HELPING = "def group(x):\n    return x\n\n\ndef other(x):\n    return -x\n"
RECORDED = "155f0068dbd04fbe"
"""As every version of Python has it that is supported."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sample.py").write_text(SAMPLE, encoding="utf-8")
    (tmp_path / "helping.py").write_text(HELPING)
    return tmp_path


def digest(folder: Path, module: str = "sample") -> str:
    code = Code(roots=[folder])
    return code.digest(code.reached([module]))


def edited(folder: Path, old: str, new: str, file: str = "sample.py") -> str:
    replace_text(folder / file, old, new)
    return digest(folder)


def test_a_digest_is_the_same_on_every_version_of_python(folder):
    assert digest(folder) == RECORDED


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("A docstring.", "Another docstring."),
        ("10**40", "10 ** 40"),
        ("\\u00e9", "\u00e9"),
        ("-1.5e-300", "-15e-301"),
        ('" "and" f"', "and"),
        ("import group, other", "import other as other, group"),
        ("        case _:\n            pass\n", "        case _:\n            pass\n            ...\n"),
    ],
)
def test_an_edit_without_a_meaning_changes_no_digest(old, new, folder):
    before = digest(folder)
    assert edited(folder, old, new) == before


def test_how_a_name_is_imported_does_not_count(folder):
    before = digest(folder)
    edited(folder, "import numpy as np", "from numpy import random")
    assert edited(folder, "np.random.", "random.") == before
    edited(folder, "import group, other", "import group as g, other")
    assert edited(folder, "{group(", "{g(") == before


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("10**40", "10**41"),
        ("True", "1"),
        ("2j", "2.0"),
        ("None, True", "True, None"),
        ("width: int = 8", "width: int = 9"),
        ("@property\n", ""),
        ("count := len", "count := sum"),
        ("{first!r", "{first!s"),
        ("{{}}", "{{}}."),
        ("case {", "case 1 | {"),
        ("import group, other", "import other as group, group as other"),
        ("import group, other", "import *  # which may hide any other name"),
        ("np.random.default_rng", "np.random.seed"),
        ("import numpy as np", "import scipy as np"),
        ("except* ", "except "),
        ("field: int", "field: float"),
    ],
)
def test_an_edit_with_a_meaning_changes_the_digest(old, new, folder):
    before = digest(folder)
    assert edited(folder, old, new) != before


def test_an_edit_of_what_is_imported_changes_the_digest(folder):
    before = digest(folder)
    assert edited(folder, "return -x", "return +x", "helping.py") != before


def test_the_order_of_definitions_does_not_count_and_that_of_other_statements_does(folder):
    functions = "def f():\n    return 1\n\n\ndef g():\n    return 2\n"
    (folder / "sample.py").write_text(functions)
    before = digest(folder)
    (folder / "sample.py").write_text("def g():\n    return 2\n\n\ndef f():\n    return 1\n")
    assert digest(folder) == before
    (folder / "sample.py").write_text("x = 1\nx = 2\n")
    before = digest(folder)
    (folder / "sample.py").write_text("x = 2\nx = 1\n")
    assert digest(folder) != before


DRAWING = """
import numpy as np
import torch
from helping import other
from random import random

RNG = np.random.default_rng(0)


def draw():
    return RNG.normal()


{}
{}
"""


def ordered(folder: Path, definition: str, names: str) -> str:
    """The digest of a module that defines two names in this order."""
    (folder / "sample.py").write_text(DRAWING.format(*map(definition.format, names)))
    return digest(folder)


@pytest.mark.parametrize(
    "definition",
    [
        "{} = RNG.normal()",
        "{} = np.random.rand()",
        "{} = random()",
        "{} = draw()",
        "{} = other(1)",
        "{} = torch.nn.Linear(2, 2)",
        "{} = torch.empty(2).normal_()",
        "class {}:\n    value = RNG.normal()",
        "def {}(value=RNG.normal()):\n    return value",
    ],
)
def test_the_order_of_definitions_that_may_draw_random_numbers_counts(definition, folder):
    assert ordered(folder, definition, "xy") != ordered(folder, definition, "yx")


@pytest.mark.parametrize(
    "definition",
    [
        "{} = np.zeros(2)",
        "{} = len('a')",
        "class {}:\n    def value(self):\n        return draw()",
        "def {}():\n    return draw()",
    ],
)
def test_the_order_of_other_definitions_does_not_count(definition, folder):
    assert ordered(folder, definition, "xy") == ordered(folder, definition, "yx")


def test_functions_of_the_same_name_in_two_modules_are_told_apart(folder):
    for name, body in (("first", "1"), ("second", "2")):
        (folder / f"{name}.py").write_text(
            f"def f():\n    return {body}\n\n\ndef {name}():\n    return f()\n"
        )
    (folder / "sample.py").write_text(
        "from first import f\nfrom second import second\n\ny = f() + second()\n"
    )
    before = digest(folder)
    (folder / "sample.py").write_text("from first import first\nfrom second import f\n\ny = f() + first()\n")
    assert digest(folder) != before


def test_modules_that_differ_in_their_imports_alone_are_told_apart(folder):
    for name, origin in (("first", "sin"), ("second", "cos")):
        (folder / f"{name}.py").write_text(
            f"from math import {origin} as g\n\n\ndef f(x):\n    return g(x)\n"
        )
    text = "import first\nimport second\nfrom {} import f\n\ny = f(1)\n"
    (folder / "sample.py").write_text(text.format("first"))
    before = digest(folder)
    assert edited(folder, "from first", "from second") != before


def test_an_attribute_called_family_counts_unless_it_names_a_family_of_methods(folder):
    (folder / "sample.py").write_text('class Noise:\n    family = "gaussian"\n')
    before = digest(folder)
    named = edited(folder, "gaussian", "mixing")
    assert named != before
    assert edited(folder, "mixing", "clustering") == named


TWINS = """
import first
import passing
import second
import starred

def g():
    return 0

try:
    from first import g
except ImportError:
    pass

class A:
    from first import f
    family = rate = "x"

def h(x):
    family = "x"
    return hyper(x, "about", **{"default": 1})

from pfl.core.hyper import hyper
y = first.f() + getattr(passing, "f")()
"""
FALLBACK = "try:\n    from first import g\nexcept ImportError:\n    pass\n"


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("passing.py", "from first", "from second"),
        ("sample.py", "import first\n", "import second as first\n"),
        ("sample.py", "y = first.f", "y = second.f"),
        ("sample.py", f"def g():\n    return 0\n\n{FALLBACK}", f"{FALLBACK}\ndef g():\n    return 0\n"),
        ("sample.py", "    from first import f", "    from second import f"),
        ("sample.py", 'rate = "x"', 'rate = "y"'),
        ("sample.py", '    family = "x"', '    family = "y"'),
        ("sample.py", '{"default": 1}', '{"default": 2}'),
        ("third.py", '["f", "g"]', '["f"]'),
    ],
)
def test_what_a_name_refers_to_counts_however_it_is_reached(file, old, new, folder):
    for name, number in (("first", 1), ("second", 2)):
        text = f"def f():\n    return {number}\n\n\ndef g():\n    return f()\n"
        (folder / f"{name}.py").write_text(text)
    (folder / "third.py").write_text('__all__ = ["f", "g"]\n\nf = g = print\n')
    (folder / "passing.py").write_text("from first import f\n")
    (folder / "starred.py").write_text("from passing import *\nfrom first import *\nfrom third import *\n")
    (folder / "sample.py").write_text(TWINS)
    before = digest(folder)
    assert edited(folder, old, new, file) != before


@pytest.mark.parametrize(("old", "new"), [("from first", "from second"), ("import f", "import g as f")])
def test_a_star_brings_what_its_module_imports(old, new, folder):
    for name, number in (("first", 1), ("second", 2)):
        (folder / f"{name}.py").write_text(f"def f():\n    return {number}\n\n\ndef g():\n    return f()\n")
    (folder / "passing.py").write_text("from first import f\n")
    (folder / "sample.py").write_text("import first\nimport second\nfrom passing import *\n\ny = f()\n")
    before = digest(folder)
    assert edited(folder, old, new, "passing.py") != before


def test_a_name_that_a_package_passes_on_is_followed(folder):
    (folder / "mine").mkdir()
    (folder / "mine/__init__.py").write_text("from mine.one import f\n")
    for name in ("one", "two"):
        (folder / f"mine/{name}.py").write_text(f"def f():\n    return 0\n\n\ndef {name}():\n    return 1\n")
    (folder / "mine/all.py").write_text("from mine import one, two\n")
    (folder / "sample.py").write_text("import mine\nimport mine.all\n\ny = mine.f()\n")
    before = digest(folder)
    assert edited(folder, "mine.one", "mine.two", "mine/__init__.py") != before


def test_data_files_beside_a_module_count(folder):
    (folder / "mine").mkdir()
    for name in ("__init__.py", "sizes.json", ".hidden", "notes~"):
        (folder / "mine" / name).touch()
    before = digest(folder, "mine")
    (folder / "mine/.hidden").write_text("1")
    (folder / "mine/notes~").write_text("1")
    assert digest(folder, "mine") == before
    (folder / "mine/sizes.json").write_text("1")
    assert digest(folder, "mine") != before


def test_of_the_files_beside_a_module_in_no_package_those_count_that_it_names(folder):
    (folder / "sample.py").write_text('from pathlib import Path\n\nx = Path("sizes.json").read_text()\n')
    before = digest(folder)
    (folder / "README.md").write_text("1")
    assert digest(folder) == before
    (folder / "sizes.json").write_text("1")
    assert digest(folder) != before


def test_neither_names_nor_texts_need_be_in_utf_8(folder):
    text = "# coding: latin-1\nx = 'caf\u00e9', 'sizes.json'\n"
    (folder / "sample.py").write_text(text, encoding="latin-1")
    (folder / "sizes.json").write_text("1")
    before = digest(folder)
    (folder / "sizes.json").write_text("2")
    assert digest(folder) != before
    package = folder / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    before = digest(folder, "package")
    (package / os.fsdecode(b"caf\xe9.txt")).touch()
    assert digest(folder, "package") != before


def test_files_in_a_folder_beside_a_module_count_if_it_names_both(folder):
    (folder / "sample.py").write_text('from pathlib import Path\n\nx = Path("more", "sizes.json")\n')
    (folder / "more").mkdir()
    before = digest(folder)
    (folder / "more/other.json").write_text("1")
    assert digest(folder) == before
    (folder / "more/sizes.json").write_text("1")
    assert digest(folder) != before


def test_the_files_of_a_package_are_found_where_links_lead(folder):
    (folder / "mine").mkdir()
    (folder / "mine/__init__.py").touch()
    (folder / "elsewhere").mkdir()
    (folder / "mine/tables").symlink_to(folder / "elsewhere")
    (folder / "elsewhere/round").symlink_to(folder / "mine")

    def whole() -> str:
        code = Code(roots=[folder])
        return code.digest(code.package("mine"), ["mine"])

    before = whole()
    (folder / "elsewhere/sizes.json").write_text("1")
    after = whole()
    assert after != before
    (folder / "elsewhere/code.py").write_text("x = 1\n")
    assert whole() != after


def test_a_template_that_is_no_python_counts_as_it_is(folder):
    (folder / "sample.py").write_text("import {{ name }}\n")
    before = digest(folder)
    assert edited(folder, "{{ name }}", "{{ other }}") != before


def test_installed_libraries_do_not_count():
    code = Code()
    assert not code.is_own("numpy.random")
    assert not code.is_own("json")
    assert not code.is_own("a_library_that_is_not_there")
    assert {name.partition(".")[0] for name in code.reached(["pfl.data.dataset"])} == {"pfl"}


def test_the_code_of_a_reader_is_that_of_all_that_it_imports():
    assert digest_of_modules(["pfl.data.datasets.cifar10"]) != digest_of_modules(["pfl.data.datasets.mnist"])


@pytest.mark.parametrize("content", ["", "[]", "{", '{"x": 1}'])
def test_a_damaged_cache_is_written_again(content, folder, own_cache):
    before = digest(folder)
    for file in own_cache.glob("digests/*.json"):
        file.write_text(content)
    assert digest(folder) == before
