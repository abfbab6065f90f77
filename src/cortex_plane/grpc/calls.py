"""One call of gRPC: who calls, its turn among others, the verb's errors as statuses, and its line in the log.

The credential says who calls, for which org and with which clearance. Messages have fields for that too, which the specification names:
they may repeat what the credential says, and nothing else.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import UUID

import structlog
from google.protobuf.message import DecodeError
from grpc.aio import ServerInterceptor, ServicerContext

import grpc
from cortex_plane.db.database import Database
from cortex_plane.grpc.problems import CODES, DETAILS, refusal_of
from cortex_plane.kernel.errors import Forbidden, InvalidInput, Unauthenticated, Unavailable
from cortex_plane.kernel.ids import MAX_KEY_LENGTH, new_id
from cortex_plane.sessions.verbs.events import EventFeed
from cortex_plane.tenancy.model.access import Actor
from cortex_plane.tenancy.verbs import frame
from cortex_plane.tenancy.verbs.frame import InFlight, OpenStreams, RequestRates, SharedReads, StreamReads, leave
from grpc import aio

T = TypeVar("T")

log = structlog.get_logger()

PUBLIC = ("/grpc.health.v1.Health/", "/grpc.reflection.v1alpha.ServerReflection/")
"""Services that need no key: they tell nothing of any org."""
ORG, ONCE, REQUEST_ID = "cortex-org", "idempotency-key", "x-request-id"
"""Metadata."""
PUBLIC_CALLS = 100
"""Of each method of them, in a process."""
PUBLIC_SECONDS = 600.0
"""How long a stream of them is served. Clients of Health open it again."""
RECEIVE_SECONDS = 20.0
"""How long the message of a call may take after its headers."""
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
    reads: StreamReads
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

    async def read(self, verb: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What a call reads that has given its turn to others: it takes another one for it."""
        return await self.door.reads.run(self.actor.org_id, verb)

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
    """Around every call. It reads the message itself, so that the caller is known, and has a place, before it waits for one."""

    def __init__(self, door: DoorState) -> None:
        self._door = door
        self._public = Counter[str]()
        """Open calls of public services, by method."""
        self._limits: set[asyncio.Timeout] = set()
        """Of the same calls."""
        self._closed = False

    def close(self) -> None:
        """Ends the calls of public services. The feed ends the other streams."""
        self._closed = True
        for limit in self._limits:
            limit.reschedule(asyncio.get_running_loop().time())

    async def intercept_service(self, continuation: Any, handler_call_details: grpc.HandlerCallDetails) -> Any:
        handler = await continuation(handler_call_details)
        method: str = handler_call_details.method
        if handler is None:
            return handler
        if method.startswith(PUBLIC):
            behaviour = self._in_public(method, handler)
        elif handler.response_streaming:
            behaviour = self._following(method, handler.unary_stream)
        else:
            # The library sends metadata, message and status together. Where the reader takes nothing, they wait until its connection ends.
            return grpc.stream_unary_rpc_method_handler(
                self._answering(method, handler.unary_unary),
                request_deserializer=handler.request_deserializer,
                response_serializer=handler.response_serializer,
            )
        return grpc.stream_stream_rpc_method_handler(
            behaviour,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _answering(self, method: str, answer: Answer) -> Answer:
        async def framed(_: Any, context: ServicerContext[Any, Any]) -> Any:
            async def run() -> Any:
                return await answer(await _receive(context), context)

            return await self._run(method, context, run)

        return framed

    def _following(self, method: str, follow: Follow) -> Answer:
        async def framed(_: Any, context: ServicerContext[Any, Any]) -> None:
            async def run() -> None:
                request = await _receive(context)
                await _begin(context)
                async with aclosing(follow(request, context)) as messages:
                    async for message in messages:
                        await _send(context, message)

            await self._run(method, context, run)

        return framed

    def _in_public(self, method: str, handler: Any) -> Answer:
        """Nobody is known here: few at a time of each method, and none for long."""

        async def framed(messages: Any, context: ServicerContext[Any, Any]) -> None:
            if self._closed or self._public[method] >= PUBLIC_CALLS:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "This process serves no more of these: try again.")
            self._public[method] += 1
            _at_end(context, lambda: self._public.subtract([method]))
            limit = asyncio.timeout(PUBLIC_SECONDS if handler.response_streaming else RECEIVE_SECONDS)
            self._limits.add(limit)
            try:
                async with limit:
                    await _serve_public(handler, messages, context)
            except (Unavailable, InvalidInput) as error:
                await context.abort(CODES[error.http_status], error.message)
            except TimeoutError:
                reason = "This call was open for long, or the process ends: send it again."
                await context.abort(grpc.StatusCode.UNAVAILABLE, reason)
            finally:
                self._limits.discard(limit)

        return framed

    async def _run(self, method: str, context: ServicerContext[Any, Any], run: Callable[[], Awaitable[T]]) -> T:
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
            # Until the server is rid of it: a client that takes no answer keeps its place after this coroutine.
            end = self._door.streams.open(caller.actor.identity, caller.actor.org_id)
            _at_end(context, end)
            _caller.set(caller)
            message = await run()
            status = "OK"
            return message
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


def _at_end(context: Any, call: Callable[[], None]) -> None:
    """Once the server is rid of the call. ``context`` has a callback of another type in the stubs than it calls."""
    context.add_done_callback(lambda _: call())


async def _serve_public(handler: Any, messages: Any, context: ServicerContext[Any, Any]) -> None:
    await _begin(context)
    if handler.request_streaming:
        async for message in handler.stream_stream(messages, context):
            await _send(context, message)
    elif handler.response_streaming:
        await handler.unary_stream(await _receive(context), context)
    else:
        await _send(context, await handler.unary_unary(await _receive(context), context))


async def _receive(context: ServicerContext[Any, Any]) -> Any:
    """The one message of a call."""
    try:
        async with asyncio.timeout(RECEIVE_SECONDS):
            message = await context.read()
    except TimeoutError:
        raise InvalidInput(
            "The message of this call did not arrive in time.", code="message_late", hint="Send the call again."
        ) from None
    except DecodeError:
        message = aio.EOF
    if message is aio.EOF:
        raise InvalidInput(
            "This call has no message of its kind.", code="invalid_message", hint="Use the files of `proto/`."
        )
    return message


async def _begin(context: ServicerContext[Any, Any]) -> None:
    """Before the first message: where that one stalls, a status cannot be sent unless the metadata is gone already."""
    await context.send_initial_metadata(())


async def _send(context: ServicerContext[Any, Any], message: Any) -> None:
    try:
        async with asyncio.timeout(STALL_SECONDS):
            await context.write(message)
    except TimeoutError:
        raise Unavailable(
            "The reader takes nothing.", code="stream_dropped", hint="Go on with the cursor of the last message."
        ) from None
