"""One call of gRPC: who calls, its turn among others, the verb's errors as statuses, and its line in the log.

The credential says who calls, for which org and with which clearance. Messages have fields for that too, which the specification names:
they may repeat what the credential says, and nothing else.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import structlog
from grpc.aio import ServerInterceptor, ServicerContext

import grpc
from cortex_plane.db.database import Database
from cortex_plane.grpc.problems import DETAILS, refusal_of
from cortex_plane.kernel.errors import Forbidden, InvalidInput, Unauthenticated, Unavailable
from cortex_plane.kernel.ids import MAX_KEY_LENGTH, new_id
from cortex_plane.kernel.in_flight import InFlight, OpenStreams, SharedReads, leave
from cortex_plane.sessions.verbs.events import EventFeed
from cortex_plane.tenancy.model.access import Actor
from cortex_plane.tenancy.verbs import frame
from cortex_plane.tenancy.verbs.frame import RequestRates

log = structlog.get_logger()

PUBLIC = ("/grpc.health.v1.Health/", "/grpc.reflection.v1alpha.ServerReflection/")
"""Services that need no key: they tell nothing of any org."""
ORG, ONCE, REQUEST_ID = "cortex-org", "idempotency-key", "x-request-id"
"""Metadata."""
STALL_SECONDS = 30.0
"""How long one message may wait for a reader that takes nothing."""
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,100}")
_KEY = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True, slots=True)
class DoorState:
    """What a process has. All of it but the figures is shared with its other doors."""

    db: Database
    feed: EventFeed
    rates: RequestRates
    in_flight: InFlight
    streams: OpenStreams
    callers: SharedReads[tuple[str, str | None], Actor]
    count_call: Callable[[str, str, float], None]
    """A call that ended: its method, its status, its seconds."""
    count_rejected_key: Callable[[str], None]


@dataclass(slots=True)
class GrpcCaller:
    """Who makes the call that is worked on."""

    door: DoorState
    actor: Actor
    secret: str
    org: str | None
    key: str | None
    """The idempotency key of the metadata."""
    state: dict[str, Any] = field(default_factory=dict)

    async def check_access(self) -> None:
        """Raises once the key is not valid any more. The caller has the roles of this moment from then on."""
        self.actor = await _authenticate(self.door, self.secret, self.org)

    def wait(self) -> None:
        """From now on the call only waits: it gives its turn to others."""
        leave(self.state)

    def require_own(self, **values: UUID | str | int | None) -> None:
        """Refuse a field that says other than the credential."""
        actor = self.actor
        own: dict[str, object] = {
            "org_id": actor.org_id,
            "tenant_id": actor.org_id,
            "member_id": actor.identity,
            "operator_id": actor.user_account_id,
            "from_member_id": actor.user_account_id,
            "clearance": actor.clearance,
        }
        for name, value in values.items():
            if value and str(value).lower() != str(own[name]):
                raise not_of_the_caller(name)

    def idempotency_key(self, key: str) -> str | None:
        """Of the message or of the metadata."""
        if key and self.key and key != self.key:
            raise InvalidInput("The metadata has another idempotency key than the message.", field="idempotency_key")
        key = key or self.key or ""
        if key and (len(key) > MAX_KEY_LENGTH or not _KEY.fullmatch(key)):
            raise InvalidInput(
                f"An idempotency key has 1 to {MAX_KEY_LENGTH} printable ASCII characters.", field="idempotency_key"
            )
        return key or None


def not_of_the_caller(field: str) -> Forbidden:
    return Forbidden(
        f"`{field}` says other than the key.",
        code="not_of_the_caller",
        hint="Leave it out: the key says it.",
        field=field,
    )


_caller: ContextVar[GrpcCaller] = ContextVar("caller")


def current_caller() -> GrpcCaller:
    return _caller.get()


async def _authenticate(door: DoorState, secret: str, org: str | None) -> Actor:
    try:
        return await door.callers.run((secret, org), lambda: frame.authenticate_key(door.db, secret, org))
    except Unauthenticated as error:
        door.count_rejected_key(error.code)
        raise


Answer = Callable[[Any, "ServicerContext[Any, Any]"], Awaitable[Any]]
Follow = Callable[[Any, "ServicerContext[Any, Any]"], AsyncGenerator[Any, None]]


class CallFrame(ServerInterceptor):
    """Around every call but those of public services."""

    def __init__(self, door: DoorState) -> None:
        self._door = door

    async def intercept_service(self, continuation: Any, handler_call_details: grpc.HandlerCallDetails) -> Any:
        handler = await continuation(handler_call_details)
        method: str = handler_call_details.method
        if handler is None or method.startswith(PUBLIC):
            return handler
        make = (
            grpc.unary_stream_rpc_method_handler if handler.response_streaming else grpc.unary_unary_rpc_method_handler
        )
        behaviour: Any = (
            self._following(method, handler.unary_stream)
            if handler.response_streaming
            else self._answering(method, handler.unary_unary)
        )
        return make(
            behaviour,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _answering(self, method: str, answer: Answer) -> Answer:
        async def framed(request: Any, context: ServicerContext[Any, Any]) -> Any:
            async def run(_: GrpcCaller) -> Any:
                return await answer(request, context)

            return await self._run(method, context, run)

        return framed

    def _following(self, method: str, follow: Follow) -> Answer:
        async def framed(request: Any, context: ServicerContext[Any, Any]) -> None:
            async def run(caller: GrpcCaller) -> None:
                end = self._door.streams.open(caller.actor.identity, caller.actor.org_id)
                try:
                    async with aclosing(follow(request, context)) as messages:
                        async for message in messages:
                            await _send(context, message)
                finally:
                    end()

            await self._run(method, context, run)

        return framed

    async def _run(
        self, method: str, context: ServicerContext[Any, Any], run: Callable[[GrpcCaller], Awaitable[Any]]
    ) -> Any:
        start, status, state = time.perf_counter(), "CANCELLED", dict[str, Any]()
        metadata = {str(name): value for name, value in context.invocation_metadata() or ()}
        request_id = str(metadata.get(REQUEST_ID, ""))
        if not _REQUEST_ID.fullmatch(request_id):
            request_id = new_id().hex
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=request_id)
        caller: GrpcCaller | None = None
        try:
            caller = await self._admit(metadata, state)
            _caller.set(caller)
            result = await run(caller)
            status = "OK"
            return result
        except Exception as error:
            refusal = refusal_of(error, request_id)
            status = refusal.code.name
        finally:
            leave(state)
            self._record(method, status, time.perf_counter() - start, caller)
        await context.abort(refusal.code, refusal.message, ((DETAILS, refusal.details),))
        raise AssertionError("`abort` raises")

    async def _admit(self, metadata: dict[str, Any], state: dict[str, Any]) -> GrpcCaller:
        door = self._door
        scheme, _, secret = str(metadata.get("authorization", "")).partition(" ")
        if scheme.lower() != "bearer" or not secret:
            raise Unauthenticated(
                "This call needs a key.",
                code="key_missing",
                hint="Send the metadata `authorization: Bearer cortex_key_…`.",
            )
        secret, org, key = secret.strip(), metadata.get(ORG), metadata.get(ONCE)
        actor = await _authenticate(door, secret, org)
        await door.rates.take(door.db, actor)
        await door.in_flight.enter(state, actor.org_id)
        return GrpcCaller(door, actor, secret, org, key, state)

    def _record(self, method: str, status: str, seconds: float, caller: GrpcCaller | None) -> None:
        self._door.count_call(method, status, seconds)
        log.info(
            "call",
            method=method,
            status=status,
            ms=round(seconds * 1000, 1),
            org=str(caller.actor.org_id) if caller else None,
            key=str(caller.actor.key_id) if caller else None,
        )


async def _send(context: ServicerContext[Any, Any], message: Any) -> None:
    try:
        async with asyncio.timeout(STALL_SECONDS):
            await context.write(message)
    except TimeoutError:
        raise Unavailable(
            "The reader takes nothing.", code="stream_dropped", hint="Go on with the cursor of the last message."
        ) from None
