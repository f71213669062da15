"""A data set that breaks a rule of `check_dataset` is told so."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

import pfl
from pfl.core.errors import InvalidInput
from pfl.data import stored
from pfl.data.cache import Content
from pfl.data.datasets.digits import digits
from pfl.data.definition import RemoteFile
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
    "labels": (changed(labels=DATA.labels + 1), "the labels are 1 to 3; expected 0 to 2"),
    "names": (changed(classes=("a", "b", "a")), ".*'a' occurs twice"),
    "training_set": (changed(n_train=61), r"n_train is 61; expected an integer in \[1, 60\]"),
    "columns": (changed(columns={"age": np.ones(60)}), r"age is float64 \(60,\); expected integers or"),
    "checksum": (changed(content="0" * 64), "content is not the checksum of the images and labels"),
    "statistics": (changed(mean=(0.5,)), r"mean is \(0.5,\); expected \(0"),
    "notes": (changed(classes=("a", "b", "c", "d")), "no note says .*1 class of 4 without images: 'd'"),
    "simulation": (changed(mean=(float("nan"),)), "the training losses are nan"),
}


@pytest.mark.parametrize("rule", IN_MEMORY)
def test_a_broken_data_set_is_told_so_in_one_line(rule):
    dataset, line = IN_MEMORY[rule]
    with violates(rule, line):
        check_dataset(dataset, rules=[rule])


READ = {
    "sources": ({"files": (RemoteFile("http://example.org/images.zip"),)}, "http://.* has no md5"),
    "reading": ({"read": other_images}, "the images or labels differ when they are decoded again"),
    "definition": ({"samples": 1800}, "samples is 1797; the definition says 1800"),
}


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("rule", READ)
def test_a_broken_definition_is_told_so_in_one_line(rule, monkeypatch):
    fields, line = READ[rule]
    monkeypatch.setattr("pfl.data.datasets.digits.digits", dataclasses.replace(digits, **fields))
    with violates(rule, line):
        check_dataset("digits", rules=[rule])


@pytest.mark.usefixtures("own_cache")
def test_images_that_are_written_through_to_the_cache_are_told(monkeypatch):
    read = stored.read

    def shared(folder):
        fields, meta = read(folder)
        shape = fields["images"].shape
        return {**fields, "images": np.memmap(folder / "images.bin", np.uint8, "r+", shape=shape)}, meta

    monkeypatch.setattr(stored, "read", shared)
    with pytest.raises(Violations, match="mapping: the cached images have changed"):
        check_dataset("digits", rules=["mapping"])


def test_every_rule_has_a_broken_example():
    assert {*IN_MEMORY, *READ, "mapping"} == {*KIT.rules}


def test_samples_in_memory_meet_all_rules():
    samples = [(image, label) for image, label in zip(DATA.images, DATA.labels.tolist(), strict=True)]
    check_dataset(pfl.from_samples(samples))


def test_all_violated_rules_are_reported_and_none_after_files_that_cannot_be_read(tmp_path):
    with pytest.raises(Violations) as caught:
        check_dataset(changed(n_train=0, mean=(0.5,)), rules=["images", "training_set", "statistics"])
    assert list(caught.value.lines) == ["training_set", "statistics"]
    with pytest.raises(Violations) as caught:
        check_dataset(tmp_path / "photos.zip")
    assert list(caught.value.lines) == ["reading"]


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"labels": DATA.labels[1:]}, r"labels: the labels are int64 \(59,\); expected int64 \(60,\)"),
        ({"columns": {"age": DATA.labels[1:]}}, r"columns: age is int64 \(59,\); expected integers or .*60"),
    ],
)
def test_arrays_of_another_shape_are_named(fields, line):
    with pytest.raises(Violations, match=line):
        check_dataset(changed(**fields))


def test_an_unknown_rule_is_no_violation():
    with pytest.raises(InvalidInput, match="did you mean 'statistics'"):
        check_dataset(DATA, rules=["statistic"])
