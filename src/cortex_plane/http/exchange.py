"""One request: who calls, its turn among others, what it brings, the verb that answers it, and how the answer is rendered.

A `Binding` puts a declared route before its verb. It reads and validates everything that the declaration names and reports all
faults at once; then the verb is called with the values of the path and the body, in this order, and by name with the idempotency
key (``once``), the ``revision`` and the query parameters.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import json
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Mapping
from dataclasses import dataclass, field
from json.decoder import scanstring  # type: ignore[attr-defined, unused-ignore]
from typing import Annotated, Any, Generic, TypeVar
from uuid import UUID

from pydantic import Field, TypeAdapter, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from cortex_plane.db.database import Database
from cortex_plane.http.problems import MANY_FAULTS, SHOWN_FAULTS, InvalidRequest
from cortex_plane.kernel import schemas
from cortex_plane.kernel.canonical import unique
from cortex_plane.kernel.errors import InvalidInput, TooLarge, TooMany, Unauthenticated
from cortex_plane.kernel.fields import MAX_BODY_BYTES, SLUG_PATTERN, adapter
from cortex_plane.kernel.ids import MAX_KEY_LENGTH, IdempotencyKey
from cortex_plane.kernel.routes import SMALL_BODY_BYTES, Route
from cortex_plane.kernel.shares import Turns, reserve_of
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs import frame
from cortex_plane.tenancy.verbs.frame import Verb

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

POLICIES, PARAMETERS = "policies", "parameters"
"""Fields whose validation compiles what the caller sends, conditions and schemas: such a body is validated in a thread, unless the schema
was checked before."""
THREAD_BYTES = 64 * 1024
"""A larger body is validated in a thread too: every value in it is looked at."""
MOST_DESCRIBED = 100
"""More faults than these are only counted: to describe each of them costs more than to find it."""

_MISSING = object()
_threads = Turns(2)

ORG, ONCE, REVISION, LAST_EVENT = "Cortex-Org", "Idempotency-Key", "If-Match", "Last-Event-ID"
HEADERS: Mapping[str, Any] = {
    ORG: Annotated[str, Field(
        min_length=2, max_length=100, pattern=SLUG_PATTERN, description="For platform keys: the slug of the org to act in.",
    )],
    ONCE: Annotated[str, Field(
        min_length=1, max_length=MAX_KEY_LENGTH, pattern=r"^[\x21-\x7e]+$",
        description="Repeat a request safely: the same key and body have one effect.",
    )],
    REVISION: Annotated[str, Field(
        description="The ETag you saw: the change is refused if it is no longer current.",
    )],
    LAST_EVENT: Annotated[int, Field(
        ge=0, le=2**31 - 1, description="The number of the last event that you have: what came after it is sent first.",
    )],
}  # fmt: skip


class Exchange:
    """A request as handlers get it. Its ``actor`` is unset where the route needs no key."""

    __slots__ = ("actor", "db", "request")

    actor: Actor

    def __init__(self, request: Request) -> None:
        self.request = request
        self.db: Database = request.app.state.db

    @property
    def state(self) -> Any:
        """Of the process: metrics, feed, streams."""
        return self.request.app.state


Options = dict[str, Any]
Run = Callable[[Exchange, list[Any], Options], Awaitable[Response]]
"""Answers a request from its values, and from its options by name."""


@dataclass(frozen=True, eq=False)
class Binding:
    """A route and what answers it."""

    route: Route[Any]
    permission: Permission | None
    run: Run
    heavy: bool = False
    """It reads long spans, and few of its kind run at a time."""
    caller_first: bool = field(init=False)
    """The caller must be known before a large body is read."""

    def __post_init__(self) -> None:
        is_large = self.route.max_body > SMALL_BODY_BYTES or self.heavy
        object.__setattr__(self, "caller_first", self.route.needs_key and is_large)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self.respond(Request(scope, receive, send))
        await response(scope, receive, send)

    async def respond(self, request: Request) -> Response:
        route, faults = self.route, list[dict[str, Any]]()
        exchange = Exchange(request)
        org = _read_header(request, ORG, faults) if route.needs_key else None
        if self.caller_first and not faults:
            await self._admit(exchange, org)
        if not faults:
            request.scope["state"]["max_body_bytes"] = route.max_body
        body = await _read_body(request) if route.body is not None else None
        if route.needs_key and not faults:
            exchange.actor = await authenticated(request, org)
        options: Options = {}
        if route.once:
            key = _read_header(request, ONCE, faults)
            options["once"] = None if key is None else await _idempotency_key(request, key)
        if route.revision:
            options["revision"] = _expected_revision(request)
        values = [
            _validate(route.path_types[name], text, ("path", name), faults)
            for name, text in request.path_params.items()
        ]
        if route.query is not None:
            query = _validate(route.query, dict(request.query_params), ("query",), faults)
            if query is not None:
                options |= vars(query)
        if route.stream:
            values.append(_read_header(request, LAST_EVENT, faults))
        if route.body is not None:
            value, body_faults = await _validate_body(request, route.body, body)
            values.append(value)
            faults += body_faults
        if faults:
            raise InvalidRequest(faults)
        return await self.run(exchange, values, options)

    async def _admit(self, exchange: Exchange, org: str | None) -> None:
        actor = await authenticated(exchange.request, org)
        if self.permission is not None:
            actor.require(self.permission)
        if self.heavy:
            exchange.db.require_heavy_read(actor.org_id)  # the verb takes the place


def answer(
    route: Route[T], verb: Verb[..., T], more: Callable[[Exchange], Options] | None = None, **fixed: Any
) -> Binding:
    """Answer with what the verb returns. ``more`` and ``fixed`` are options that do not come from the request."""

    async def run(exchange: Exchange, values: list[Any], options: Options) -> Response:
        if more is not None:
            options |= more(exchange)
        result = await verb(exchange.db, exchange.actor, *values, **options, **fixed)
        return Response(status_code=204) if route.status == 204 else reply(result, route.status)

    return Binding(route, verb.permission, run, verb.heavy)


def handle(
    route: Route[Any], verb: Verb[..., Any] | Permission | None, handler: Callable[..., Awaitable[Response]]
) -> Binding:
    """Answer with a function of the exchange, the values and the options. ``verb`` names the permission."""

    async def run(exchange: Exchange, values: list[Any], options: Options) -> Response:
        return await handler(exchange, *values, **options)

    if verb is None or isinstance(verb, Permission):
        return Binding(route, verb, run)
    return Binding(route, verb.permission, run, verb.heavy)


# Turns: how many requests of an org are in flight in this process, and how many of them are worked on.
#
# A request enters once its caller is known, and leaves with its answer. One that only waits (a stream, a long poll) has left before: it is
# counted among the open streams. A process works on one thing at a time, so an org that sends many requests makes all others slow.
# While other orgs send requests, one of its requests is worked on at a time, and the next ones wait; if many wait, the process pauses
# between two of them for as long as the last one took. Once the others have paused, a few are worked on at a time, so that the
# next request of another org waits for these alone. An org that is alone waits for nothing. A request that takes longer than others
# waits for something else (a lock, a long read, a slow client), so it is not counted as worked on, and nobody waits for it.

MOST = 256
STREAMS_OF_ORG = 1000

BESIDE_OTHERS = 1
"""How many requests of an org are worked on at a time while others send some."""
BESIDE_SECONDS = 0.1
"""So soon after a request of another org, others send some."""
AFTER_OTHERS = 16
"""How many are worked on at a time while others may come again."""
AFTER_SECONDS = 1.0
"""An org that was silent for so long is none of those."""
WORK_SECONDS = 0.05
"""A request that began longer ago is not worked on: it waits for something else."""
FLOOD = 8
"""An org with more waiting requests than this gets at most half of the process's time beside others."""

