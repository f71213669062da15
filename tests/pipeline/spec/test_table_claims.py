"""Claims: what each kind says of numbers, and what the papers' own numbers say of their claims."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter

from pipeline.report.agreement import claims
from pipeline.report.summary import blank
from pipeline.spec.claims import Finding
from pipeline.spec.table import load_table
from pipeline.spec.table_claims import TableClaim
from tests.refusal import refusal

COLUMNS = {"a": "Column A", "b": "Column B"}
ROWS = {"ours": "Ours", "one": "One", "two": "Two"}
NUMBERS = {("a", "ours"): 80, ("a", "one"): 77, ("a", "two"): 70} | {
    ("b", "ours"): 61, ("b", "one"): 50, ("b", "two"): 60
}  # fmt: skip


def finding(changes: dict[tuple[str, str], float | None] | None = None, **claim: Any) -> Finding:
    """What a claim about the row "ours" comes to; None takes a number away."""
    values = {place: value for place, value in (NUMBERS | (changes or {})).items() if value is not None}
    declared: Any = TypeAdapter(TableClaim).validate_python({"says": "", "place": "", "row": "ours"} | claim)
    compared = declared.compared(COLUMNS, ROWS)
    tested = declared.test(values, COLUMNS, ROWS)
    restricted = {place: values[place] for place in compared & values.keys()}
    assert declared.test(restricted, COLUMNS, ROWS) == tested
    return tested


def answer(changes: dict[tuple[str, str], float | None] | None = None, **claim: Any) -> str:
    return finding(changes, **claim).answer


CLAIMS = (
    {"kind": "best"},
    {"kind": "margin", "at_least": 11},
    {"kind": "margin", "over": "average", "at_least": 11},
    {"kind": "close", "among": ["one"], "points": 3},
    {"kind": "trend", "of": "margin", "higher": ["b"], "lower": ["a"]},
)


@pytest.mark.parametrize("claim", CLAIMS, ids=str)
def test_a_claim_is_open_until_all_numbers_that_it_compares_are_there(claim):
    assert answer({("a", "two"): 90, ("b", "two"): 90}, **claim) == "refuted"
    incomplete = finding({("a", "two"): 90, ("b", "one"): None}, **claim)
    assert incomplete == Finding("open", "no number of One in Column B")


def test_a_claim_compares_only_its_own_rows_and_columns():
    missing = {("b", "ours"): None, ("a", "two"): None}
    assert answer(missing, kind="best", among=["one"], settings=["a"]) == "confirmed"
    assert answer({("a", "two"): None}, kind="trend", higher=["a"], lower=["b"]) == "confirmed"


def test_a_comparison_without_others_is_open():
    assert answer(kind="best", among=["ours"]) == "open"
    assert answer(kind="trend", of="margin", among=["ours"], higher=["a"], lower=["b"]) == "open"


# ---- best and worst ------------------------------------------------------------------------------------


def test_the_best_is_above_or_level_with_all_others_in_every_column():
    assert answer(kind="best") == "confirmed"
    assert answer({("b", "two"): 61}, kind="best") == "confirmed"
    assert answer({("b", "two"): 61.01}, kind="best") == "refuted"


def test_the_worst_is_below_all_others():
    assert answer(kind="worst", row="two", settings=["a"]) == "confirmed"
    assert answer(kind="worst", row="two") == "refuted"


def test_a_claim_may_be_about_some_rows_and_columns():
    assert answer(kind="best", row="one", among=["two"], settings=["a"]) == "confirmed"


def test_what_shows_it_is_the_worst_exception_or_the_closest_other():
    assert finding(kind="best").shown == "closest: Two in Column B, 1.00 away"
    shown = finding({("a", "one"): 82, ("b", "two"): 64}, kind="best").shown
    assert shown == "not in 2 of 2 columns: in Column B, Two is 3.00 above"
    assert finding(kind="worst").shown == "not in 2 of 2 columns: in Column B, One is 11.00 below"
    assert finding({("b", "two"): 61}, kind="best").shown == "level with Two in Column B"


# ---- margins -------------------------------------------------------------------------------------------


def test_a_margin_is_over_the_best_of_the_others_in_each_column():
    assert answer(kind="margin", at_least=1) == "confirmed"
    assert answer(kind="margin", at_least=1.5) == "refuted"
    assert answer(kind="margin", at_most=2) == "refuted"
    assert answer(kind="margin", at_most=3) == "confirmed"
    assert finding(kind="margin", at_least=1).shown == "+1.00 to +3.00"


def test_a_margin_of_a_range_is_refuted_by_less_and_not_by_more():
    assert answer(kind="margin", at_least=0.5, at_most=2) == "confirmed"
    assert answer(kind="margin", at_least=1.5, at_most=4) == "refuted"


@pytest.mark.parametrize(("over", "points"), [("mean", 2.0), ("largest", 3.0), ("average", 5.5)])
def test_margins_are_summed_up_over_the_columns(over, points):
    # Ours is 70.5 on average, the better of the others 65.
    assert answer(kind="margin", over=over, at_least=points) == "confirmed"
    assert answer(kind="margin", over=over, at_most=points) == "confirmed"


# ---- closeness -----------------------------------------------------------------------------------------


def test_rows_are_close_within_so_many_points_of_the_best_of_every_column():
    assert answer(kind="close", among=["one"], settings=["a"], points=3) == "confirmed"
    assert answer(kind="close", among=["one"], settings=["a"], points=2.99) == "refuted"
    shown = finding(kind="close", among=["one"], points=3).shown
    assert shown == "furthest: One in Column B, 11.00 below the best"


# ---- trends --------------------------------------------------------------------------------------------


def test_a_trend_is_from_column_to_column():
    assert answer(kind="trend", higher=["a"], lower=["b"]) == "confirmed"
    assert answer(kind="trend", higher=["b"], lower=["a"]) == "refuted"
    assert answer(kind="trend", of="margin", higher=["a"], lower=["b"]) == "confirmed"
    assert answer({("a", "one"): 79.5}, kind="trend", of="margin", higher=["a"], lower=["b"]) != "confirmed"


def test_equal_margins_are_no_trend():
    # In floating point, 70.3 - 69.1 is larger than 60.3 - 59.1.
    changes = {("a", "ours"): 70.3, ("a", "one"): 69.1, ("b", "ours"): 60.3, ("b", "one"): 59.1}
    claim = {"kind": "trend", "of": "margin", "among": ["one"]}
    assert answer(changes, **claim, higher=["a"], lower=["b"]) == "refuted"
    assert answer(changes, **claim, higher=["b"], lower=["a"]) == "refuted"


def test_a_trend_may_be_about_several_rows():
    changes = {("b", "two"): 71}
    shown = finding(changes, kind="trend", among=["one", "two"], higher=["a"], lower=["b"]).shown
    assert shown == "not in 1 of 3 pairs: Two has 70.00 in Column A, 71.00 in Column B"


def test_a_refuted_trend_of_margins_is_told_from_one_of_accuracies():
    shown = finding({("b", "two"): 62}, kind="trend", of="margin", higher=["b"], lower=["a"]).shown
    assert shown == "not in 1 of 1 pair: Ours is ahead by −1.00 in Column B, +3.00 in Column A"


# ---- the tables' own -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("claim", "said"),
    [
        ("kind: best, row: fedper", "claims.row: fedper is not accepted; expected one of fedavg, fedprox"),
        ("kind: best, row: fedavg, settings: [three]", "claims.settings: three is not accepted"),
        ("kind: best, row: fedavg, among: [fedper]", "claims.among: fedper is not accepted"),
        ("kind: margin, row: fedavg", "claims: a margin without a size is not accepted"),
        ("kind: trend, row: fedavg, higher: [dir], lower: [three]", "claims.lower: three is not accepted"),
        ("kind: trend, row: fedavg, higher: [dir], lower: [two], settings: [dir]", "none for a trend"),
        ("kind: bets, row: fedavg", "kind"),
        ("kind: trend, row: fedavg, higher: [dir], lower: [dir, two]", "expected 1 column, as 'higher' has"),
    ],
)
@pytest.mark.usefixtures("project")
def test_a_claim_about_what_the_table_does_not_have_is_one_line(edit, claim, said):
    edit("seeds:", f"claims: [{{says: so, place: there, {claim}}}]\nseeds:")
    assert said in refusal(load_table, "small")


@pytest.mark.parametrize(
    ("table", "words", "expected", "shown"),
    [
        ("fedsimsup-table1", "optimal in all", "confirmed", "0.70 away"),
        ("fedsimsup-table1", "about 4 - 6%", "refuted", "+3.45 to +6.70"),
        ("pfedsim-table6", "rho = 1 is always the worst", "refuted", "Tiny-ImageNet, Dir(0.5)"),
        ("pfedsim-table6", "rho = 0 is always worse", "refuted", "5 of 8 columns"),
        ("pfedsim-table6", "is in [0.3, 0.7]", "refuted", "rho = 0.7 in Tiny-ImageNet, Dir(0.1), 3.82"),
        ("pfedcs-table5", "stable from rho = 1", "confirmed", "0.12 below"),
        ("spfl-table1", "1.81 ~ 18.46%", "confirmed", "+1.81 to +18.46"),
        ("spfl-table1", "always higher than", "refuted", "FedUpdate has 80.05"),
        ("fedcac-table2", "best model performance", "confirmed", "0.47 away"),
        ("fedcac-table2", "no SOTA method", "refuted", "2 of 3 columns"),
        ("pfedcs-table2", "sub-optimal method by 2.50%", "confirmed", "+3.35"),
    ],
)
def test_some_papers_claims_do_not_hold_on_their_own_numbers(table, words, expected, shown):
    (tested,) = (claim for claim in claims(blank(table, load_table(table))) if words in claim.claim.says)
    assert tested.published.answer == expected
    assert shown in tested.published.shown
    assert tested.ours.answer == "open"
