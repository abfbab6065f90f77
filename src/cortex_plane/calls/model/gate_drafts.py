"""What agents that run elsewhere say to gates, and what they are told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any
from uuid import UUID

from pydantic import Field, StringConstraints
from pydantic.dataclasses import dataclass as draft

from cortex_plane.calls.model.calls import OutcomeDraft
from cortex_plane.kernel.fields import DRAFT, JsonObject, Name

CallName = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[a-f0-9]+$")]


@draft(config=DRAFT, frozen=True, kw_only=True)
class AnswerDraft:
    """Answers to the questions of one gate."""

    gate: Annotated[Name, Field(description="Its id, or `atlas/id` where two atlases have the same.")]
    answers: JsonObject
    """By the ids of the questions."""
    call: CallName | None = None
    """Which call it is about, where the gate stops several: as its questions name it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerReceipt:
    """What became of answers."""

    gate: str
    passed: bool
    next: str
    """What to do now."""
    faults: dict[str, str] = field(default_factory=dict)
    """By question: what is wrong."""
    warnings: list[str] = field(default_factory=list)
    questions: list[dict[str, Any]] = field(default_factory=list)
    """What still waits for an answer."""
    shut: bool = False
    """The gate takes no more answers."""


@draft(config=DRAFT, frozen=True, kw_only=True)
class ReportDraft:
    """What became of a call that was executed under a resolution."""

    call: UUID
    outcome: OutcomeDraft
