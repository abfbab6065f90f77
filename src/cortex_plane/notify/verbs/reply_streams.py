"""Answers that people see grow in their chat while the model is still writing.

The message of such an answer is one notification: each look makes it due with what was written meanwhile, and the transaction that
records the answer makes it due for the last time. So the outbox keeps its order and its pace, and retries it; a process that dies leaves
nothing that another one does not bring to its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
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
    address: str | None
    """Of that chat."""
    connection_streams: int
    """Answers that stream over its connection now, this one included."""
    chat_streams: int
    """And into its chat."""


async def find_streams(
    db: Database, channels: Mapping[str, float], after: ReplyStream | None = None
) -> list[ReplyStream]:
    """Of any org, on these channels, with the seconds between two versions; first those behind ``after``. Messages that are being sent, or
    were sent within these seconds, are left out."""
    last = (after.org_id, after.session_id) if after is not None else (None, None)
    rows = await db.call("find_reply_streams", None, list(channels), list(channels.values()), *last, MOST_STREAMS)
    return [ReplyStream(**{field.name: row[field.name] for field in fields(ReplyStream)}) for row in rows]


async def advance_stream(db: Database, stream: ReplyStream, *, seconds: float, most_characters: int) -> bool:
    """Begin the message of the answer, make it due with what was written since, or end it; whether there is something to send."""
    arguments = (stream.session_id, stream.channel_type, seconds, FIRST_CHARACTERS, most_characters)
    rows = await db.call("advance_stream", stream.org_id, *arguments)
    return bool(rows[0]["advance_stream"])
