"""A data set that breaks a rule of `check_dataset` is told so."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

import pfl
from pfl.core.errors import InvalidInput
from pfl.data.cache import Content
from pfl.data.datasets.digits import digits
from pfl.testing import Violations, check_dataset
from pfl.testing.dataset_kit import KIT
from pfl.testing.synthetic import make_dataset
from tests.testing.violating import violates

DATA = make_dataset((1, 8, 8), classes=3, samples=60, n_train=45)
CALLS = itertools.count()


def other_images(_files, out):
    """Images of which no two calls return the same."""
    out.append(np.full((40, 1, 8, 8), next(CALLS), np.uint8), np.arange(40) % 10)
    return Content(tuple(map(str, range(10))))


def changed(**fields):
    return dataclasses.replace(DATA, **fields)


IN_MEMORY = {
    "images": (changed(images=DATA.images[:, 0]), r"the images are \(60, 8, 8\); expected \(N, C, H, W\)"),
    "columns": (changed(columns={"age": np.ones(60)}), r"age is float64 \(60,\); expected integers or"),
    "simulation": (changed(mean=(float("nan"),)), "the training losses are nan"),
}


@pytest.mark.parametrize("rule", IN_MEMORY)
def test_a_broken_data_set_is_told_so_in_one_line(rule):
    dataset, line = IN_MEMORY[rule]
    with violates(rule, line):
        check_dataset(dataset, rules=[rule])


READ = {
    "reading": ({"read": other_images}, "the images or labels differ when they are decoded again"),
    "samples": ({"samples": 1800}, "there are 1797; the definition says 1800"),
}


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("rule", READ)
def test_a_broken_definition_is_told_so_in_one_line(rule, monkeypatch):
    fields, line = READ[rule]
    monkeypatch.setattr("pfl.data.datasets.digits.digits", dataclasses.replace(digits, **fields))
    with violates(rule, line):
        check_dataset("digits", rules=[rule])


def test_every_rule_has_a_broken_example():
    assert {*IN_MEMORY, *READ} == {*KIT.rules}


def test_samples_in_memory_meet_all_rules():
    samples = [(image, label) for image, label in zip(DATA.images, DATA.labels.tolist(), strict=True)]
    check_dataset(pfl.from_samples(samples))


def test_all_violated_rules_are_reported_and_none_after_files_that_cannot_be_read(tmp_path):
    with pytest.raises(Violations) as caught:
        check_dataset(changed(columns={"age": DATA.labels[1:]}, mean=(float("nan"),)))
    assert list(caught.value.lines) == ["columns", "simulation"]
    with pytest.raises(Violations) as caught:
        check_dataset(tmp_path / "photos.zip")
    assert list(caught.value.lines) == ["reading"]


def test_an_unknown_rule_is_no_violation():
    with pytest.raises(InvalidInput, match="did you mean 'samples'"):
        check_dataset(DATA, rules=["sample"])
