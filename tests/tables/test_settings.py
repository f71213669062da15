"""Every pinned setting is the paper's, or the difference carries its reason."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from benchmarks.comparisons import our_name
from pfl.data.partition import parse_spec
from pipeline.figures.figure import load_figure
from pipeline.spec.papers import NUMBERS, Paper, paper_names
from pipeline.spec.paths import figure_names, table_names
from pipeline.spec.published import Published
from pipeline.spec.table import Table, load_table
from tests.tables.conftest import Pin

PAPERS = paper_names()
RULES = {
    "dirichlet": ("dirichlet", "dirichlet_client"),
    "pathological": ("pathological", "blocks", "classes_client"),
    "iid": ("classes_iid",),
    "noniid_classes": ("classes_noniid",),
    "natural": ("by",),
    "domain": ("domain",),
    "label_subsets": ("class_sets",),
}
"""Our rules for what the published results call a partition."""
TABLE = r"[a-z0-9]+-table\d[a-z0-9-]*"
"""The name of a paper's table or of a study."""
ORIGIN = (
    rf"paper( §|, )[^:]+: |released code \([^:;]+\): |benchmark code \(PFLlib\): |our choice: |as in {TABLE}"
)
"""How a source begins: who says so, and for a paper where."""


def flat(fact: Mapping[str, Any]) -> dict[str, Any]:
    """What a fact states, as "schedule.rounds" and the like."""
    settings = {name: fact[name] for name in ("model", "seeds") if name in fact}
    for part in ("schedule", "params", "partition", "evaluation"):
        settings |= {f"{part}.{name}": value for name, value in fact.get(part, {}).items()}
    return settings


def fits(where: Mapping[str, Any], printed: Published) -> bool:
    return all(
        getattr(printed, name) in (wanted if isinstance(wanted, list) else [wanted])
        for name, wanted in where.items()
    )


def pinned(pin: Pin) -> dict[str, Any]:
    """The settings of a cell under the names of `flat`."""
    assert pin.cell is not None
    config = pin.cell.config.to_dict()
    own = config.pop("hyperparameters")
    specification, rule = parse_spec(pin.cell.partition)
    division = dataclasses.asdict(rule) | {"seed": specification.rpartition("seed=")[2]}
    return {
        "model": config["model"],
        "seeds": len(pin.table.seeds),
        **{f"schedule.{name}": value for name, value in config.items()},
        **{f"params.{name}": value for name, value in own.items()},
        **{f"partition.{name}": value for name, value in division.items()},
        **{f"evaluation.{name}": value for name, value in pin.cell.evaluation.model_dump().items()},
    }


def differences(pin: Pin, facts: Iterable[Mapping[str, Any]]) -> list[str]:
    """Where a cell is neither as its paper states nor as the fact says that we have it instead."""
    assert pin.printed is not None
    expected: dict[str, Any] = {}
    for fact in facts:
        if fits(fact.get("where", {}), pin.printed):
            expected |= flat(fact) | fact.get("instead", {})
    ours = pinned(pin)
    return [
        f"{pin}: {name} is {ours.get(name)}, not {value}"
        for name, value in expected.items()
        if ours.get(name) != value
    ]


def facts_of(paper: Paper) -> list[Mapping[str, Any]]:
    """What the paper states, then what its released code adds."""
    return [*paper.facts, *paper.released]


def cells_of(pins: list[Pin], paper: str) -> list[Pin]:
    return [pin for pin in pins if pin.cell and pin.printed and pin.printed.paper == paper]


@pytest.mark.parametrize("paper", PAPERS)
def test_pinned_settings_are_those_that_the_paper_and_its_released_code_state(pins, papers, paper):
    facts = facts_of(papers[paper])
    assert [line for pin in cells_of(pins, paper) for line in differences(pin, facts)] == []


def test_seeds_of_a_paper_are_those_that_it_states_or_assumed_with_a_reason(papers):
    for name in table_names():
        table = load_table(name)
        if (published := table.published) and published.file == NUMBERS:
            seeds = papers[published.paper].seeds
            stated = seeds.get(published.table) if isinstance(seeds, dict) else seeds
            reason = table.sources.get("published.seeds", "")
            assert published.assumed == reason.startswith("our choice: "), name
            assert published.assumed if published.seeds != stated else not published.assumed, name


