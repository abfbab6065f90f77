"""Values of the plane as messages, and fields of messages as values."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, ParamSpec, TypeVar
from uuid import UUID

import orjson
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from pydantic import ValidationError

from cortex_plane.approvals.model.approvals import Approval, Delegation
from cortex_plane.grpc.problems import invalid_fields
from cortex_plane.grpc.upsquad.governance.v1 import approval_pb2
from cortex_plane.grpc.upsquad.runtime.v1 import lifecycle_pb2
from cortex_plane.kernel.canonical import unique
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.kernel.fields import MAX_OBJECT_BYTES, adapter, to_json
from cortex_plane.kernel.shares import Turns
from cortex_plane.sessions.model.events import Event, EventType
from cortex_plane.sessions.model.sessions import RuntimeStatus

P = ParamSpec("P")
T = TypeVar("T")


def draft(kind: type[T], names: Mapping[str, str] | None = None, **values: Any) -> T:
    """A validated value. Fields of messages that are not set are left out. ``names``: see `invalid_fields`."""
    present = {name: value for name, value in values.items() if value not in ("", b"", None)}
    try:
        value: T = adapter(kind).validate_python(present)
    except ValidationError as error:
        raise invalid_fields(error, names or {}) from None
    return value


def read_id(text: str, field: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise InvalidInput(
            f"`{field}` is not an id.", field=field, hint="Send the UUID that the plane named."
        ) from None


def read_optional_id(text: str, field: str) -> UUID | None:
    return read_id(text, field) if text else None


THREAD_BYTES = 64 * 1024
"""What is larger is read in a thread."""
_threads = Turns(2)


async def in_thread(read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Read values out of what is large, or compiles: others are served meanwhile."""
    return await _threads.run(read, *args, **kwargs)


def read_json(content: bytes, field: str, most: int = MAX_OBJECT_BYTES) -> Any:
    """The JSON of a field; None where it is empty."""
    if not content:
        return None
    if len(content) > most:
        raise InvalidInput(
            f"`{field}` has {len(content)} bytes, and may have {most}.",
            field=field,
            hint="Send a reference to what is large.",
        )
    try:
        return json.loads(content, object_pairs_hook=unique)
    except (ValueError, RecursionError):
        raise InvalidInput(f"`{field}` is not valid JSON.", code="invalid_json", field=field) from None


def read_seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos / 1e9


def read_time(timestamp: Timestamp, field: str) -> datetime:
    try:
        return timestamp.ToDatetime(UTC)
    except (ValueError, OverflowError):
        raise InvalidInput(f"`{field}` is not a time.", field=field) from None


def timestamp(moment: datetime | str | None) -> Timestamp | None:
    if moment is None:
        return None
    timestamp = Timestamp()
    timestamp.FromDatetime(datetime.fromisoformat(moment) if isinstance(moment, str) else moment)
    return timestamp


def now() -> Timestamp:
    timestamp = Timestamp()
    timestamp.GetCurrentTime()
    return timestamp


def approval_message(approval: Approval, org_id: UUID, chain: Sequence[Delegation] = ()) -> approval_pb2.Approval:
    return approval_pb2.Approval(
        approval_id=str(approval.id),
        org_id=str(org_id),
        session_id=_text(approval.session_id),
        agent_id=_text(approval.agent_id),
        tool_name=approval.tool_name,
        target=approval.target,
        status=approval.status,
        template=approval.template,
        required_clearance=approval.required_clearance,
        requested_at=timestamp(approval.requested_at),
        deadline=timestamp(approval.deadline),
        resolved_at=timestamp(approval.resolved_at),
        resolved_by=_text(approval.resolved_by),
        resolution_reason=approval.resolution_reason or "",
        channels_dispatched=approval.channels_dispatched,
        delegation_chain=[
            approval_pb2.DelegationLink(
                from_member_id=str(link.from_member_id),
                to_member_id=str(link.to_member_id),
                to_clearance=link.to_clearance,
                at=timestamp(link.at),
                reason=link.reason or "",
            )
            for link in chain
        ],
        policy_id=approval.rule,
        escalation_level=approval.escalation_level,
        version=approval.version,
        input_hash=approval.input_hash,
        args=orjson.dumps(approval.arguments),
        action_summary=approval.action_summary,
        risk=approval.risk,
        kind=approval.kind,
        may_decide=approval.may_decide,
        why_not=approval.why_not or "",
        votes_for=approval.votes_for,
        job_id=_text(approval.job_id),
    )


