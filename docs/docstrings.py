"""A Griffe extension for the site: doctests in docstrings are code."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Doctests(griffe.Extension):
    """Puts every doctest into a fenced block."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for every object that has been read."""
        if obj.docstring:
            fenced = r"```python\n\g<0>\n```"
            obj.docstring.value = re.sub(r"^>>>.*(?:\n.+)*", fenced, obj.docstring.value, flags=re.M)
