"""`from_table` creates a data set from the rows of a table: CSV, Parquet or a pandas data frame."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pfl.core.errors import InvalidInput, Missing, check_names
from pfl.core.files import expanded
from pfl.core.text import first_line
from pfl.data.arrays import from_arrays
from pfl.data.dataset import Dataset, is_rounded_away

MOST_CATEGORIES = 100
"""Maximum number of different strings in a column of features; more are regarded as a mistake."""

_NUMBER = re.compile(
    r"\s*[+\-\u2212]?(\d{1,3}([.,'\s]\d{3})+|\d+|(?=[.,]\d))([.,]\d*)?(e[+-]?\d+)?\s*%?\s*", re.IGNORECASE
)
"""A number in any common notation, such as 1,5 or 1 234.5 or 20%."""


def from_table(
    table: Any, label: str, columns: Sequence[str] = (), drop: Sequence[str] = (), name: str | None = None
) -> Dataset:
    """Create a data set from a table with one sample per row.

    >>> import pandas as pd
    >>> table = pd.DataFrame({"hours": [1, 7, 2, 9], "passed": ["no", "yes"] * 2, "school": [1, 1, 2, 2]})
    >>> data = from_table(table, label="passed", columns=["school"])
    >>> data.classes, data.shape, list(data.columns)
    (('no', 'yes'), (1,), ['school'])

    All columns other than ``label``, ``columns`` and ``drop`` become float32 features. Strings, and columns
    of pandas' dtype category, are one-hot encoded in alphabetical order; booleans become 0 or 1. Any other
    column of strings is rejected if it is mostly numbers, some of which pandas cannot read, like 1,5. In a
    CSV file, integers in ``label`` and ``columns`` stay strings if any is written differently, like 01.

    Args:
        table: a path that ends in .csv or .parquet (which needs pyarrow), or a pandas data frame, for example
            of a CSV file with semicolons.
        label: the column with the class of each row, non-negative integers or names.
        columns: columns of integers or strings that are not features, for the partition rule ``by``, such as
            a student's school.
        drop: columns to ignore.
        name: name of the data set; by default that of the file.

    Raises:
        InvalidInput: the table cannot be read; a column is missing, unnamed or duplicated; a value is
            missing, is neither a number nor a string (such as a date), or is not finite in float32; the
            labels are real numbers, even as strings; or a feature varies too little around its mean for
            float32.
    """
    for parameter, names in (("columns", columns), ("drop", drop)):
        if isinstance(names, str) or not isinstance(names, Iterable):
            raise InvalidInput(parameter, names, "a list of names of columns")
    label, columns, drop = str(label), list(map(str, columns)), list(map(str, drop))
    frame = _frame(table, {label, *columns})
    known = [str(column) for column in frame.columns]
    for column, count in Counter(known).items():
        if count > 1:
            raise InvalidInput("table", column, f"columns with distinct names; {column!r} occurs twice")
    frame = frame.set_axis(known, axis=1).infer_objects()  # a mixed NumPy array gives object columns only
    for parameter, names in (("label", [label]), ("columns", columns), ("drop", drop)):
        check_names(parameter, names, known)
    if used := [column for column in drop if column in (label, *columns)]:
        raise InvalidInput("drop", used[0], "columns that are neither the label nor in columns")
    features = [column for column in known if column not in (label, *columns, *drop)]
    if not features:
        raise InvalidInput("table", ", ".join(known), "one or more columns of features")
    _check_values(frame, label, columns, features)
    return from_arrays(
        np.concatenate([_encoded(frame[column]) for column in features], axis=1),
        _plain(frame[label]),
        columns={column: _plain(frame[column]) for column in columns},
        name=name or (Path(table).stem if isinstance(table, str | Path) else "table"),
    )


def _check_values(frame: Any, label: str, columns: Sequence[str], features: Sequence[str]) -> None:
    """The checks that do not depend on the types of the features."""
    if frame.empty:
        raise InvalidInput("table", "no rows", "one or more rows")
    for column in features:
        if re.fullmatch(r"Unnamed: \d+", column):  # pandas' name, mostly for the index that to_csv writes
            accepted = "a name in the first line for each feature; name it in drop if it numbers the rows"
            raise InvalidInput("table", column, accepted)
    for column in (label, *columns, *features):
        if (missing := frame[column].isna()).any():
            accepted = (
                "a value in each row; fill or drop missing values first (pandas reads NA and None as such)"
            )
            raise InvalidInput("table", f"{column} of row {int(missing.to_numpy().argmax())}", accepted)
    for parameter, column in (("label", label), *(("columns", column) for column in columns)):
        if _is_real(frame[column]):
            raise InvalidInput(parameter, f"{column} with real numbers", "a column of integers or names")
    if unread := _unread(frame[label], words=False):
        accepted = "a column of classes, integers or names; texts with dtype category are names"
        raise InvalidInput("label", f"{label} of {unread},", accepted)


def _frame(table: Any, names: Collection[str]) -> Any:
    """The table as a data frame; ``names`` are its label and its ``columns``."""
    try:
        import pandas as pd
    except ModuleNotFoundError:
        raise Missing("table", "pandas is not installed", "pandas (pip install pandas)") from None
    if isinstance(table, pd.DataFrame):
        return table
    readers = {".csv": partial(_csv, names=names), ".parquet": pd.read_parquet}
    accepted = "a path that ends in .csv or .parquet, or a pandas data frame"
    if not isinstance(table, str | Path):
        raise InvalidInput("table", type(table).__name__, accepted)
    suffix = Path(table).suffix.lower()
    if suffix not in readers:
        raise InvalidInput("table", table, accepted)
    path = expanded(table, "table")
    if not path.exists():
        raise InvalidInput("table", str(table), "an existing file")
    try:
        return readers[suffix](path)
    except Exception as error:  # parsers raise many types of errors
        accepted = f"a table that pandas reads without options, or a data frame ({first_line(error)})"
        raise InvalidInput("table", str(table), accepted) from error


def _csv(path: Path, names: Collection[str]) -> Any:
    """The rows of a CSV file, with the names of its first line, as pandas renames duplicates.

    In the columns ``names``, different spellings of an integer, such as 1 and 01, stay distinct.
    """
    import pandas as pd

    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)  # rows with more values than columns
        # low_memory: otherwise chunks may differ in dtype; index_col: no column becomes the index
        frame = pd.read_csv(path, low_memory=False, index_col=False)
    texts = pd.read_csv(path, dtype=str, index_col=False, usecols=lambda name: name in names)
    for name in texts:
        if not _is_real(frame[name]) and (frame[name].astype(str) != texts[name]).any():
            frame[name] = texts[name]
    header = pd.read_csv(path, header=None, nrows=1, dtype=str).iloc[0].to_numpy()
    return frame.set_axis(np.where(pd.isna(header), frame.columns, header), axis=1)


def _is_real(values: Any) -> bool:
    return values.dtype.kind == "f" and bool((values % 1 != 0).any())


def _plain(values: Any) -> np.ndarray:
    """Integers or strings, (N,)."""
    plain: np.ndarray = (
        values.to_numpy() if values.dtype.kind in "iu" else values.astype(str).to_numpy(np.str_)
    )
    return plain


def _encoded(values: Any) -> np.ndarray:
    """A column's features (N, f), float32."""
    if values.dtype.kind in "biuf":
        numbers: np.ndarray = values.to_numpy(np.float64)
        if (wrong := ~(np.abs(numbers) <= np.finfo(np.float32).max)).any():
            row = int(wrong.argmax())
            accepted = "a number that is finite in float32"
            raise InvalidInput("table", f"{values.name} of row {row}, {numbers[row]:g}", accepted)
        mean, std = numbers.mean(), numbers.std()
        if is_rounded_away(mean, std):
            given = f"{values.name}, with mean {mean:.10g} and standard deviation {std:.3g},"
            accepted = "values that differ in float32; subtract the mean first, or name it in columns or drop"
            raise InvalidInput("table", given, accepted)
        return numbers.astype(np.float32)[:, None]
    if values.dtype.name != "category":
        for row, value in enumerate(values):
            if not isinstance(value, str | int | float):
                accepted = "numbers, truth values or texts; convert it first, or name it in columns or drop"
                raise InvalidInput("table", f"{values.name} of row {row}, {type(value).__name__},", accepted)
    if unread := _unread(values, words=True):
        accepted = (
            "a number such as 1.5, like most of the column; pandas.read_csv has the options decimal, "
            "thousands and na_values, and keeps texts with dtype category"
        )
        raise InvalidInput("table", f"{values.name} of {unread},", accepted)
    texts = values.astype(str).to_numpy(np.str_)
    categories = np.unique(texts)
    if len(categories) > MOST_CATEGORIES:
        accepted = f"a feature with at most {MOST_CATEGORIES} different texts; name it in columns or drop"
        raise InvalidInput("table", f"{values.name}, {len(categories)} texts", accepted)
    encoded: np.ndarray = (texts[:, None] == categories).astype(np.float32)
    return encoded


def _unread(values: Any, words: bool) -> str:
    """The first row, with its text, whose string is a number to people but not to pandas; empty if there is
    none, or if most of the column are not numbers.

    Strings that pandas could have read as numbers, such as postcodes, are intended as strings. So are 3+ and
    10-19, and everything of pandas' dtype category.

    Args:
        words: whether strings without a digit count as well, as missing numbers.
    """
    if values.dtype.kind in "biuf" or values.dtype.name == "category":
        return ""
    texts, rows, counts = np.unique(
        values.astype(str).to_numpy(np.str_), return_index=True, return_counts=True
    )
    numbers = [_NUMBER.fullmatch(text) is not None for text in texts]
    unread = {
        row: text
        for number, text, row in zip(numbers, texts.tolist(), rows.tolist(), strict=True)
        if (number and not _is_read(text)) or (words and not re.search(r"\d", text))
    }
    if unread and 2 * counts[numbers].sum() > counts.sum():
        return f"row {min(unread)}, {unread[min(unread)]!r}"
    return ""


def _is_read(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