_ENTERED = "in_flight"


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestLimits:
    """What one API process serves at a time."""

    in_flight: int = MOST
    in_flight_of_org: int | None = None
    """None: all but those that are kept for orgs that have none in flight."""
    streams_of_org: int = STREAMS_OF_ORG


DEFAULT_LIMITS = RequestLimits()


class InFlight:
    def __init__(self, limits: RequestLimits = DEFAULT_LIMITS, clock: Callable[[], float] = time.monotonic) -> None:
        self.free = limits.in_flight
        self._share = limits.in_flight if limits.in_flight_of_org is None else limits.in_flight_of_org
        self._reserve = reserve_of(limits.in_flight)
        self.now = self._clock = clock
        # By the number of an org's id: the hash of a UUID is a function of Python's, and this is asked for every request.
        self._begun: dict[int, list[float]] = {}
        """When the requests of each org began that are in flight, oldest first."""
        self._waiting: dict[int, deque[asyncio.Future[float]]] = {}
        self._timed: set[int] = set()
        """Orgs whose waiting requests are looked at again before long."""
        self._paused: set[int] = set()
        """Orgs that flood, between two of their requests."""
        self._newest = 0
        """Which org sent the last request."""
        self._newest_at = self._other_at = -math.inf
        """When it did, and when any other did."""

    def held_by(self, id: int) -> int:
        """How many places an org has, by the number of its id."""
        return len(self._begun.get(id, ())) + len(self._waiting.get(id, ()))

    async def enter(self, scope: Scope, org: UUID) -> None:
        """Waits until its org has a turn. Raises ``TooMany`` where the org, or the process, has as many as it may."""
        id, now = org.int, self._clock()
        begun = self._begun.get(id)
        queue = self._waiting.get(id) if self._waiting else None
        places = (len(begun) if begun else 0) + (len(queue) if queue else 0)
        if places >= self._share or self.free <= (self._reserve if places else 0):
            raise TooMany(
                "As many requests of this org, or of this process, are in flight as it serves at a time.",
                code="too_many_in_flight",
                hint="Wait as long as the header Retry-After says, and send fewer requests at a time.",
                retry_after=1,
            )
        self.free -= 1
        if id != self._newest:
            self._newest, self._other_at = id, self._newest_at
        self._newest_at = now
        if queue is not None:
            self._admit(id)
            begun = self._begun.get(id)
        if begun is None:
            self._begun[id] = [now]
        elif id in self._waiting or not self._has_turn(id, now):
            now = await self._wait(id)
        else:
            begun.append(now)
        scope["state"][_ENTERED] = (self, id, now)

    def left(self, id: int, began: float) -> None:
        self.free += 1
        begun = self._begun[id]
        begun.remove(began)
        queue = self._waiting.get(id)
        if queue is None:
            if not begun:
                del self._begun[id]
        elif len(queue) > FLOOD and self._at_once(id, now := self._clock()) == BESIDE_OTHERS:
            self._paused.add(id)
            asyncio.get_running_loop().call_later(min(now - began, WORK_SECONDS), self._end_pause, id)
        else:
            self._admit(id)

    def _has_turn(self, id: int, now: float) -> bool:
        """Whether another request of this org may be worked on."""
        if id in self._paused:
            return False
        begun, at_once = self._begun[id], self._at_once(id, now)
        return at_once is None or len(begun) < at_once or begun[-at_once] <= now - WORK_SECONDS

    def _at_once(self, id: int, now: float) -> int | None:
        """How many requests of this org are worked on at a time; None: all of them."""
        silence = now - (self._other_at if id == self._newest else self._newest_at)
        return BESIDE_OTHERS if silence < BESIDE_SECONDS else AFTER_OTHERS if silence < AFTER_SECONDS else None

    def is_beside_others(self, id: int) -> bool:
        """Whether other orgs send requests too, or did a moment ago."""
        return self._at_once(id, self._clock()) is not None

    async def _wait(self, id: int) -> float:
        """When it began."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[float] = loop.create_future()
        self._waiting.setdefault(id, deque()).append(turn)
        if id not in self._timed:
            self._timed.add(id)
            loop.call_later(WORK_SECONDS, self._look_again, id)
        try:
            return await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.left(id, turn.result())  # it had its turn at this very moment
            else:
                self.free += 1
                queue = self._waiting.get(id)
                if queue is not None and turn in queue:
                    queue.remove(turn)
                    self._drop_empty(id)
            raise

    def _look_again(self, id: int) -> None:
        """Turns come with time too, not only when another request leaves."""
        if id in self._waiting:
            self._admit(id)
        if id in self._waiting:
            asyncio.get_running_loop().call_later(WORK_SECONDS, self._look_again, id)
        else:
            self._timed.discard(id)

    def _admit(self, id: int) -> None:
        queue, now = self._waiting[id], self._clock()
        while queue and (queue[0].done() or self._has_turn(id, now)):
            turn = queue.popleft()
            if not turn.done():
                self._begun[id].append(now)
                turn.set_result(now)
        self._drop_empty(id)

    def _drop_empty(self, id: int) -> None:
        """Forget an org of which nothing waits, and nothing is in flight."""
        if not self._waiting[id]:
            del self._waiting[id]
            if not self._begun[id]:
                del self._begun[id]

    def _end_pause(self, id: int) -> None:
        self._paused.discard(id)
        if id in self._waiting:
            self._admit(id)


def others_wait(scope: Scope) -> Callable[[], bool]:
    """What says, from now on, whether orgs beside the one of this request send requests. Ask for it before the request leaves."""
    entry = scope["state"].get(_ENTERED)
    if entry is None:
        return lambda: False
    in_flight, id, _ = entry
    return lambda: bool(in_flight.is_beside_others(id))


def leave(scope: Scope) -> None:
    """The request of this scope is answered, or only waits from now on."""
    entry = scope["state"].pop(_ENTERED, None)
    if entry is not None:
        in_flight, id, began = entry
        in_flight.left(id, began)


class SharedReads(Generic[K, T]):
    """Reads that concurrent callers share. Who asks while a read is under way shares the next one, so no answer is older than its question."""

    def __init__(self) -> None:
        self._next: dict[K, asyncio.Future[T] | None] = {}
        """By key of a read under way: what later callers wait for, if there are any."""
        self._tasks: set[asyncio.Future[T]] = set()

    async def run(self, key: K, read: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if key not in self._next:
            self._next[key] = None
            try:
                return await read()
            finally:
                self._continue(key, read)
        answer = self._next[key]
        if answer is None:
            answer = self._next[key] = asyncio.get_running_loop().create_future()
        # A caller that stops waiting does not cancel it for the others.
        return await asyncio.shield(answer)

    def _continue(self, key: K, read: Callable[[], Coroutine[Any, Any, T]]) -> None:
        answer = self._next.pop(key)
        if answer is not None:
            self._next[key] = None
            # Not in the context of the caller before: its log lines name its request.
            task = contextvars.Context().run(asyncio.ensure_future, read())
            self._tasks.add(task)
            task.add_done_callback(lambda task: self._finish(key, task, read, answer))

    def _finish(
        self, key: K, task: asyncio.Future[T], read: Callable[[], Coroutine[Any, Any, T]], answer: asyncio.Future[T]
    ) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            answer.cancel()
        elif error := task.exception():
            answer.set_exception(error)
            answer.exception()  # maybe nobody waits any more
        else:
            answer.set_result(task.result())
        self._continue(key, read)


async def authenticated(request: Request, org: str | None) -> Actor:
    """The caller. Looked up, and counted, once for a request."""
    state = request.scope["state"]
    actor: Actor | None = state.get("actor")
    if actor is not None:
        return actor
    actor = state["actor"] = await key_holder(request, org)
    await request.app.state.rates.take(request.app.state.db, actor)
    await request.app.state.in_flight.enter(request.scope, actor.org_id)
    return actor


async def key_holder(request: Request, org: str | None) -> Actor:
    """The holder of the request's key, as of now. A stream asks again and again."""
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not secret:
        raise Unauthenticated("This route needs a key.", code="key_missing")
    try:
        state, secret = request.app.state, secret.strip()
        callers: SharedReads[tuple[str, str | None], Actor] = state.callers
        return await callers.run((secret, org), lambda: frame.authenticate_key(state.db, secret, org))
    except Unauthenticated as error:
        request.app.state.metrics.rejected_keys.add(1, {"reason": error.code})
        raise


