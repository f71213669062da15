"""`from_table` makes a data set from the rows of a table: CSV, Parquet or a pandas data frame."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pfl.core.errors import InvalidInput, Missing, check_names
from pfl.core.files import expanded
from pfl.core.text import first_line
from pfl.data.arrays import from_arrays
from pfl.data.dataset import is_rounded_away

if TYPE_CHECKING:
    from pfl.data.dataset import Dataset

MOST_CATEGORIES = 100
"""Different texts in a column of features; a column with more of them is regarded as a mistake."""

_NUMBER = re.compile(
    r"\s*[+\-\u2212]?(\d{1,3}([.,'\s]\d{3})+|\d+|(?=[.,]\d))([.,]\d*)?(e[+-]?\d+)?\s*%?\s*", re.IGNORECASE
)
"""A number in one of the notations of the world, such as 1,5 or 1 234.5 or 20%."""


def from_table(
    table: Any, label: str, columns: Sequence[str] = (), drop: Sequence[str] = (), name: str | None = None
) -> Dataset:
    """Make a data set from a table with a sample in each row.

    >>> import pandas as pd
    >>> table = pd.DataFrame({"hours": [1, 7, 2, 9], "passed": ["no", "yes"] * 2, "school": [1, 1, 2, 2]})
    >>> data = from_table(table, label="passed", columns=["school"])
    >>> data.classes, data.shape, list(data.columns)
    (('no', 'yes'), (1,), ['school'])

    All columns but those named here are features, as float32. Text is one-hot encoded, with its values in
    alphabetical order; a truth value is 0 or 1. A column of pandas' dtype category is text, too; any other
    column of texts is refused if most of them are numbers, such as 1,5. Integers of a CSV file's label and
    ``columns`` are texts if one of them is written in another way, such as 01.

    Args:
        table: a path that ends in .csv or .parquet, or a pandas data frame, for example of a CSV file with
            semicolons. Parquet needs pyarrow.
        label: the column with the class of each row, integers from 0 or names.
        columns: integers or texts that are no features, for the partition rule ``by``, such as the school of
            a student.
        drop: columns that are not used.
        name: of the data set; by default that of the file.

    Raises:
        InvalidInput: the table cannot be read, a column does not exist or two have one name, a feature has
            no name, a value is missing, is neither a number nor a text, such as a date, or is no number that
            float32 has, the labels are real numbers, also if pandas reads them as texts, or a feature's
            differences are too small beside its mean for float32.
    """
    for parameter, names in (("columns", columns), ("drop", drop)):
        if isinstance(names, str) or not isinstance(names, Iterable):
            raise InvalidInput(parameter, names, "a list of names of columns")
    label, columns, drop = str(label), list(map(str, columns)), list(map(str, drop))
    frame = _frame(table, {label, *columns})
    known = [str(column) for column in frame.columns]
    for column, count in Counter(known).items():
        if count > 1:
            raise InvalidInput("table", column, "columns with different names; this one occurs twice")
    frame = frame.set_axis(known, axis=1).infer_objects()  # a frame of mixed NumPy values has objects only
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
    """Check what does not depend on the type of a feature."""
    if frame.empty:
        raise InvalidInput("table", "no rows", "one or more rows")
    for column in features:
        if re.fullmatch(r"Unnamed: \d+", column):  # pandas' name, above all for the index that to_csv writes
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
    """The rows; ``names`` are the columns that are no features."""
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
    """The rows of a CSV file, under the names of its first line: pandas renames those that occur twice.

    The columns ``names`` keep different texts apart that are one integer, such as 1 and 01.
    """
    import pandas as pd

    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)  # rows with more values than there are names
        # low_memory: else a value's type depends on its place in the file; index_col: no value lacks a name
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
    """Integers, or texts (N,)."""
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
            accepted = "a finite number that float32 has"
            raise InvalidInput("table", f"{values.name} of row {row}, {numbers[row]:g}", accepted)
        mean, std = numbers.mean(), numbers.std()
        if is_rounded_away(mean, std):
            given = f"{values.name}, with mean {mean:.10g} and standard deviation {std:.3g},"
            accepted = (
                "differences that float32 keeps; subtract the mean first, or name it in columns or drop"
            )
            raise InvalidInput("table", given, accepted)
        return numbers.astype(np.float32)[:, None]
    if values.dtype.name != "category":
        for row, value in enumerate(values):
            if not isinstance(value, str | int | float):
                accepted = "numbers, truth values or texts; convert it first, or name it in columns or drop"
                raise InvalidInput("table", f"{values.name} of row {row}, {type(value).__name__},", accepted)
    if unread := _unread(values, words=True):
        accepted = (
            "a number like 1.5, as most of the column are numbers; pandas.read_csv has the options decimal, "
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
    """The first row, with its text, of a column whose texts are numbers for a reader, but not for pandas;
    empty if there is none, or most of the column are no numbers.

    Texts that pandas would have read as numbers, such as postcodes, are texts on purpose; so is 3+ or 10-19,
    and all that has pandas' dtype category.

    Args:
        words: whether a text without a digit counts, too, as a missing number.
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
