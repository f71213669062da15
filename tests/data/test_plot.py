"""Pictures of partitions show what is in them and stay readable."""

from __future__ import annotations

import io
import re
from itertools import pairwise

import numpy as np
import pytest

from pfl.data.partition import make_partition
from pfl.data.plot import plot


@pytest.fixture
def data(labelled):
    return labelled(np.repeat(np.arange(10), 100))


def test_a_bubble_lies_at_its_client_and_class_and_its_area_is_the_number_of_samples(data):
    partition = make_partition("dirichlet:0.1", data, 20)
    _, below = plot(partition, data.labels, data.classes).axes
    counts = partition.class_counts(data.labels, 10)
    both = counts["train"] + counts["test"]
    bubbles = below.collections[0]
    drawn = np.zeros((20, 10))
    client, label = bubbles.get_offsets().astype(int).T
    drawn[client, label] = bubbles.get_sizes()
    np.testing.assert_allclose(drawn / drawn.max(), both / both.max())


def test_bars_are_the_training_and_test_samples(data):
    partition = make_partition("dirichlet:0.1", data, 20)
    above, _ = plot(partition, data.labels, data.classes).axes
    train, test = ([bar.get_height() for bar in bars] for bars in above.containers)
    assert train == partition.sizes.tolist()
    assert test == [len(indices) for indices in partition.test]


def test_of_thousands_of_clients_some_are_drawn_and_the_title_says_so(labelled):
    data = labelled(np.arange(8000) % 10, columns={"writer": np.arange(8000) // 4})
    figure = plot(make_partition("by:writer", data, None), data.labels, data.classes, title="Writers")
    assert figure.get_suptitle() == "Writers, 120 of 2000 clients"
    assert len(figure.axes[0].containers[0]) == 120


@pytest.mark.parametrize(("classes", "clients"), [(10, 5), (10, 100), (200, 100)])
def test_no_two_labels_overlap(classes, clients, labelled):
    data = labelled(np.repeat(np.arange(classes), 20_000 // classes))
    partition = make_partition("dirichlet:0.5", data, clients)
    figure = plot(partition, data.labels, [f"n{c:08}" for c in range(classes)])
    figure.draw_without_rendering()
    _, below = figure.axes
    for axis in (below.xaxis, below.yaxis):
        boxes = [label.get_window_extent() for label in axis.get_ticklabels()]
        assert len(boxes) >= 5
        assert not any(a.overlaps(b) for a, b in pairwise(boxes))


def test_dollar_signs_are_drawn_and_begin_no_formula(labelled):
    from matplotlib import rc_context

    data, classes = labelled(np.repeat(np.arange(3), 20)), [r"$\frac{$", "a$b$c", r"5\$"]
    buffer = io.StringIO()
    with rc_context({"svg.fonttype": "none"}):
        plot(make_partition("dirichlet:1", data, 4), data.labels, classes, title="$x$").savefig(
            buffer, format="svg"
        )
    drawn = re.findall(">([^<>]*)</text>", buffer.getvalue())
    assert {*classes, "$x$"} <= set(drawn)


def test_a_large_picture_is_a_small_file(labelled):
    data = labelled(np.repeat(np.arange(200), 100))
    buffer = io.BytesIO()
    plot(make_partition("dirichlet:0.5", data, 100), data.labels, data.classes).savefig(buffer, format="svg")
    assert len(buffer.getvalue()) < 1_000_000
