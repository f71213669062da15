"""The fingerprints of the code for the configurations of a table (`pfl.run.fingerprint`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import product
from typing import Any

from pfl.core.config import Config
from pfl.core.errors import InvalidInput
from pfl.data.dataset import check_dataset, load
from pfl.models import Shape
from pfl.run.fingerprint import ON, name_of, question_of
from pfl.run.validation import of_record, validated
from pipeline.spec.cells import Cell
from pipeline.spec.search_space import searched, with_params


def named_behaviours(cells: Iterable[Cell]) -> dict[str, str]:
    """The fingerprints of the code for all configurations of the cells, by question."""
    asked = [(config, images(cell.dataset)) for cell in cells for config in _configurations(cell)]
    return dict(sorted((question_of(config, *data), name_of(config, *data)) for config, data in asked))


def is_current(config: Mapping[str, Any], dataset: str, name: str) -> bool:
    """Whether a record's fingerprint ``name`` is still that of the current code for its configuration."""
    try:
        known = of_record(config)
    except InvalidInput:  # an option, a method or a network that no longer exists
        return False
    try:
        return name_of(known, *images(dataset)) == name
    except InvalidInput:  # the images are missing, so this is unknown
        return True


@cache
def images(dataset: str) -> tuple[Shape, int]:
    """Shape and number of classes of a data set's images; a user's data set is read for this."""
    if definition := check_dataset(dataset):
        return definition.shape, definition.classes
    data = load(dataset)
    return data.shape, len(data.classes)


def _configurations(cell: Cell) -> Iterator[Config]:
    """The pinned configuration, and those of the search that differ from it in more than numeric options."""
    yield cell.config
    if not cell.search:
        return
    choices = {
        name: declared.search
        for name, declared in searched(cell.config, cell.search).items()
        if declared.search is not None and (declared.choices is not None or name in ON)
    }
    for values in product(*choices.values()):
        config = with_params(cell.config, dict(zip(choices, values, strict=True)))
        for validation, metrics in ((0.0, config.metrics), (cell.search.validation, ())):
            yield validated(dataclasses.replace(config, validation=validation, metrics=metrics))