@pytest.mark.parametrize("paper", PAPERS)
def test_a_pin_has_the_printed_data_partition_and_number_of_clients(pins, paper):
    for pin in cells_of(pins, paper):
        cell, printed = pin.cell, pin.printed
        rule, argument = cell.partition.partition(",")[0].partition(":")[::2]
        assert cell.dataset == our_name(printed), pin
        assert cell.clients == printed.clients, pin
        assert rule in RULES[printed.partition], pin
        if printed.partition == "label_subsets":
            subsets = (part.partition("=")[2] for part in printed.partition_arg.split(";"))
            assert argument == "/".join(subsets), pin
        elif argument and printed.partition_arg:
            assert float(argument) == float(printed.partition_arg.partition("=")[2]), pin


@pytest.mark.parametrize("paper", PAPERS)
def test_every_fact_is_about_a_cell_and_every_difference_has_a_reason(pins, papers, paper):
    for fact in facts_of(papers[paper]):
        about = [pin for pin in cells_of(pins, paper) if fits(fact.get("where", {}), pin.printed)]
        assert about, fact
        assert fact["place"], fact
        assert ("instead" in fact) == bool(fact.get("because")), fact
        for name, value in fact.get("instead", {}).items():
            assert flat(fact)[name] != value, fact


@pytest.mark.parametrize("paper", PAPERS)
def test_a_table_says_what_we_do_where_its_paper_is_silent(paper_tables, papers, paper):
    for name, table in paper_tables.items():
        if table.published.paper == paper:
            for key in papers[paper].silent:
                said = table.sources.get(key, "")
                assert re.search(r"(released|benchmark) code \(|our choice: ", said), f"{name}: {key}"


def test_a_table_of_accuracies_says_at_which_moment_its_rows_are_reported(paper_tables):
    for name, table in paper_tables.items():
        if table.evaluation.is_accuracy:
            keys = {"evaluation.moment", "settings.evaluation"} & table.sources.keys()
            assert keys or "fine-tuning" in table.sources["evaluation"], name


@pytest.fixture(scope="module")
def everything() -> dict[str, Table]:
    """All tables and figures."""
    figures = {name: load_figure(name) for name in figure_names()}
    return {name: load_table(name) for name in table_names()} | figures


def test_a_source_says_where_the_value_is_from_and_a_choice_of_ours_why(everything):
    for name, table in everything.items():
        for key, said in table.sources.items():
            assert re.match(ORIGIN, said), f"{name}: {key}: {said}"
            for choice in said.split("our choice: ")[1:]:
                assert "because" in choice, f"{name}: {key}: {choice}"


def test_a_source_that_refers_to_a_table_names_one(everything):
    for name, table in everything.items():
        for key, said in table.sources.items():
            assert "tables/" not in said, f"{name}: {key}"  # a name finds its file wherever it is
            for other in re.findall(rf"\b{TABLE}", said):
                assert other in everything, f"{name}: {key}: {other}"


def test_what_a_paper_table_pins_of_schedule_and_rows_has_a_source(everything):
    for name, table in everything.items():
        if table.paper:
            assert not table.schedule.model_fields_set or "schedule" in table.sources, name
            for row in table.methods:
                keys = {"methods", f"methods.{row.id}", f"methods.{row.method}"}
                assert not row.params or keys & table.sources.keys(), f"{name}: {row.id}"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rounds": 100}, "schedule.rounds is 100, not 200"),
        ({"lr": 0.1}, "schedule.lr is 0.1, not 0.01"),
        ({"hyperparameters": {"mu": 0.5}}, "params.mu is 0.5, not 1"),
        ({"bn_stats": "mixed"}, "schedule.bn_stats is mixed, not local"),
    ],
)
def test_a_wrong_pin_is_found(pins, papers, change, said):
    right = next(pin for pin in cells_of(pins, "pfedsim") if pin.row == "fedprox")
    config = dataclasses.replace(right.cell.config, **change)
    wrong = dataclasses.replace(right, cell=dataclasses.replace(right.cell, config=config))
    facts = facts_of(papers["pfedsim"])
    assert differences(right, facts) == []
    assert [line.split(": ")[-1] for line in differences(wrong, facts)] == [said]
