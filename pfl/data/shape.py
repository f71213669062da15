"""Shapes of samples."""

from __future__ import annotations

from collections.abc import Iterable

Shape = tuple[int, ...]
"""Shape of a sample. An image has channels, height and width; a series has channels and time steps."""


class TokenShape(tuple[int, ...]):
    """Shape of a sample of integer tokens, such as words or bytes.

    Attributes:
        tokens: size of the vocabulary; a token is an integer in [0, tokens).
    """

    tokens: int

    def __new__(cls, sizes: Iterable[int], tokens: int) -> TokenShape:
        shape = super().__new__(cls, sizes)
        shape.tokens = tokens
        return shape

    def __getnewargs__(self) -> tuple[Shape, int]:
        return tuple(self), self.tokens


def described(shape: Shape) -> str:
    """For example "3x32x32", or "40 tokens below 128"."""
    size = "x".join(map(str, shape))
    return f"{size} tokens below {shape.tokens}" if isinstance(shape, TokenShape) else size
