"""What papers say of their figures, held against numbers."""

from __future__ import annotations

import pytest

from pipeline.figures.config import Statement
from pipeline.figures.numbers import Numbers, Point
from pipeline.figures.statements import check

CURVES = {"a": [1.0, 5.0, 4.0], "b": [3.0, 3.0, 6.0]}
"""Values at x = 1, 2, 3."""


def numbers(**panels: dict[str, list[float]]) -> Numbers:
    return Numbers(
        [
            Point(panel, series, x, value)
            for panel, found in panels.items()
            for series, values in found.items()
            for x, value in enumerate(values, start=1)
        ]
    )


def verdict(shown: dict[str, dict[str, list[float]]] | None = None, **statement) -> str:
    said = Statement(text="so it is", **statement)
    return check(said, numbers(**(shown or {"one": CURVES})), {}).verdict


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ({"check": "highest", "series": ["b"]}, "shows"),
        ({"check": "highest", "series": ["a"]}, "does not show"),
        ({"check": "highest", "series": ["b"], "everywhere": True}, "does not show"),
        ({"check": "order", "series": ["b", "a"]}, "shows"),
        ({"check": "order", "series": ["a", "b"]}, "does not show"),
        ({"check": "rises"}, "shows"),
        ({"check": "falls", "series": ["a"]}, "does not show"),
        ({"check": "peak", "series": ["a"], "between": [1.5, 2.5]}, "shows"),
        ({"check": "peak", "between": [1.5, 2.5]}, "does not show"),
        ({"check": "above", "series": ["b"], "least": 4.0}, "shows"),
        ({"check": "above", "least": 4.0}, "does not show"),
    ],
)
def test_each_check(statement, expected):
    assert verdict(**statement) == expected


def test_panels_count_by_themselves():
    panels = {"one": CURVES, "two": {"a": [9.0, 9.0, 9.0], "b": [1.0, 1.0, 1.0]}}
    assert verdict(panels, check="highest", series=["b"]) == "shows in 1 of 2 panels"
    assert verdict(panels, check="highest", series=["b"], panels=["one"]) == "shows"


def test_what_was_not_run_is_not_judged():
    assert verdict(check="order", series=["a", "c"]) == "not tested"
    assert verdict({"one": {"a": [1.0]}}, check="highest", series=["a"]) == "not tested"


def test_a_finding_says_what_was_found_under_the_names_in_the_figure():
    said = Statement(text="so it is", check="order", series=["a", "b"])
    found = check(said, numbers(one=CURVES), {"a": "Ours", "one": "CIFAR-10"})
    assert found.found == "CIFAR-10: b (4) > Ours (3.33)"


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ({"check": "highest", "series": ["b"]}, "b is highest (6; a 4)"),
        ({"check": "peak", "series": ["a"], "between": [1, 3]}, "a is highest at 2 (5; 4 at 3)"),
        ({"check": "rises", "series": ["a"]}, "a from 1 to 4 (not at every step)"),
        ({"check": "rises", "series": ["c"]}, "c from 1 to 3"),
    ],
)
def test_a_finding_shows_how_far_ahead_or_how_steady_it_is(statement, found):
    panel = {**CURVES, "c": [1.0, 2.0, 3.0]} if statement["series"] == ["c"] else CURVES
    assert check(Statement(text="so it is", **statement), numbers(one=panel), {}).found == f"one: {found}"
