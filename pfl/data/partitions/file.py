"""Index lists from a JSON file in the format of pfl, FL-bench, NIID-Bench, PFLlib or LEAF."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from pfl.core.errors import InvalidInput
from pfl.core.files import expanded, parse_json
from pfl.core.rng import generator
from pfl.core.text import listed
from pfl.data.dataset import Dataset
from pfl.data.rule import Rule, Split, random_split, split, text_option

TEST = 0.25
"""Share of a client's samples that forms its test set if the file does not specify it."""

Part = Literal["train", "test", "all"]
OWN: tuple[Part, ...] = ("train", "test")
LONGEST = 200
"""Maximum length of a client's name."""

SIZES = "Size of samples for labels in clients"
"""PFLlib's key of the clients' label counts: [[label, number], ...] for each client."""


class FileContent(NamedTuple):
    """The content of a file, by client name.

    Attributes:
        indices: lists of pooled indices: ``train`` and ``test``, or ``all`` if the file does not split them.
        counts: instead of indices, the number of samples of each label.
        note: what the file does not specify, and how it was decided.
    """

    indices: dict[str, dict[Part, list[int]]]
    counts: dict[str, dict[int, int]]
    note: str = ""


@dataclass(frozen=True)
class File(Rule):
    """The indices refer to the pooled images: the training set first, each split in the order of its source.

    Clients are in numerical order if all their names are numbers, otherwise in the order of the file. What
    other programs' files omit is drawn with the partition's seed. For NIID-Bench, these are the test samples
    (25 %, stratified). PFLlib and LEAF only count the samples of each label, so all samples are drawn, 25 %
    of them for testing (not stratified, as in PFLlib).
    """

    argument: ClassVar[str | None] = "path"
    commas_in_argument: ClassVar[bool] = True
    pool: ClassVar[str] = "as listed"
    clients_from_data: ClassVar[bool] = True

    path: str = text_option("", "the JSON file")

    def check(self, clients: int | None, samples: int | None = None, classes: int | None = None) -> None:
        """Raise `InvalidInput` unless the file lists distinct indices for ``clients`` clients."""
        super().check(clients, samples, classes)
        self._content(clients, samples)

    def divide(self, dataset: Dataset, clients: int | None, notes: list[str]) -> Split:
        content = self._content(clients, len(dataset.labels))
        names = _in_order(content.counts or content.indices)
        if names != [str(client) for client in range(len(names))]:
            notes.append(f"clients: {', '.join(names)}")
        if content.note:
            notes.append(content.note)
        if content.counts:
            return random_split(
                self._drawn(dataset, [content.counts[name] for name in names]), TEST, self.seed
            )
        lists = [content.indices[name] for name in names]
        if "all" in lists[0]:
            own = [np.array(parts["all"], np.int64) for parts in lists]
            return split(own, dataset.labels, TEST, self.seed, "split")
        train, test = ([np.array(parts[part], np.int64) for parts in lists] for part in OWN)
        return train, test

    def _drawn(self, dataset: Dataset, counts: Sequence[Mapping[int, int]]) -> list[np.ndarray]:
        """Random samples for each client, with the number of each label from ``counts``."""
        rng = generator(self.seed, "partition")
        needed = sum(map(Counter, counts), Counter[int]())
        pools = {}
        for label in sorted(needed):
            (members,) = np.nonzero(dataset.labels == label)
            if needed[label] > len(members):
                accepted = f"at most {len(members)}, as many as {dataset.name} has"
                raise self._wrong(f"{needed[label]} samples of label {label}", accepted)
            pools[label] = rng.permutation(members)
        drawn: list[list[np.ndarray]] = [[] for _ in counts]
        for own, parts in zip(counts, drawn, strict=True):
            for label, number in own.items():
                taken, pools[label] = np.split(pools[label], [number])
                parts.append(taken)
        return [np.concatenate(parts) for parts in drawn]

    def _content(self, clients: int | None, samples: int | None) -> FileContent:
        """The content of the file, checked."""
        document = self._document()
        read = next((read for key, read in self._readers().items() if key in document), self._own)
        content = read(document)
        names = content.counts or content.indices
        if not names:
            raise self._wrong("a list of no clients", "at least one client")
        if clients not in (None, len(names)):
            raise InvalidInput("clients", clients, f"{len(names)}, the number of clients in {self.path}")
        if long := next((name for name in names if len(name) > LONGEST), None):
            raise self._wrong(f"client {long[:20]}…", f"names of at most {LONGEST} letters")
        if all(name.isdecimal() for name in names) and len(set(map(int, names))) < len(names):
            twice, _ = Counter(map(int, names)).most_common(1)[0]
            raise self._wrong(f"client {twice}", "each client once")
        self._check_indices(content.indices, samples)
        # The key of a run contains the lists and not the seed, which a held-out split would follow.
        if self.seed and any("train" in parts for parts in content.indices.values()):
            raise InvalidInput("seed", self.seed, f"0, as {self.path} lists training and test samples")
        for name, counts in content.counts.items():
            if sum(counts.values()) < 2:
                raise self._wrong(f"client {name}", "at least two samples, one of them for testing")
        return content

    def _check_indices(self, indices: dict[str, dict[Part, list[int]]], samples: int | None) -> None:
        used: dict[int, str] = {}
        for name in _in_order(indices):
            for part, listed_indices in indices[name].items():
                where = f"client {name}" if part == "all" else f"client {name}, {part}"
                for index in listed_indices:
                    if index < 0 or (samples is not None and index >= samples):
                        last = "non-negative number" if samples is None else f"number in [0, {samples - 1}]"
                        raise self._wrong(f"index {index} ({where})", f"a {last}")
                    if index in used:
                        accepted = f"an index that occurs once; it is also in {used[index]}"
                        raise self._wrong(f"index {index} ({where})", accepted)
                    used[index] = where

    def _document(self) -> dict[str, Any]:
        path = expanded(self.path, "partition")
        try:
            document = parse_json(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise self._wrong(self.path, f"a file that can be read ({error.strerror})") from None
        except (ValueError, RecursionError) as error:
            raise self._wrong(self.path, f"JSON ({error})") from None
        if not isinstance(document, dict) or not document:
            raise self._wrong(self.path, '{client: {"train": [...], "test": [...]}, ...}')
        return document

    def _readers(self) -> dict[str, Callable[[dict[str, Any]], FileContent]]:
        """The readers of other programs' files, by the keys that identify these."""
        return {
            "data_indices": self._fl_bench,
            "separation": self._fl_bench,
            SIZES: self._pfllib,
            "num_clients": self._pfllib,
            "user_data": self._leaf,
            "users": self._leaf,
        }

    def _own(self, document: dict[str, Any]) -> FileContent:
        """{client: {"train": [...], "test": [...]}}, or NIID-Bench's net_dataidx_map, {client: [...]}."""
        indices = {name: self._parts(f"client {name}", lists) for name, lists in document.items()}
        divided = {name for name, parts in indices.items() if "all" not in parts}
        if divided and len(divided) < len(indices):
            name = next(name for name in indices if name not in divided)
            raise self._wrong(f"client {name}", '{"train": [...], "test": [...]}, as other clients have')
        note = f"a list per client, as in NIID-Bench: {TEST:.0%} of its samples are for testing"
        return FileContent(indices, {}, "" if divided else note)

    def _fl_bench(self, document: dict[str, Any]) -> FileContent:
        """FL-bench's partition: data_indices, a list of {"train": [...], "val": [], "test": [...]}."""
        clients = self._value(document, "data_indices", list, "FL-bench's list of the clients' indices")
        indices = {}
        for client, lists in enumerate(clients):
            empty = isinstance(lists, dict) and lists.get("val") == []
            own = {part: lists[part] for part in lists if part != "val"} if empty else lists
            indices[str(client)] = self._parts(f"data_indices of client {client}", own)
        if any("all" in parts for parts in indices.values()):
            raise self._wrong("data_indices", 'a list of {"train": [...], "test": [...]}')
        return FileContent(indices, {})

    def _pfllib(self, document: dict[str, Any]) -> FileContent:
        """PFLlib's config.json, which states each client's label counts."""
        clients = self._value(document, SIZES, list, "PFLlib's numbers of samples of each label")
        counts = {}
        for client, pairs in enumerate(clients):
            holds = (
                isinstance(pairs, list)
                and all(isinstance(pair, list) and len(pair) == 2 for pair in pairs)
                and all(type(number) is int and number >= 0 for pair in pairs for number in pair)
                and len({label for label, _ in pairs}) == len(pairs)
            )
            if not holds:
                raise self._wrong(f"client {client}", "a list of [label, number], each label once")
            counts[str(client)] = {label: number for label, number in pairs if number}
        if document.get("num_clients", len(counts)) != len(counts):
            raise self._wrong(f"num_clients {document['num_clients']}", f"{len(counts)}, as in {SIZES!r}")
        return FileContent({}, counts, self._drawn_note("PFLlib's"))

    def _leaf(self, document: dict[str, Any]) -> FileContent:
        """LEAF's data: user_data, {user: {"x": [...], "y": [label, ...]}}; only the labels are used."""
        data = self._value(document, "user_data", dict, "LEAF's data of each user")
        users = self._value(document, "users", list, "LEAF's list of users")
        if not users or sorted(map(str, users)) != sorted(data):
            raise self._wrong("users", "the names in user_data, at least one and each once")
        counts = {}
        for name, values in data.items():
            labels = values.get("y") if isinstance(values, dict) else None
            if not isinstance(labels, list) or not all(type(label) is int and label >= 0 for label in labels):
                raise self._wrong(f"user {name}", 'a key "y" with a list of labels')
            counts[name] = dict(Counter(labels))
        sizes = [len(data[str(name)]["y"]) for name in users]
        if document.get("num_samples", sizes) != sizes:
            raise self._wrong("num_samples", "the numbers of labels in user_data, in the order of users")
        return FileContent({}, counts, self._drawn_note("LEAF's"))

    def _drawn_note(self, whose: str) -> str:
        return (
            f"{whose} file has labels and no indices: samples of these labels are drawn with "
            f"seed={self.seed}, {TEST:.0%} of each client's for testing"
        )

    def _value(self, document: dict[str, Any], key: str, kind: type, about: str) -> Any:
        if key not in document:
            raise self._wrong(f"{listed(list(document))} in {self.path}", f"a key {key!r} as well, {about}")
        if not isinstance(document[key], kind):
            raise self._wrong(key, f"{about}, a JSON {'array' if kind is list else 'object'}")
        return document[key]

    def _parts(self, where: str, lists: object) -> dict[Part, list[int]]:
        """The index lists of a client."""
        if isinstance(lists, list):
            parts: dict[Part, list[int]] = {"all": lists}
        elif isinstance(lists, dict):
            for key in (*OWN, *lists):
                if key not in lists or key not in OWN:
                    kind = "missing" if key in OWN else "unknown"
                    raise self._wrong(f"{where}, {kind} key {key!r}", '{"train": [...], "test": [...]}')
            parts = {part: lists[part] for part in OWN}
        else:
            raise self._wrong(where, '{"train": [...], "test": [...]}')
        least = 2 if "all" in parts else 1
        for part, indices in parts.items():
            place = where if part == "all" else f"{where}, {part}"
            if not isinstance(indices, list) or len(indices) < least:
                raise self._wrong(place, f"a list of at least {least} indices")
            wrong = [index for index in indices if type(index) is not int]
            if wrong:
                raise self._wrong(f"{place}: {wrong[0]!r}", "an integer")
        return parts

    def _wrong(self, value: str, accepted: str) -> InvalidInput:
        return InvalidInput("partition file", value, accepted)


def _in_order(clients: Mapping[str, object]) -> list[str]:
    """The names of the clients, in numerical order if all are numbers."""
    numbers = all(name.isdecimal() for name in clients)
    return sorted(clients, key=int) if numbers else list(clients)
