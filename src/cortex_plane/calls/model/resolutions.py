"""Resolutions: what an agent may do now, and what it must know. Looking costs nothing; what runs is counted when it runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

from pydantic import Field
from pydantic.dataclasses import dataclass as draft

from cortex_plane.agents.model.tools import Risk
from cortex_plane.gates.model.gates import Limit
from cortex_plane.kernel.fields import DRAFT, JsonObject, Name, Note
from cortex_plane.policies.model.authorization import PolicyVerdict

DEFAULT_TTL_SECONDS = 300
MAX_TTL_SECONDS = 3600
MAX_ACTIONS = 1000
"""That a resolution lists."""


MAX_ASKS = 20
"""Gates that are named with one action."""


class ActionState(StrEnum):
    """What becomes of an action that is called now."""

    ALLOWED = "allowed"
    ASKS_FIRST = "asks_first"
    """It runs once somebody said what they are asked."""
    DENIED = "denied"


class Whom(StrEnum):
    """Who is asked first."""

    AGENT = "agent"
    PERSON = "person"


class ResolutionDecision(StrEnum):
    ALLOW = "allow"
    DENY = "deny"
    PARTIAL = "partial"
    REQUIRES_APPROVAL = "requires_approval"


@draft(config=DRAFT, frozen=True, kw_only=True)
class ResolutionRequest:
    """What an agent wants. With an action: about that one; without: about all that its atlases know."""

    goal: Note | None = None
    """In words; keyword gates read it."""
    request: (
        Annotated[Name, Field(description="What the agent asks its stewards for: a context's id, or a word.")]
        | None
    ) = None
    """Contexts that are told on demand, by id; gates that fire on request, by whatever they listen for."""
    action: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    arguments: JsonObject = Field(default_factory=dict)
    risk: Risk = Risk.MEDIUM
    ttl_seconds: Annotated[int, Field(strict=True, ge=1, le=MAX_TTL_SECONDS)] = DEFAULT_TTL_SECONDS


@dataclass(frozen=True, kw_only=True, slots=True)
class ActionAnswer:
    action: str
    state: ActionState
    verdict: PolicyVerdict
    """Of a call that is made now; where the agent is asked first, it is refused until then."""
    rule: str
    """Which gate, policy or capability did it."""
    reason: str
    risk: Risk
    whom: Whom | None = None
    asks: list[str] = field(default_factory=list)
    """The gates that ask first, by key, up to `MAX_ASKS`. None of them where a policy wants a person."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Permissions:
    """What is allowed in a session now, and what did it."""

    actions: list[ActionAnswer]
    capabilities: list[dict[str, Any]]
    """Each with `id`, `open`, `by` and `at`."""
    contexts: list[dict[str, Any]]
    guidance: list[dict[str, Any]]
    waiting: list[dict[str, Any]]
    """Gates that wait for an answer."""
    passed: dict[str, datetime]
    shut: list[dict[str, Any]]
    asking: list[dict[str, Any]] = field(default_factory=list)
    """The gates that actions name in `asks`, each once: `gate`, `name`, `whom` and `questions`."""
    more_asking: int = 0
    """Gates whose questions are not listed: there is too much of them."""
    limits: list[Limit] = field(default_factory=list)
    more_capabilities: int = 0
    more_actions: int = 0
    """Actions that are not listed: there are too many."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolution:
    id: UUID
    session_id: UUID
    trace_id: UUID
    decision: ResolutionDecision
    contexts: list[dict[str, Any]]
    allowed_actions: list[ActionAnswer]
    denied_actions: list[ActionAnswer]
    questions: list[dict[str, Any]]
    constraints: list[Limit]
    expires_at: datetime