async def throttled(exchange: Exchange, result: Awaitable[T]) -> T:
    """Count a failure of a route without keys against the caller's address."""
    try:
        return await result
    except Unauthenticated:
        client = exchange.request.client
        exchange.state.throttle.failed(client.host if client else "")
        raise


def _read_header(request: Request, name: str, faults: list[dict[str, Any]]) -> Any:
    text = request.headers.get(name)
    return None if text is None else _validate(HEADERS[name], text, ("header", name), faults)


def _validate(kind: Any, value: Any, place: tuple[str, ...], faults: list[dict[str, Any]]) -> Any:
    try:
        return adapter(kind).validate_python(value)
    except ValidationError as error:
        faults += _faults_at(place, error)
        return None


async def _idempotency_key(request: Request, key: str) -> IdempotencyKey:
    digest = hashlib.sha256(request.scope["path"].encode() + b"\n" + await request.body()).digest()
    return IdempotencyKey(key=key, fingerprint=digest)


def _expected_revision(request: Request) -> int | None:
    tag = request.headers.get(REVISION)
    if tag is None or tag.strip() == "*":
        return None
    tag = tag.strip().removeprefix("W/").strip('"')
    if not (tag.isascii() and tag.isdigit() and len(tag) < 10):
        raise InvalidInput(
            "`If-Match` is not an ETag of this plane.",
            code="invalid_etag",
            hint='Send the ETag header of your last read unchanged, for example `"3"`.',
        )
    return int(tag)


