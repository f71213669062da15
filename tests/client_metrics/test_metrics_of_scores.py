"""The built-in metrics on known scores, held against scikit-learn or numbers computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

from pfl.client_metrics import CLIENT_METRICS

rng = np.random.default_rng(0)
LABELS = rng.integers(0, 4, 60)
SCORES = rng.normal(size=(60, 4)) + 1.5 * np.eye(4)[LABELS]
SOFTMAX = np.exp(SCORES) / np.exp(SCORES).sum(1, keepdims=True)


def test_auroc_is_one_against_the_rest():
    expected = sklearn_metrics.roc_auc_score(LABELS, SOFTMAX, multi_class="ovr", average="macro")
    assert CLIENT_METRICS["auroc"](SCORES, LABELS) == pytest.approx(expected, abs=1e-12)


def test_auroc_is_over_the_classes_that_occur():
    two = LABELS < 2
    pairs = [sklearn_metrics.roc_auc_score(LABELS[two] == label, SOFTMAX[two, label]) for label in (0, 1)]
    assert CLIENT_METRICS["auroc"](SCORES[two], LABELS[two]) == pytest.approx(np.mean(pairs), abs=1e-12)


def test_auroc_of_a_single_class_is_not_defined():
    assert math.isnan(CLIENT_METRICS["auroc"](SCORES[LABELS == 1], LABELS[LABELS == 1]))


def test_f1_recall_and_confusion_are_those_of_scikit_learn():
    report = sklearn_metrics.classification_report(LABELS, SCORES.argmax(1), output_dict=True)
    assert CLIENT_METRICS["macro_f1"](SCORES, LABELS) == pytest.approx(report["macro avg"]["f1-score"])
    recalls = [report[str(number)]["recall"] for number in range(4)]
    assert CLIENT_METRICS["recall"](SCORES, LABELS) == pytest.approx(recalls)
    matrix = sklearn_metrics.confusion_matrix(LABELS, SCORES.argmax(1))
    assert CLIENT_METRICS["confusion"](SCORES, LABELS).tolist() == matrix.tolist()


def test_a_class_without_samples_has_no_recall_and_an_empty_row():
    three = LABELS < 3
    assert np.isnan(CLIENT_METRICS["recall"](SCORES[three], LABELS[three])).tolist() == [False] * 3 + [True]
    assert CLIENT_METRICS["confusion"](SCORES[three], LABELS[three])[3].tolist() == [0] * 4


def test_the_calibration_error_is_the_gap_of_each_bin_by_its_samples():
    certain = np.array([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6], [0.4, 0.6]])
    labels = np.array([0, 1, 1, 1])  # half of those of confidence 0.9 are right, and all of 0.6
    assert CLIENT_METRICS["ece"](certain, labels) == pytest.approx((0.4 + 0.4) / 2)


def test_scores_that_are_no_probabilities_become_some():
    assert CLIENT_METRICS["ece"](SCORES, LABELS) == pytest.approx(CLIENT_METRICS["ece"](SOFTMAX, LABELS))
    assert CLIENT_METRICS["auroc"](SCORES, LABELS) == pytest.approx(CLIENT_METRICS["auroc"](SOFTMAX, LABELS))


def test_a_class_that_cannot_be_predicted_has_no_probability():
    scores = np.where(np.arange(4) == 3, -np.inf, SCORES)
    for name in ("auroc", "ece", "macro_f1"):
        assert 0 <= CLIENT_METRICS[name](scores, LABELS) <= 1