def _text(value: object) -> str:
    return "" if value is None else str(value)


STATUSES = {
    RuntimeStatus.INITIALIZING: lifecycle_pb2.AGENT_STATUS_INITIALIZING,
    RuntimeStatus.ACTIVE: lifecycle_pb2.AGENT_STATUS_ACTIVE,
    RuntimeStatus.SUSPENDED: lifecycle_pb2.AGENT_STATUS_SUSPENDED,
    RuntimeStatus.TERMINATED: lifecycle_pb2.AGENT_STATUS_TERMINATED,
    RuntimeStatus.ERROR: lifecycle_pb2.AGENT_STATUS_ERROR,
}
SOURCES = {
    "operator": lifecycle_pb2.PAUSE_SOURCE_OPERATOR,
    "owner": lifecycle_pb2.PAUSE_SOURCE_OWNER,
    "approval": lifecycle_pb2.PAUSE_SOURCE_APPROVAL,
    "policy": lifecycle_pb2.PAUSE_SOURCE_POLICY,
    "idle": lifecycle_pb2.PAUSE_SOURCE_IDLE,
}


def session_event(event: Event) -> lifecycle_pb2.SessionEvent:
    return lifecycle_pb2.SessionEvent(
        type=event.type,
        job_id=_text(event.job_id),
        created_at=timestamp(event.created_at),
        data=to_json(event.data).decode(),
        agent_event=_agent_event(event),
    )


def _agent_event(event: Event) -> lifecycle_pb2.AgentEvent | None:
    """The event as the specification has it; None for the others."""
    data = event.data
    match event.type:
        case EventType.TEXT_CHUNK:
            token = lifecycle_pb2.TokenEvent(text=_text(data.get("text")), step=int(data.get("step") or 0))
            return lifecycle_pb2.AgentEvent(token=token)
        case EventType.STATUS | EventType.PAUSE_PENDING:
            status = lifecycle_pb2.StatusEvent(
                status=_text(data.get("status")),
                pending_pause=event.type == EventType.PAUSE_PENDING or bool(data.get("pending_pause")),
                pending_cancel=bool(data.get("pending_cancel")),
                reason=_text(data.get("reason")),
            )
            return lifecycle_pb2.AgentEvent(status=status)
        case EventType.COMPLETION:
            completion = lifecycle_pb2.CompletionEvent(
                text=_text(data.get("text")), truncated=bool(data.get("truncated"))
            )
            return lifecycle_pb2.AgentEvent(completion=completion)
        case EventType.ERROR:
            return lifecycle_pb2.AgentEvent(error=lifecycle_pb2.ErrorEvent(reason=_text(data.get("message"))))
        case EventType.SESSION_PAUSED:
            pause = lifecycle_pb2.SessionPausedEvent(
                reason=_text(data.get("reason")),
                pause_source=SOURCES.get(data.get("pause_source", ""), lifecycle_pb2.PAUSE_SOURCE_UNSPECIFIED),
                correlation_id=_text(data.get("correlation_id")),
                checkpoint_key=_text(data.get("checkpoint_key")),
                paused_at=timestamp(data.get("paused_at")),
            )
            return lifecycle_pb2.AgentEvent(session_paused=pause)
        case EventType.SESSION_RESUMED:
            resumed = lifecycle_pb2.SessionResumedEvent(
                resumed_by_approval=bool(data.get("resumed_by_approval")),
                approval_id=_text(data.get("approval_id")),
                resumed_at_loop=int(data.get("resumed_at_loop") or 0),
                resumed_at=timestamp(data.get("resumed_at")),
            )
            return lifecycle_pb2.AgentEvent(session_resumed=resumed)
        case _:
            return None
