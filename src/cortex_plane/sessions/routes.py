"""Routes of sessions."""

from __future__ import annotations

from typing import Annotated, TypeVar
from uuid import UUID

from pydantic import Field

from cortex_plane.kernel.fields import MAX_BODY_BYTES, ExternalId, Ref
from cortex_plane.kernel.routes import ListQuery, ListRoute, Route, filters
from cortex_plane.sessions.model import sessions
from cortex_plane.sessions.model.events import Event, EventNumber

T = TypeVar("T")


class EventQuery(ListQuery):
    after: Annotated[EventNumber, Field(description="Only events after this number.")] = 0


def _create(address: str, output: type[T], body: type) -> Route[T]:
    """A route that makes something once, from a body of any size."""
    return Route(address, output, body=body, status=201, once=True, max_body=MAX_BODY_BYTES)


INGEST_MESSAGE = _create(
    "POST /v1/connections/{connection_id}/messages", sessions.IngestedMessage, sessions.InboundMessage
)
"""Take in a person's message: makes account, session and job where they do not exist."""

CREATE_SESSION = _create("POST /v1/sessions", sessions.Session, sessions.SessionDraft)
"""Open a session from a program; with an `outside_id`, find it where you have it open. A person's conversation opens by itself with the
first message."""
LIST_SESSIONS = ListRoute(
    "GET /v1/sessions",
    sessions.Session,
    query=filters(status=sessions.SessionStatus, agent=Ref, member_id=UUID, outside_id=ExternalId),
    columns="id kind status agent_status outside_id title last_activity_at",
)
"""Members and guests see their own sessions, everybody else those of the org."""
GET_SESSION = Route("GET /v1/sessions/{session_id}", sessions.Session)
UPDATE_SESSION = Route(
    "PATCH /v1/sessions/{session_id}",
    sessions.Session,
    body=sessions.SessionChange,
    revision=True,
    max_body=MAX_BODY_BYTES,
)
GET_SESSION_STATE = Route("GET /v1/sessions/{session_id}/state", sessions.SessionState)
"""The state of a run elsewhere, as its framework saved it. It has whatever the run has: messages, arguments and results, not redacted. For
whoever sees the session's messages."""
SAVE_SESSION_STATE = Route(
    "PUT /v1/sessions/{session_id}/state",
    sessions.SessionState,
    body=sessions.SessionStateDraft,
    max_body=3 * MAX_BODY_BYTES,
)
"""Keep the state of a run elsewhere, of at most 1 MiB, in the place of the version that you read: of two processes that go on with the same
run, the second gets 409. Only for the identity that opened the session. It ends with the session."""
TERMINATE_SESSION = Route("POST /v1/sessions/{session_id}/terminate", sessions.Session, body=sessions.Termination)
"""End a session for good and cancel its open jobs."""
POST_MESSAGE = _create("POST /v1/sessions/{session_id}/messages", sessions.IngestedMessage, sessions.MessageDraft)
LIST_MESSAGES = ListRoute(
    "GET /v1/sessions/{session_id}/messages", sessions.Message, columns="seq role text created_at"
)
"""In the order they were said."""

LIST_MEMORIES = ListRoute(
    "GET /v1/sessions/{session_id}/memory",
    sessions.SessionMemory,
    columns="number message_seq summary facts created_at",
)
"""What is kept of the part that no longer fits into the model's window: the newest first, then how it came about.

A model wrote it: it is data, not instructions."""

SESSION_EVENTS = ListRoute(
    "GET /v1/sessions/{session_id}/events",
    Event,
    query=EventQuery,
    stream=True,
    answer="A stream of events; with `Accept: application/json` one page of them.",
    tag="events",
)
"""What happens in a session, as server-sent events: what you missed first, then live."""
