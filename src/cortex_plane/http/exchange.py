"""One request: who calls, its turn among others, what it brings, the verb that answers it, and how the answer is rendered.

A `Binding` puts a declared route before its verb. It reads and validates everything that the declaration names and reports all
faults at once; then the verb is called with the values of the path and the body, in this order, and by name with the idempotency
key (``once``), the ``revision`` and the query parameters.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from json.decoder import scanstring  # type: ignore[attr-defined, unused-ignore]
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from cortex_plane.db.database import Database
from cortex_plane.http.problems import MANY_FAULTS, SHOWN_FAULTS, InvalidRequest
from cortex_plane.kernel import schemas
from cortex_plane.kernel.canonical import unique
from cortex_plane.kernel.errors import InvalidInput, TooLarge, Unauthenticated
from cortex_plane.kernel.fields import MAX_BODY_BYTES, SLUG_PATTERN, adapter
from cortex_plane.kernel.ids import MAX_KEY_LENGTH, IdempotencyKey
from cortex_plane.kernel.routes import SMALL_BODY_BYTES, Route
from cortex_plane.kernel.shares import Turns
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs import frame
from cortex_plane.tenancy.verbs.frame import SharedReads, Verb

T = TypeVar("T")

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


async def authenticated(request: Request, org: str | None) -> Actor:
    """The caller. Looked up, and counted, once for a request."""
    state = request.scope["state"]
    actor: Actor | None = state.get("actor")
    if actor is not None:
        return actor
    actor = state["actor"] = await key_holder(request, org)
    await request.app.state.rates.take(request.app.state.db, actor)
    await request.app.state.in_flight.enter(state, actor.org_id)
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
