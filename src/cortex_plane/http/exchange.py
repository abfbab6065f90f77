"""What routes share: who is calling, headers with a meaning, and how answers are rendered."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Generic, TypeVar

import orjson
from fastapi import Depends, Header, Path, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from cortex_plane.db.database import Database
from cortex_plane.http.metrics import Metrics
from cortex_plane.http.problems import documented
from cortex_plane.kernel import pages
from cortex_plane.kernel.errors import InvalidInput, Unauthenticated
from cortex_plane.kernel.fields import BODY_LIMIT, SLUG_PATTERN, Ref, to_json
from cortex_plane.kernel.ids import MAX_KEY_LENGTH, IdempotencyKey
from cortex_plane.kernel.pages import Page
from cortex_plane.tenancy.model.access import Actor
from cortex_plane.tenancy.verbs import keys
from cortex_plane.tenancy.verbs.frame import Verb

T = TypeVar("T")

_KEY_PATTERN = r"^[\x21-\x7e]+$"
MAX_PAGE_BYTES = 2 * 1024 * 1024
"""In the OpenAPI entry of a route: how large its body may be."""
HEAVY = "x-heavy"
"""In the OpenAPI entry of a route: it reads long spans, and few of them run at a time."""


# Dependencies are async, also where they await nothing: the framework runs others in a thread, which costs more than
# the rest of a request.
async def database(request: Request) -> Database:
    db: Database = request.app.state.db
    return db


async def metrics(request: Request) -> Metrics:
    found: Metrics = request.app.state.metrics
    return found


async def caller(
    request: Request,
    org: Annotated[
        str | None,
        Header(
            alias="Cortex-Org",
            description="For platform keys: the slug of the org to act in.",
            min_length=2,
            max_length=100,
            pattern=SLUG_PATTERN,
        ),
    ] = None,
) -> Actor:
    return await authenticated(request, org)


async def authenticated(request: Request, org: str | None) -> Actor:
    """Whoever sent this request. Looked up, and counted, once for a request."""
    known: Actor | None = request.scope["state"].get("actor")
    if known is not None:
        return known
    actor = await holder(request, org)
    request.scope["state"]["actor"] = actor
    await request.app.state.rates.take(request.app.state.db, actor)
    await request.app.state.in_flight.enter(request.scope, actor.org_id)
    return actor


async def holder(request: Request, org: str | None) -> Actor:
    """Whoever holds the key that the request carries, as of now: a stream asks again and again."""
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not secret:
        raise Unauthenticated("This route needs a key.", code="key_missing")
    try:
        return await keys.authenticate_key(request.app.state.db, secret.strip(), org)
    except Unauthenticated as error:
        request.app.state.metrics.rejected_keys.add(1, {"reason": error.code})
        raise


async def idempotency(
    request: Request,
    key: Annotated[
        str | None,
        Header(
            alias="Idempotency-Key",
            description="Repeat a request safely: the same key and body have one effect.",
            min_length=1,
            max_length=MAX_KEY_LENGTH,
            pattern=_KEY_PATTERN,
        ),
    ] = None,
) -> IdempotencyKey | None:
    return await once_of(request, key)


async def once_of(request: Request, key: str | None) -> IdempotencyKey | None:
    if key is None:
        return None
    digest = hashlib.sha256(request.url.path.encode() + b"\n" + await request.body()).digest()
    return IdempotencyKey(key=key, fingerprint=digest)


def is_idempotency_key(text: str) -> bool:
    return len(text) <= MAX_KEY_LENGTH and re.fullmatch(_KEY_PATTERN, text) is not None


async def expected_revision(
    if_match: Annotated[
        str | None,
        Header(
            alias="If-Match",
            description="The ETag you saw: the change is refused if it is no longer current.",
        ),
    ] = None,
) -> int | None:
    if if_match is None or if_match.strip() == "*":
        return None
    tag = if_match.strip().removeprefix("W/").strip('"')
    if not (tag.isascii() and tag.isdigit() and len(tag) < 10):
        raise InvalidInput(
            "`If-Match` is not an ETag of this plane.",
            code="invalid_etag",
            hint='Send the ETag header of your last read unchanged, for example `"3"`.',
        )
    return int(tag)


Db = Annotated[Database, Depends(database)]
Caller = Annotated[Actor, Depends(caller)]
OnceOnly = Annotated[IdempotencyKey | None, Depends(idempotency)]
Revision = Annotated[int | None, Depends(expected_revision)]
RefPath = Annotated[Ref, Path(description="Its id or its slug.")]


class ListQuery(BaseModel):
    """Where a page starts and how long it is. Unknown parameters are errors."""

    model_config = ConfigDict(extra="forbid")
    cursor: Annotated[str, Field(min_length=1, max_length=500, pattern=r"^[A-Za-z0-9_-]+$")] | None = None
    limit: Annotated[int, Field(ge=1, le=200)] = 50


class Listing(BaseModel, Generic[T]):
    items: list[T]
    next_cursor: str | None = Field(description="Send it as `cursor` for the next page; null at the end.")


def reply(value: Any, status: int = 200) -> Response:
    """A domain value as JSON, with its revision as the ETag where it has one."""
    revision = getattr(value, "revision", None)
    headers = {"ETag": f'"{revision}"'} if revision is not None else None
    return Response(to_json(value), status, headers, "application/json")


def reply_page(noun: str, page: Page[Any]) -> Response:
    rendered = _fitting(page.items)
    if len(rendered) < len(page.items):
        last = page.items[len(rendered) - 1]
        return _listing(rendered, pages.encode(noun, last.created_at, str(last.id)))
    return _listing(rendered, pages.encode_position(noun, page.next))


def reply_numbered(noun: str, items: Sequence[T], limit: int, number: Callable[[T], int]) -> Response:
    """A page of a list that is ordered by a number of its own."""
    rendered = _fitting(items[:limit])
    kept = items[: len(rendered)]
    return _listing(rendered, pages.encode(noun, number(kept[-1])) if len(items) > len(kept) else None)


def reply_keyed(noun: str, items: Sequence[T], limit: int, key: Callable[[T], str]) -> Response:
    """A page of a list that is ordered by a text of its own."""
    rendered = _fitting(items[:limit])
    kept = items[: len(rendered)]
    return _listing(rendered, pages.encode(noun, key(kept[-1])) if len(items) > len(kept) else None)


def reply_all(items: Sequence[Any]) -> Response:
    """A list that is short by nature: one page, and no cursor."""
    return _listing([to_json(item) for item in items], None)


def _fitting(items: Sequence[Any]) -> list[bytes]:
    """The items as JSON, as many as fit into an answer of bearable size, but at least one."""
    rendered: list[bytes] = []
    size = 0
    for item in items:
        rendered.append(to_json(item))
        size += len(rendered[-1])
        if size > MAX_PAGE_BYTES:
            return rendered
    return rendered


def _listing(rendered: list[bytes], cursor: str | None) -> Response:
    body = b'{"items":[' + b",".join(rendered) + b'],"next_cursor":' + orjson.dumps(cursor) + b"}"
    return Response(body, media_type="application/json")


def nothing() -> Response:
    return Response(status_code=204)


def route(operation: Verb[..., Any], *also: int, body: int | None = None) -> dict[str, Any]:
    """What a route's OpenAPI entry says of the operation behind it: its permission, its errors, and the size of its body."""
    limit = {} if body is None else {BODY_LIMIT: body}
    heavy = {HEAVY: True} if operation.heavy else {}
    return {
        "openapi_extra": {
            "x-permission": operation.permission.value,
            "security": [{"key": []}],
            **limit,
            **heavy,
        },
        "responses": documented(400, 401, 403, 404, 409, 412, 413, 422, 429, 503, *also),
    }
