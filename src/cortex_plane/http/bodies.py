"""Request bodies: how large each may be, who must be known before a large one is read, and how it is validated.

The framework reads a body whole before it asks who sends it, and collects every fault of it. Here the caller of a route with
a large body comes first, no key of an object may stand twice, faults are counted before they are described, and a body that is
large, or that brings something to be compiled, is validated in a thread.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Coroutine
from json.decoder import scanstring  # type: ignore[attr-defined, unused-ignore]
from typing import Any

from fastapi._compat import ModelField
from fastapi.exceptions import HTTPException
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from cortex_plane.http.exchange import HEAVY, authenticated
from cortex_plane.http.frame import SMALL_BODY_BYTES
from cortex_plane.http.problems import MANY_FAULTS, SHOWN_FAULTS
from cortex_plane.kernel.canonical import unique
from cortex_plane.kernel.errors import InvalidInput, TooLarge
from cortex_plane.kernel.fields import BODY_LIMIT, MAX_BODY_BYTES, SLUG_PATTERN
from cortex_plane.kernel.shares import Turns
from cortex_plane.tenancy.model.access import Permission

Handler = Callable[[Request], Coroutine[Any, Any, Response]]

COMPILED = frozenset({"policies", "parameters"})
"""Fields whose validation compiles what the caller sends: conditions and schemas. Such a body is validated in a thread."""
LOOKED_AT_BYTES = 64 * 1024
"""A larger body is validated in a thread too: every value in it is looked at."""
DESCRIBED = 100
"""More faults than these are only counted: to describe each of them costs more than to find it."""


def guarded(route: APIRoute) -> Handler:
    """The handler of a route, behind the bounds of its body."""
    ordinary = route.get_route_handler()
    extra = route.openapi_extra or {}
    limit: int = extra.get(BODY_LIMIT, SMALL_BODY_BYTES)
    permission = Permission(extra["x-permission"]) if "x-permission" in extra else None
    heavy = bool(extra.get(HEAVY))
    caller_first = permission is not None and (limit > SMALL_BODY_BYTES or heavy)
    for field in route.dependant.body_params:
        _bound_faults(field)

    async def handle(request: Request) -> Response:
        if caller_first and not await _may_send(request, permission):
            return await ordinary(request)
        if heavy:
            # Before its body is read. Its operation takes the place.
            request.app.state.db.require_heavy_read(request.scope["state"]["actor"].org_id)
        request.scope["state"]["max_body_bytes"] = limit
        if route.body_field is not None:
            body = await _read_json(request)
            if isinstance(body, dict) and (
                not COMPILED.isdisjoint(body) or len(await request.body()) > LOOKED_AT_BYTES
            ):
                request._json = await _threads.run(_Validated, route.dependant.body_params[0], body)
        return await ordinary(request)

    return handle


class _Validated:
    """A body whose validation is done, and what came of it."""

    def __init__(self, field: ModelField, body: Any) -> None:
        self.outcome = _validate(field, body)


_threads = Turns(2)


async def _may_send(request: Request, permission: Permission | None) -> bool:
    """False where the header that names the org is none: it is refused where its other faults are, within the small limit."""
    org = request.headers.get("cortex-org")
    if org is not None and not (len(org) <= 100 and re.fullmatch(SLUG_PATTERN, org)):
        return False
    actor = await authenticated(request, org)
    if permission is not None:
        actor.require(permission)
    return True


async def _read_json(request: Request) -> Any:
    """Parse the body once, strictly. What is no JSON is left to the framework, which says where it ends to be JSON."""
    try:
        body = await request.body()
    except ClientDisconnect:
        raise HTTPException(400) from None
    if not body or not _is_json(request.headers.get("content-type", "")):
        return None
    large = len(body) > MAX_BODY_BYTES
    try:
        parsed = json.loads(_large_text(body) if large else body, object_pairs_hook=unique)
    except (ValueError, RecursionError):
        if large:  # the framework would read it in other encodings too
            raise InvalidInput(
                "The body is not valid JSON.", code="invalid_json", hint="Send one JSON object."
            ) from None
        return None
    request._json = parsed  # or the framework would parse it again
    return parsed


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


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def _bound_faults(field: ModelField) -> None:
    """Let the framework validate a body as we do."""

    def validate(
        value: Any,
        values: dict[str, Any] | None = None,  # noqa: ARG001 -- the framework's signature
        *,
        loc: tuple[int | str, ...] = (),
    ) -> tuple[Any, list[dict[str, Any]]]:
        made, faults = value.outcome if isinstance(value, _Validated) else _validate(field, value)
        return made, [{**fault, "loc": (*loc, *fault["loc"])} for fault in faults]

    field.validate = validate  # type: ignore[method-assign]


def _validate(field: ModelField, value: Any) -> tuple[Any, list[dict[str, Any]]]:
    try:
        return field._type_adapter.validate_python(value, from_attributes=True), []
    except ValidationError as error:
        return None, _faults(error, value, field)


def _faults(error: ValidationError, value: Any, field: ModelField) -> list[dict[str, Any]]:
    count = error.error_count()
    if count <= DESCRIBED:
        return [
            dict(fault)
            for fault in error.errors(include_url=False, include_context=False, include_input=False)
        ]
    known = field._type_adapter.json_schema().get("properties", {})
    unknown = [name for name in value if name not in known] if isinstance(value, dict) else []
    return [
        *({"type": "extra_forbidden", "loc": (name,), "msg": ""} for name in unknown[:SHOWN_FAULTS]),
        {"type": MANY_FAULTS, "loc": (), "msg": "Too much of it is not valid.", "count": count},
    ]
