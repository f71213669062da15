"""A project's `CITATION.cff` in schema.org terms."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from pipeline.spec.yaml import parse

FILE = "CITATION.cff"


class Citation(NamedTuple):
    """How a project is cited; empty without the file."""

    title: str | None
    licence: str | None
    """SPDX identifier."""
    date: str | None
    """Release date, as YYYY-MM-DD."""
    code: str | None
    """URL of the repository."""
    authors: tuple[dict[str, Any], ...]
    """Entities of type Person or Organization."""

    @property
    def licence_address(self) -> str | None:
        return f"https://spdx.org/licenses/{self.licence}" if self.licence else None


def read_citation() -> Citation:
    """The citation of the project in the working directory."""
    content = parse(FILE) if Path(FILE).exists() else {}
    return Citation(
        content.get("title"),
        content.get("license"),
        str(content["date-released"]) if "date-released" in content else None,
        content.get("repository-code"),
        tuple(map(_entity, content.get("authors", ()))),
    )


def _entity(author: dict[str, Any]) -> dict[str, Any]:
    kind = "Organization" if "name" in author else "Person"
    names = (author.get(key, "") for key in ("name", "given-names", "family-names"))
    website = {"url": author["website"]} if "website" in author else {}
    return {"@type": kind, "name": " ".join(filter(None, names)), **website}
