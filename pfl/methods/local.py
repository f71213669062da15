"""Local training: every client trains alone, nothing is sent."""

from __future__ import annotations

from dataclasses import dataclass

from pfl.engine.method import Method


@dataclass(frozen=True)
class Local(Method):
    """The participants of a round train their own models; all groups are personal."""

    paper = "baseline of all five papers"
