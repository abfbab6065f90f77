"""Sessions and their messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal
from uuid import UUID

from pydantic import Field
from pydantic.dataclasses import dataclass as draft

from cortex_plane.kernel.fields import DRAFT, AtlasIds, ExternalId, JsonObject, Name, Note, Ref, Text


class SessionStatus(StrEnum):
    CREATED = "CREATED"
    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"
    TERMINATED = "TERMINATED"


_S = SessionStatus
TRANSITIONS: dict[SessionStatus, dict[SessionStatus, str]] = {
    _S.CREATED: {_S.ACTIVE: "first message or job", _S.TERMINATED: "ended before use"},
    _S.ACTIVE: {_S.PAUSED: "user pauses or idles", _S.TERMINATED: "ended"},
    _S.PAUSED: {_S.ACTIVE: "user is back", _S.TERMINATED: "ended or retention"},
    _S.TERMINATED: {},
}
INITIAL = SessionStatus.CREATED
TERMINAL = frozenset({SessionStatus.TERMINATED})


def may_move(old: SessionStatus, new: SessionStatus) -> bool:
    """Whether the machine has that edge. Staying put is not a transition."""
    return new in TRANSITIONS[old]


class SessionKind(StrEnum):
    CONVERSATION = "conversation"
    """A person talks with an agent: one open per person and agent."""
    PROGRAMMATIC = "programmatic"
    """Opened by a program: any number."""
    EXTERNAL = "external"
    """The agent runs elsewhere and asks the plane before it acts."""


TITLE_LENGTH = 80


def title_from(text: str) -> str:
    """The first line of the first message, shortened, so that a list of sessions can be read."""
    line = next((part.strip() for part in text.splitlines() if part.strip()), "")
    return line if len(line) <= TITLE_LENGTH else line[: TITLE_LENGTH - 1].rstrip() + "…"


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    id: UUID
    kind: SessionKind
    user_account_id: UUID | None
    agent_id: UUID
    status: SessionStatus
    context: dict[str, Any]
    title: str | None
    origin_channel_mapping_id: UUID | None
    held_at: datetime | None
    """Held by an operator: its jobs wait until it is resumed."""
    hold_reason: str | None
    revision: int
    last_activity_at: datetime
    created_at: datetime
    updated_at: datetime
    atlases: list[BoundAtlas] = field(default_factory=list)
    """What it is bound to, for as long as it lasts."""


@draft(config=DRAFT, frozen=True, kw_only=True)
class SessionDraft:
    """A session that a program opens; a conversation opens by itself with its first message."""

    agent: Ref
    kind: Literal[SessionKind.PROGRAMMATIC, SessionKind.EXTERNAL] = SessionKind.PROGRAMMATIC
    """`external`: the agent runs elsewhere, and asks with `POST /v1/sessions/{id}/calls` before it acts."""
    title: Note | None = None
    context: JsonObject = Field(default_factory=dict)
    atlases: AtlasIds = Field(default_factory=list)
    """Atlases that it is bound to beside those of its agent."""


@draft(config=DRAFT, frozen=True, kw_only=True)
class SessionChange:
    """Absent or null leaves a field as it is; an empty title removes it."""

    title: Note | None = None
    context: JsonObject | None = None


@draft(config=DRAFT, frozen=True, kw_only=True)
class Termination:
    reason: Note | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class BoundAtlas:
    """An atlas that a session is bound to: this version, for as long as the session lasts."""

    atlas_id: str
    version: str
    digest: str
    bound_at: datetime

    def __str__(self) -> str:
        return f"{self.atlas_id} {self.version} ({self.digest[:12]})"


class MessageRole(StrEnum):
    USER = "user"
    ASSISTANT = "assistant"
    SYSTEM = "system"
    TOOL = "tool"


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    seq: int
    role: MessageRole
    text: str
    author_id: UUID | None
    channel_mapping_id: UUID | None
    job_id: UUID | None
    created_at: datetime


@draft(config=DRAFT, frozen=True, kw_only=True)
class InboundMessage:
    """What a channel hands over: who wrote, to which agent, and what."""

    external_user_id: ExternalId
    agent: Ref
    text: Text
    display_name: Name | None = None
    metadata: JsonObject = Field(default_factory=dict)


@draft(config=DRAFT, frozen=True, kw_only=True)
class MessageDraft:
    """What the owner of a session adds to it."""

    text: Text


@dataclass(frozen=True, kw_only=True, slots=True)
class IngestedMessage:
    """What became of a message: where it landed and what had to be made for it."""

    session_id: UUID
    message_seq: int
    job_id: UUID
    """The job that will read the message: a new one, or the one already open."""
    user_account_id: UUID | None
    created: list[str]
    """Which of account, session and job were made by this message."""
    replayed: bool
    """True when this idempotency key had been used before; nothing changed now."""
