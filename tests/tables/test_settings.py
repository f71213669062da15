"""Every pinned setting is the paper's, or the difference carries its reason."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from pfl.data.partition import parse_spec
from pipeline.comparisons import our_name
from pipeline.published import Published
from tests.tables.conftest import Pin, read

PAPERS = ("fedsimsup", "pfedsim", "spfl", "pfedcs", "fedcac")
RULES = {
    "dirichlet": ("dirichlet", "dirichlet_client"),
    "pathological": ("pathological", "blocks", "classes_client"),
    "iid": ("classes_iid",),
    "noniid_classes": ("classes_noniid",),
    "natural": ("writer",),
    "domain": ("domain",),
    "label_subsets": ("class_sets",),
}
"""Our rules for what the published results call a partition."""
WORDS = ("paper:", "code:", "ours:")


@pytest.fixture(scope="module")
def stated() -> dict[str, Any]:
    return read("settings.yaml")


def flat(fact: Mapping[str, Any]) -> dict[str, Any]:
    """What a fact states, as "schedule.rounds" and the like."""
    found = {name: fact[name] for name in ("model", "seeds") if name in fact}
    for part in ("schedule", "params", "partition", "evaluation"):
        found |= {f"{part}.{name}": value for name, value in fact.get(part, {}).items()}
    return found


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
    rule = dataclasses.asdict(parse_spec(pin.cell.partition)[1])
    return {
        "model": config["model"],
        "seeds": len(pin.table.seeds),
        **{f"schedule.{name}": value for name, value in config.items()},
        **{f"params.{name}": value for name, value in own.items()},
        **{f"partition.{name}": value for name, value in rule.items()},
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


def cells_of(pins: list[Pin], paper: str) -> list[Pin]:
    return [pin for pin in pins if pin.cell and pin.printed and pin.printed.paper == paper]


@pytest.mark.parametrize("paper", PAPERS)
def test_pinned_settings_are_those_that_the_paper_states(pins, stated, paper):
    found = [line for pin in cells_of(pins, paper) for line in differences(pin, stated[paper]["facts"])]
    assert found == []


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
def test_every_fact_is_about_a_cell_and_every_difference_has_a_reason(pins, stated, paper):
    for fact in stated[paper]["facts"]:
        about = [pin for pin in cells_of(pins, paper) if fits(fact.get("where", {}), pin.printed)]
        assert about, fact
        assert fact["place"], fact
        assert ("instead" in fact) == bool(fact.get("because")), fact
        for name, value in fact.get("instead", {}).items():
            assert flat(fact)[name] != value, fact


@pytest.mark.parametrize("paper", PAPERS)
def test_a_table_says_what_we_do_where_its_paper_is_silent(paper_tables, stated, paper):
    for name, table in paper_tables.items():
        if name.startswith(f"{paper}-"):
            for key in stated[paper]["silent"]:
                said = table.sources.get(key, "")
                assert "code:" in said or "ours:" in said, f"{name}: {key}"


def test_a_source_says_whose_word_it_is(paper_tables):
    for name, table in paper_tables.items():
        for key, said in table.sources.items():
            assert said.startswith(WORDS), f"{name}: {key}"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rounds": 100}, "schedule.rounds is 100, not 200"),
        ({"lr": 0.1}, "schedule.lr is 0.1, not 0.01"),
        ({"hyperparameters": {"mu": 0.5}}, "params.mu is 0.5, not 1"),
    ],
)
def test_a_wrong_pin_is_found(pins, stated, change, said):
    right = next(pin for pin in cells_of(pins, "pfedsim") if pin.row == "fedprox")
    config = dataclasses.replace(right.cell.config, **change)
    wrong = dataclasses.replace(right, cell=dataclasses.replace(right.cell, config=config))
    assert differences(right, stated["pfedsim"]["facts"]) == []
    assert [line.split(": ")[-1] for line in differences(wrong, stated["pfedsim"]["facts"])] == [said]
