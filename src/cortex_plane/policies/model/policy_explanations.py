"""Explanations: how a verdict came about, row by row."""

from __future__ import annotations

from dataclasses import dataclass

from cortex_plane.policies.model.authorization import PolicyVerdict
from cortex_plane.policies.model.policies import Level, PolicyDecision


@dataclass(frozen=True, kw_only=True, slots=True)
class Considered:
    """One row that the walk looked at."""

    level: Level
    name: str
    target: str
    effect: PolicyVerdict
    matched: bool
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Limited:
    """What a limit did."""

    level: Level
    name: str
    why: str
    changes: list[str]
    """Empty: it changed nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    version: str
    considered: list[Considered]
    decided_by: str
    """The row that the walk ended with, before limits."""
    limits: list[Limited]
    decision: PolicyDecision
    origins: dict[str, str]
    """Where each term came from."""
