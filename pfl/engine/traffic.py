"""Traffic of one round: scalars sent between the server and the participants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pfl.engine.mixing import Average, Dense, Identity, Matrix, Sum

if TYPE_CHECKING:
    from torch import Tensor


class Traffic:
    """Scalars sent down to all participants and up by them in one round.

    A tensor that is used twice in a round counts once. A count by the method (`Server.count`) replaces the
    engine's under the same name.
    """

    def __init__(self) -> None:
        self._counted: dict[str, tuple[int, int]] = {}
        self._overrides: dict[str, tuple[int, int]] = {}

    def add(self, name: str, down: int = 0, up: int = 0) -> None:
        """Count the scalars of a tensor."""
        before_down, before_up = self._counted.get(name, (0, 0))
        self._counted[name] = max(before_down, down), max(before_up, up)

    def add_mixing(self, name: str, matrix: Matrix | Tensor, size: int, participants: int) -> None:
        """Count one of the clients' tensors, of ``size`` scalars, if ``matrix`` moves or replaces it."""
        if isinstance(matrix, Identity):
            return
        if isinstance(matrix, Sum):
            for _, term in matrix.terms:
                self.add_mixing(name, term, size, participants)
            return
        down = up = participants
        if isinstance(matrix, Dense) and matrix.downloads is not None:
            down = matrix.downloads
        elif isinstance(matrix, Average) and matrix.sources is not None:
            up = len(matrix.sources)
        elif not isinstance(matrix, Matrix):  # a value that the server computed
            up = 0
        self.add(name, down * size, up * size)

    def override(self, name: str, down: int, up: int) -> None:
        """Count traffic that the engine cannot see, or counts wrongly."""
        self._overrides[name] = down, up

    def down(self, name: str) -> int:
        """Scalars sent down under a name."""
        return (self._counted | self._overrides).get(name, (0, 0))[0]

    @property
    def total(self) -> tuple[int, int]:
        """Scalars down and up."""
        down, up = zip((0, 0), *(self._counted | self._overrides).values(), strict=True)
        return sum(down), sum(up)


class Uploads(Mapping[str, "Tensor"]):
    """The participants' trained tensors as the server reads them: name to (K, *shape).

    Reading a tensor counts it as uploaded by every participant.
    """

    def __init__(self, trained: Mapping[str, Tensor], traffic: Traffic):
        self._trained = trained
        self._traffic = traffic

    def __getitem__(self, name: str) -> Tensor:
        tensor = self._trained[name]
        self._traffic.add(name, up=tensor.numel())
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._trained)

    def __len__(self) -> int:
        return len(self._trained)
