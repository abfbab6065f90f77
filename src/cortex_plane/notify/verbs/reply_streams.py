"""Answers that people see grow in their chat while the model is still writing.

The message of such an answer is one notification: each look makes it due with what was written meanwhile, and the transaction that
records the answer makes it due for the last time. So the outbox keeps its order and its pace, and retries it; a process that dies leaves
nothing that another one does not bring to its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from cortex_plane.db.database import Database

FIRST_CHARACTERS = 40
"""An answer that is shorter is sent once it is whole."""
MOST_STREAMS = 500
"""In one look."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplyStream:
    """A session in which an answer is being written for a chat, or whose chat shows the beginning of one."""

    org_id: UUID
    session_id: UUID
    connection_id: UUID | None
    """Of the chat from which its person wrote last; None where that was no chat."""
    channel_type: str | None


async def find_streams(db: Database, channels: Sequence[str]) -> list[ReplyStream]:
    """Of any org, on these channels; those that were begun first."""
    rows = await db.call("find_reply_streams", None, list(channels), MOST_STREAMS)
    names = ("org_id", "session_id", "connection_id", "channel_type")
    return [ReplyStream(**{name: row[name] for name in names}) for row in rows]


async def advance_stream(db: Database, stream: ReplyStream, *, seconds: float, most_characters: int) -> bool:
    """Begin the message of the answer, make it due with what was written since, or end it; whether there is something to send."""
    arguments = (stream.session_id, stream.channel_type, seconds, FIRST_CHARACTERS, most_characters)
    rows = await db.call("advance_stream", stream.org_id, *arguments)
    return bool(rows[0]["advance_stream"])
