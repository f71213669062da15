"""Claims about figures: what each kind says of series, and what is found in several panels."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from pipeline.figures.figure_claims import SeriesClaim
from pipeline.spec.claims import Finding

CURVES = {"a": [1.0, 5.0, 4.0], "b": [3.0, 3.0, 6.0]}
"""Values at x = 1, 2, 3."""


def finding(
    shown: dict[str, dict[str, list[float]]] | None = None, /, labels: dict[str, str] | None = None, **claim
) -> Finding:
    declared = TypeAdapter(SeriesClaim).validate_python({"says": "so it is"} | claim)
    series = {
        panel: {name: dict(enumerate(values, start=1)) for name, values in curves.items()}
        for panel, curves in (shown or {"one": CURVES}).items()
    }
    return declared.test(series, labels or {})


def answer(shown: dict[str, dict[str, list[float]]] | None = None, /, **claim) -> str:
    return finding(shown, **claim).answer


@pytest.mark.parametrize("series", ["a", "b"])
def test_a_tie_counts_as_highest_whichever_series_comes_first(series):
    tied = {"one": {"a": [1.0, 2.0], "b": [1.0, 2.0]}}
    for how in ({}, {"everywhere": True}, {"best": True}):
        assert answer(tied, kind="highest", series=[series], **how) == "confirmed"


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        ({"kind": "highest", "series": ["b"]}, "confirmed"),
        ({"kind": "highest", "series": ["a"]}, "refuted"),
        ({"kind": "highest", "series": ["b"], "everywhere": True}, "refuted"),
        ({"kind": "order", "series": ["b", "a"]}, "confirmed"),
        ({"kind": "order", "series": ["a", "b"]}, "refuted"),
        ({"kind": "rises"}, "confirmed"),
        ({"kind": "falls", "series": ["a"]}, "refuted"),
        ({"kind": "peak", "series": ["a"], "between": [1.5, 2.5]}, "confirmed"),
        ({"kind": "peak", "between": [1.5, 2.5]}, "refuted"),
        ({"kind": "above", "series": ["b"], "least": 4.0}, "confirmed"),
        ({"kind": "above", "least": 4.0}, "refuted"),
    ],
)
def test_each_kind(claim, expected):
    assert answer(**claim) == expected


def test_a_claim_about_several_panels_holds_if_it_holds_in_each():
    panels = {"one": CURVES, "two": {"a": [9.0, 9.0, 9.0], "b": [1.0, 1.0, 1.0]}}
    ahead = finding(panels, kind="highest", series=["b"])
    assert ahead.answer == "refuted"
    assert ahead.shown.startswith("not in 1 of 2 panels: one: b is highest")
    assert answer(panels, kind="highest", series=["b"], panels=["one"]) == "confirmed"


def test_what_was_not_run_is_not_judged():
    assert answer(kind="order", series=["a", "c"]) == "open"
    assert answer({"one": {"a": [1.0]}}, kind="highest", series=["a"]) == "open"
    assert answer({"one": {"a": [1.0]}}, kind="peak", between=[2, 3]) == "open"


@pytest.mark.parametrize(
    "claim",
    [
        {"kind": "highest", "series": ["a"]},
        {"kind": "highest", "series": ["b"], "best": True},
        {"kind": "order", "series": ["a", "b"]},
        {"kind": "order", "series": ["b", "a"]},
        {"kind": "rises", "series": ["a"]},
        {"kind": "peak", "between": [1, 3]},
        {"kind": "above", "least": 4.0},
    ],
)
def test_a_value_that_is_not_a_number_decides_nothing(claim):
    undefined = {"one": {"a": [1.0, 5.0, float("nan")], "b": [3.0, 3.0, 6.0]}}
    assert finding(undefined, **claim) == Finding("open", "a value is not a number: one")
    assert finding(undefined, kind="rises", series=["b"]).answer == "confirmed"


def test_series_of_which_one_ends_early_are_compared_where_both_have_values():
    early = {"one": {"a": [3.0, 1.0], "b": [2.0]}}
    assert answer(early, kind="highest", series=["a"]) == "confirmed"
    assert answer(early, kind="highest", series=["b"]) == "refuted"
    assert (
        finding(early, kind="highest", series=["a"], everywhere=True).shown == "one: a is highest at 1 of 1"
    )
    assert finding(early, kind="order", series=["a", "b"]).shown == "one: a (3) > b (2)"
    assert answer({"one": {"a": [1.0], "b": []}}, kind="order", series=["a", "b"]) == "open"


def test_a_finding_has_the_names_of_the_figure():
    labels = {"a": "Ours", "one": "CIFAR-10"}
    assert finding(labels=labels, kind="order", series=["a", "b"]).shown == "CIFAR-10: b (4) > Ours (3.33)"


@pytest.mark.parametrize(
    ("claim", "shown"),
    [
        ({"kind": "highest", "series": ["b"]}, "b is highest (6; a 4)"),
        ({"kind": "peak", "series": ["a"], "between": [1, 3]}, "a is highest at 2 (5; 4 at 3)"),
        ({"kind": "rises", "series": ["a"]}, "a from 1 to 4 (not at every step)"),
        ({"kind": "rises", "series": ["c"]}, "c from 1 to 3"),
    ],
)
def test_a_finding_shows_how_far_ahead_or_how_steady_it_is(claim, shown):
    panel = {**CURVES, "c": [1.0, 2.0, 3.0]} if claim["series"] == ["c"] else CURVES
    assert finding({"one": panel}, **claim).shown == f"one: {shown}"


@pytest.mark.parametrize(
    "claim",
    [
        {"kind": "highest"},
        {"kind": "order", "series": ["a"]},
        {"kind": "peak"},
        {"kind": "above"},
        {"kind": "best"},
    ],
)
def test_a_claim_without_what_its_kind_needs_is_refused(claim):
    with pytest.raises(ValidationError):
        finding(**claim)


@pytest.mark.parametrize(("series", "best"), [("b", False), ("a", True)])
def test_papers_that_report_the_best_round_are_tested_on_it(series, best):
    curves = {"one": {"a": [1.0, 7.0, 4.0], "b": [3.0, 3.0, 6.0]}}
    assert answer(curves, kind="highest", series=[series], best=best) == "confirmed"
    other = "a" if series == "b" else "b"
    assert answer(curves, kind="highest", series=[other], best=best) == "refuted"
