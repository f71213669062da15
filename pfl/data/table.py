"""`from_table` makes a data set from the rows of a table: CSV, Parquet or a pandas data frame."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pfl.core.errors import InvalidInput, Missing, unknown_name
from pfl.core.text import first_line
from pfl.data.arrays import from_arrays

if TYPE_CHECKING:
    from pfl.data.dataset import Dataset

MOST_CATEGORIES = 100
"""Different texts in a column of features; a column with more of them is regarded as a mistake."""


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
    alphabetical order; a truth value is 0 or 1.

    Args:
        table: a path that ends in .csv or .parquet, or a pandas data frame, for example of a CSV file with
            semicolons. Parquet needs pyarrow.
        label: the column with the class of each row, integers from 0 or names.
        columns: integers or texts that are no features, for the partition rule ``by``, such as the school of
            a student.
        drop: columns that are not used.
        name: of the data set; by default that of the file.

    Raises:
        InvalidInput: the table cannot be read, a column does not exist or two have one name, a value is
            missing or no number, or the labels are real numbers.
    """
    frame = _frame(table)
    known = [str(column) for column in frame.columns]
    for column, count in Counter(known).items():
        if count > 1:
            raise InvalidInput("table", column, "columns with different names; this one occurs twice")
    frame = frame.set_axis(known, axis=1)
    label = str(label)
    for parameter, names in (("label", [label]), ("columns", columns), ("drop", drop)):
        if isinstance(names, str):
            raise InvalidInput(parameter, names, "a list of names of columns")
        for column in names:
            if column not in known:
                raise unknown_name(parameter, column, known)
    features = [column for column in known if column not in (label, *columns, *drop)]
    if not features:
        raise InvalidInput("table", ", ".join(known), "one or more columns of features")
    for column in (label, *columns, *features):
        if (missing := frame[column].isna()).any():
            accepted = "a value in each row; fill or drop missing values first"
            raise InvalidInput("table", f"{column} of row {int(missing.to_numpy().argmax())}", accepted)
    if frame[label].dtype.kind == "f" and (frame[label] % 1 != 0).any():
        raise InvalidInput("label", f"{label} with real numbers", "a column of classes, integers or names")
    return from_arrays(
        np.concatenate([_encoded(frame[column]) for column in features], axis=1),
        _plain(frame[label]),
        columns={column: _plain(frame[column]) for column in columns},
        name=name or (Path(table).stem if isinstance(table, str | Path) else "table"),
    )


def _frame(table: Any) -> Any:
    try:
        import pandas as pd
    except ModuleNotFoundError:
        raise Missing("table", "pandas is not installed", "pandas (pip install pandas)") from None
    if isinstance(table, pd.DataFrame):
        return table
    readers = {".csv": _csv, ".parquet": pd.read_parquet}
    suffix = Path(table).suffix if isinstance(table, str | Path) else ""
    if suffix not in readers:
        raise InvalidInput("table", table, "a path that ends in .csv or .parquet, or a pandas data frame")
    path = Path(table).expanduser()
    if not path.exists():
        raise InvalidInput("table", str(table), "an existing file")
    try:
        return readers[suffix](path)
    except Exception as error:  # parsers raise many types of errors
        accepted = f"a table that pandas reads without options, or a data frame ({first_line(error)})"
        raise InvalidInput("table", str(table), accepted) from error


def _csv(path: Path) -> Any:
    """The rows of a CSV file, under the names of its first line: pandas renames those that occur twice."""
    import pandas as pd

    frame = pd.read_csv(path)
    names = pd.read_csv(path, header=None, nrows=1, dtype=str).iloc[0].to_numpy()
    return frame.set_axis(np.where(pd.isna(names), frame.columns, names), axis=1)


def _plain(values: Any) -> np.ndarray:
    """Integers, or texts (N,)."""
    plain: np.ndarray = (
        values.to_numpy() if values.dtype.kind in "iu" else values.astype(str).to_numpy(np.str_)
    )
    return plain


def _encoded(values: Any) -> np.ndarray:
    """A column's features (N, f), float32."""
    if values.dtype.kind in "biuf":
        numbers: np.ndarray = values.to_numpy(np.float32)
        return numbers[:, None]
    texts = values.astype(str).to_numpy(np.str_)
    categories = np.unique(texts)
    if len(categories) > MOST_CATEGORIES:
        accepted = f"a feature with at most {MOST_CATEGORIES} different texts; name it in columns or drop"
        raise InvalidInput("table", f"{values.name}, {len(categories)} texts", accepted)
    encoded: np.ndarray = (texts[:, None] == categories).astype(np.float32)
    return encoded
