"""Messages: the entries of a session, appended in order and never changed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from pydantic import Field
from pydantic.dataclasses import dataclass as draft

from cortex_plane.kernel.fields import DRAFT, ExternalId, JsonObject, Name, Ref, Text


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
