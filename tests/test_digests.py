"""A digest of code follows from what the code does, and from nothing else."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from pfl.core import digests
from pfl.core.digests import Code, Edited, digest_of_modules
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
RECORDED = "96147d20eb04ffb1"
"""As every version of Python has it that is supported."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sample.py").write_text(SAMPLE, encoding="utf-8")
    (tmp_path / "helping.py").write_text(HELPING)
    return tmp_path


def digest(folder: Path, module: str = "sample") -> str:
    code = Code(roots=[folder])
    return code.digest(code.reached([module]))


def moves(folder: Path, old: str, new: str, file: str = "sample.py") -> bool:
    """Whether an edit of a file changes the digest."""
    before = digest(folder)
    replace_text(folder / file, old, new)
    return digest(folder) != before


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
        ("        case _:\n            pass\n", "        case _:\n            pass\n            ...\n"),
    ],
)
def test_an_edit_without_a_meaning_changes_no_digest(old, new, folder):
    assert not moves(folder, old, new)


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
        ("np.random.default_rng", "np.random.seed"),
        ("import numpy as np", "import scipy as np"),
        (
            "import numpy as np\nfrom helping import group, other",
            "from helping import group, other\nimport numpy as np",
        ),
        ("except* ", "except "),
        ("field: int", "field: float"),
    ],
)
def test_an_edit_with_a_meaning_changes_the_digest(old, new, folder):
    assert moves(folder, old, new)


def test_an_edit_of_what_is_imported_changes_the_digest(folder):
    assert moves(folder, "return -x", "return +x", "helping.py")


def test_an_attribute_called_family_counts_unless_it_names_a_family_of_methods(folder):
    (folder / "sample.py").write_text('class Noise:\n    family = "gaussian"\n')
    assert moves(folder, "gaussian", "mixing")
    assert not moves(folder, "mixing", "clustering")


