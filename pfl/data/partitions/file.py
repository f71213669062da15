"""Index lists from a JSON file {client: {"train": [...], "test": [...]}}."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from pfl.data.rule import Rule, Split, text_option
from pfl.errors import InvalidInput

if TYPE_CHECKING:
    from pfl.data.dataset import Dataset


@dataclass(frozen=True)
class File(Rule):
    """The indices refer to the pooled images: the training set first, each split in the order of its source.

    If all client names are numbers, clients are in numeric order, else in the order of the file.
    """

    argument: ClassVar[str | None] = "path"
    commas_in_argument: ClassVar[bool] = True
    pool: ClassVar[str] = "as listed"
    clients_from_data: ClassVar[bool] = True

    path: str = text_option("", "the JSON file")

    def check(self, clients: int | None, samples: int | None = None, classes: int | None = None) -> None:
        """Raise `InvalidInput` unless the file lists distinct indices for ``clients`` clients."""
        super().check(clients, samples, classes)
        self._lists(clients, samples)

    def divide(self, dataset: Dataset, clients: int | None, notes: list[str]) -> Split:
        lists = self._lists(clients, len(dataset.labels))
        if list(lists) != [str(client) for client in range(len(lists))]:
            notes.append(f"clients: {', '.join(lists)}")
        train, test = (
            [np.array(own[part], np.int64) for own in lists.values()] for part in ("train", "test")
        )
        return train, test

    def _lists(self, clients: int | None, samples: int | None) -> dict[str, dict[str, list[int]]]:
        content = self._content()
        if clients not in (None, len(content)):
            raise InvalidInput("clients", clients, f"{len(content)}, the number of clients in {self.path}")
        used: dict[int, str] = {}
        names = sorted(content, key=int) if all(name.isdecimal() for name in content) else content
        for name in names:
            for part in ("train", "test"):
                where = f"client {name}, {part}"
                for index in content[name][part]:
                    if index < 0 or (samples is not None and index >= samples):
                        last = (
                            "a non-negative number" if samples is None else f"a number in [0, {samples - 1}]"
                        )
                        raise InvalidInput("partition file", f"index {index} ({where})", last)
                    if index in used:
                        raise InvalidInput(
                            "partition file",
                            f"index {index} ({where})",
                            f"an index used once; {used[index]} has it",
                        )
                    used[index] = where
        return {name: content[name] for name in names}

    def _content(self) -> dict[str, dict[str, list[int]]]:
        try:
            content = json.loads(Path(self.path).expanduser().read_text(encoding="utf-8"))
        except OSError as error:
            raise InvalidInput(
                "partition file", self.path, f"a file that can be read ({error.strerror})"
            ) from None
        except (ValueError, RecursionError) as error:
            raise InvalidInput("partition file", self.path, f"JSON ({error})") from None
        if not isinstance(content, dict) or not content:
            raise InvalidInput("partition file", self.path, '{client: {"train": [...], "test": [...]}, ...}')
        for name, lists in content.items():
            if not (
                isinstance(lists, dict)
                and lists.keys() == {"train", "test"}
                and all(map(_is_list, lists.values()))
            ):
                accepted = '{"train": [...], "test": [...]}, two lists of integers with at least one each'
                raise InvalidInput("partition file", f"client {name}", accepted)
        return content


def _is_list(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(index) is int for index in value)
