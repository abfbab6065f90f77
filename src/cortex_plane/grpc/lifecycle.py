"""LifecycleService: pause a session, resume it, follow it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from grpc.aio import ServicerContext

from cortex_plane.grpc.calls import current_caller, not_of_the_caller
from cortex_plane.grpc.messages import SOURCES, STATUSES, draft, now, read_id, read_json, session_event, timestamp
from cortex_plane.grpc.upsquad.runtime.v1 import lifecycle_pb2
from cortex_plane.grpc.upsquad.runtime.v1.lifecycle_pb2_grpc import LifecycleServiceServicer
from cortex_plane.jobs.model.jobs import Pause, PauseSource, Resumption, SessionReceipt
from cortex_plane.jobs.verbs import steering
from cortex_plane.kernel.errors import InvalidInput, Unavailable
from cortex_plane.kernel.routes import SMALL_BODY_BYTES
from cortex_plane.sessions.model.sessions import RuntimeStatus
from cortex_plane.sessions.verbs import events
from cortex_plane.sessions.verbs.event_reader import EventReader
from cortex_plane.sessions.verbs.events import EventReplay

Context = ServicerContext[Any, Any]


class LifecycleDoor(LifecycleServiceServicer):
    async def PauseSession(
        self, request: lifecycle_pb2.PauseSessionRequest, context: Context
    ) -> lifecycle_pb2.PauseSessionResponse:
        caller = current_caller()
        caller.require_own(tenant_id=request.tenant_id)
        own_source = PauseSource.OPERATOR if caller.actor.sees is None else PauseSource.OWNER
        if request.pause_source not in (lifecycle_pb2.PAUSE_SOURCE_UNSPECIFIED, SOURCES[own_source]):
            raise not_of_the_caller("pause_source")
        pause = draft(
            Pause,
            reason=request.reason,
            correlation_id=request.correlation_id,
            within_seconds=request.within_seconds or None,
        )
        id = read_id(request.session_id, "session_id")
        receipt = await steering.pause_session(caller.door.db, caller.actor, id, pause)
        return lifecycle_pb2.PauseSessionResponse(
            status=_status(receipt),
            checkpoint_key=receipt.checkpoint_key or "",
            paused_at=timestamp(receipt.paused_at),
            was_already_suspended=not receipt.changed,
            pending=receipt.pending,
            hold_by=timestamp(receipt.hold_by),
        )

    async def ResumeSession(
        self, request: lifecycle_pb2.ResumeSessionRequest, context: Context
    ) -> lifecycle_pb2.ResumeSessionResponse:
        caller = current_caller()
        caller.require_own(tenant_id=request.tenant_id)
        resumption = draft(
            Resumption,
            {"note": "resume_reason"},
            note=request.resume_reason,
            operator_input=read_json(request.operator_input, "operator_input", SMALL_BODY_BYTES),
        )
        id = read_id(request.session_id, "session_id")
        receipt = await steering.resume_session(caller.door.db, caller.actor, id, resumption)
        return lifecycle_pb2.ResumeSessionResponse(
            status=_status(receipt),
            resumed_at_loop=receipt.resumed_at_loop or 0,
            resumed_at=timestamp(receipt.session.updated_at),
        )

    async def WatchSession(
        self, request: lifecycle_pb2.WatchSessionRequest, context: Context
    ) -> AsyncGenerator[lifecycle_pb2.WatchSessionResponse, None]:
        caller = current_caller()
        caller.require_own(tenant_id=request.tenant_id)
        id, after = read_id(request.session_id, "session_id"), request.after
        if not 0 <= after < 2**31:
            raise InvalidInput("`after` is not a cursor of this stream.", code="invalid_cursor", field="after")
        db = caller.door.db

        async def read(number: int) -> EventReplay:
            return await events.of_session(db, caller.actor, id, number)

        async def check_access() -> None:
            await caller.check_access()
            await events.of_session(db, caller.actor, id, 0, 0)

        first = await read(after)
        caller.wait()
        reader = EventReader(caller.door.feed, read, check_access, after)
        async with aclosing(reader.batches(first)) as batches:
            async for batch in batches:
                for event in batch:
                    yield lifecycle_pb2.WatchSessionResponse(cursor=event.seq, event=session_event(event))
                if not batch:
                    alive = lifecycle_pb2.KeepAlive(at=now())
                    yield lifecycle_pb2.WatchSessionResponse(cursor=reader.cursor, keepalive=alive)
        raise dropped(reader.dropped or "shutdown")


def dropped(reason: str) -> Unavailable:
    why = "The reader was too slow." if reason == "slow_reader" else "This process ends."
    return Unavailable(why, code="stream_dropped", hint="Go on with the cursor of the last message.")


def _status(receipt: SessionReceipt) -> lifecycle_pb2.AgentStatus.ValueType:
    return STATUSES[receipt.status or RuntimeStatus.ACTIVE]