DECLARING = """
from pfl.core.hyper import hyper


class A:
    family = rate = "mixing"
    x = hyper(1, "about", search=(1, 2), **{"default": 1})


def h():
    family = "clustering"
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('rate = "mixing"', 'rate = "clustering"'),
        ('    family = "clustering"', '    family = "mixing"'),
        ("hyper(1", "hyper(2"),
        ('{"default": 1}', '{"default": 2}'),
        ("search=(1, 2)", "search=(1, 2), adaptation=True"),
    ],
)
def test_what_resembles_a_declaration_without_effect_counts(old, new, folder):
    (folder / "sample.py").write_text(DECLARING)
    assert moves(folder, old, new)


@pytest.mark.parametrize(("module", "count"), [("pfl.core.hyper", False), ("helping", True)])
def test_text_and_range_of_a_hyperparameter_count_if_another_function_takes_them(module, count, folder):
    (folder / "sample.py").write_text(DECLARING.replace("pfl.core.hyper", module))
    assert moves(folder, "(1, 2)", "(1, 3)") == moves(folder, '"about"', '"other"') == count


@pytest.mark.parametrize(
    "statement",
    [
        "from mine.part import *",
        "from .part import f",
        "from . import part",
        "from ..mine import part",
        "def g():\n    import mine.part",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    pass\nelse:\n    import mine.part",
    ],
)
def test_every_kind_of_import_is_followed(statement, folder):
    (folder / "mine").mkdir()
    for name, text in (("__init__", ""), ("part", "def f():\n    return 1\n"), ("all", f"{statement}\n")):
        (folder / f"mine/{name}.py").write_text(text)
    (folder / "sample.py").write_text("import mine.all\n")
    assert moves(folder, "return 1", "return 2", "mine/part.py")


def test_modules_that_the_names_of_a_package_include_are_imported_with_a_star(folder):
    (folder / "mine").mkdir()
    (folder / "mine/__init__.py").write_text('__all__ = ["part"]\n')
    (folder / "mine/part.py").write_text("x = 1\n")
    (folder / "sample.py").write_text("from mine import *\n")
    assert moves(folder, "x = 1", "x = 2", "mine/part.py")


def test_names_of_modules_count_and_their_folder_does_not(folder):
    before = digest(folder)
    moved = folder.rename(folder.with_name("moved"))
    assert digest(moved) == before
    (moved / "helping.py").rename(moved / "other.py")
    replace_text(moved / "sample.py", "from helping", "from other")
    assert digest(moved) != before


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


@pytest.mark.parametrize("file", ["sample.py", "sample/__init__.py"])
def test_files_in_a_folder_beside_a_module_count_if_it_names_both(file, folder):
    (folder / "sample.py").unlink()
    module = folder / file
    more = module.with_name("more")
    more.mkdir(parents=True)
    module.write_text('from pathlib import Path\n\nx = Path("more", "sizes.json")\n')
    before = digest(folder)
    (more / "other.json").write_text("1")
    assert digest(folder) == before
    (more / "sizes.json").write_text("1")
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


@pytest.mark.parametrize("file", ["stored/mine/__init__.py", "stored/1a2b-init"])
def test_a_package_whose_files_are_links_is_where_the_links_are(file, folder):
    (folder / "mine").mkdir()
    (folder / file).parent.mkdir(parents=True)
    (folder / file).write_text("from . import part\n")
    (folder / "mine/__init__.py").symlink_to(folder / file)
    (folder / "mine/part.py").write_text("x = 1\n")
    (folder / "mine/sizes.json").write_text("1")
    (folder / "sample.py").write_text("import mine\n")
    assert moves(folder, "x = 1", "x = 2", "mine/part.py")
    assert moves(folder, "1", "2", "mine/sizes.json")
    assert moves(folder, "part", "part, part as other", file)


def test_a_template_that_is_no_python_counts_as_it_is(folder):
    (folder / "sample.py").write_text("import {{ name }}\n")
    assert moves(folder, "{{ name }}", "{{ other }}")


def test_installed_libraries_do_not_count():
    code = Code()
    assert not code.is_own("numpy.random")
    assert not code.is_own("json")
    assert not code.is_own("a_library_that_is_not_there")
    assert {name.partition(".")[0] for name in code.reached(["pfl.data.dataset"])} == {"pfl"}


def test_of_a_file_whose_time_is_ahead_of_the_clock_the_error_says_so(folder, monkeypatch):
    began = time.time() - 3600  # the clock was set back
    monkeypatch.setattr(digests, "BEGAN", began)
    monkeypatch.setattr(time, "time", lambda: began + 1)
    loaded = ModuleType("helping")
    loaded.__file__ = str(folder / "helping.py")
    monkeypatch.setitem(sys.modules, "helping", loaded)
    with pytest.raises(Edited, match=r"helping\.py, whose time is ahead of the clock \(.*\); run it again"):
        Code().module(folder / "helping.py", "helping")


def test_libraries_that_pip_has_installed_in_a_folder_of_any_name_do_not_count(tmp_path, monkeypatch):
    for name in ("a_library", "a_package_of_mine"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    (tmp_path / "a_module.py").touch()
    (tmp_path / "a_library-1.0.dist-info").mkdir()
    record = "a_library/__init__.py,sha256=47DEQ,0\na_module.py,sha256=47DEQ,0\n"
    (tmp_path / "a_library-1.0.dist-info/RECORD").write_text(record)
    monkeypatch.syspath_prepend(tmp_path)
    code = Code()
    assert not code.is_own("a_library.inner")
    assert not code.is_own("a_module")
    assert code.is_own("a_package_of_mine")
    assert Code(["a_library"]).is_own("a_library")  # a plugin


def test_the_code_of_a_reader_is_that_of_all_that_it_imports():
    assert digest_of_modules(["pfl.data.datasets.cifar10"]) != digest_of_modules(["pfl.data.datasets.mnist"])


@pytest.mark.parametrize("content", ["", "[]", "{", '{"x": 1}'])
def test_a_damaged_cache_is_written_again(content, folder, own_cache):
    before = digest(folder)
    for file in own_cache.glob("digests/*.json"):
        file.write_text(content)
    assert digest(folder) == before