async def _read_body(request: Request) -> Any:
    """The parsed body; its bytes where it is not declared to be JSON."""
    try:
        content = await request.body()
    except ClientDisconnect:
        raise HTTPException(400) from None
    if not content:
        return _MISSING
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        return content
    is_large = len(content) > MAX_BODY_BYTES
    try:
        return json.loads(_large_text(content) if is_large else content, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        if is_large:
            raise InvalidInput(
                "The body is not valid JSON.", code="invalid_json", hint="Send one JSON object."
            ) from None
        if isinstance(error, json.JSONDecodeError):
            fault = {"type": "json_invalid", "loc": ("body", error.pos), "msg": "JSON decode error"}
            raise InvalidRequest([fault]) from None
        raise HTTPException(400) from None


async def _validate_body(request: Request, kind: Any, body: Any) -> tuple[Any, list[dict[str, Any]]]:
    """The value and its faults."""
    if body is _MISSING:
        return None, [{"type": "missing", "loc": ("body",), "msg": "Field required"}]
    if isinstance(body, dict) and (_compiles(body) or len(await request.body()) > THREAD_BYTES):
        return await _threads.run(_validate_json, kind, body)
    return _validate_json(kind, body)


def _compiles(body: dict[str, Any]) -> bool:
    return POLICIES in body or (PARAMETERS in body and not schemas.is_checked(body[PARAMETERS]))


def _faults_at(place: tuple[str, ...], error: ValidationError) -> list[dict[str, Any]]:
    return [
        {**fault, "loc": (*place, *fault["loc"])}
        for fault in error.errors(include_url=False, include_context=False, include_input=False)
    ]


def _validate_json(kind: Any, body: Any) -> tuple[Any, list[dict[str, Any]]]:
    validator = adapter(kind)
    try:
        return validator.validate_python(body, from_attributes=True), []
    except ValidationError as error:
        if error.error_count() <= MOST_DESCRIBED:
            return None, _faults_at(("body",), error)
        return None, _count_faults(error.error_count(), body, validator)


def _count_faults(count: int, body: Any, validator: TypeAdapter[Any]) -> list[dict[str, Any]]:
    names = validator.json_schema().get("properties", {})
    unknown = [name for name in body if name not in names] if isinstance(body, dict) else []
    return [
        *({"type": "extra_forbidden", "loc": ("body", name), "msg": ""} for name in unknown[:SHOWN_FAULTS]),
        {"type": MANY_FAULTS, "loc": ("body",), "msg": "Too much of it is not valid.", "count": count},
    ]


def _large_text(content: bytes) -> str:
    """Refuse a body that is large in anything but its texts. Whole files are texts; millions of values would be made one by one
    while nobody else is served."""
    body = content.decode()
    end = outside = 0
    while end < len(body):
        quote = body.find('"', end)
        start = len(body) if quote < 0 else quote + 1
        outside += start - end
        if outside > MAX_BODY_BYTES:
            raise TooLarge(f"More than {MAX_BODY_BYTES} bytes of the body are no text.")
        end = start if quote < 0 else scanstring(body, start)[1]
    return body


def reply(value: Any, status: int = 200) -> Response:
    """A value as JSON, with its revision as the ETag where it has one."""
    revision = getattr(value, "revision", None)
    headers = {"ETag": f'"{revision}"'} if revision is not None else None
    return Response(adapter(type(value)).dump_json(value), status, headers, "application/json")
