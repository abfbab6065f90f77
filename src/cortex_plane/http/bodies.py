"""Request bodies: read once, strictly, and validated with bounded effort.

No key of an object may stand twice, faults are counted before they are described, and a body that is large, or that brings
something to be compiled, is validated in a thread.
"""

from __future__ import annotations

import json
from json.decoder import scanstring  # type: ignore[attr-defined, unused-ignore]
from typing import Any

from pydantic import TypeAdapter, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from cortex_plane.http.problems import MANY_FAULTS, SHOWN_FAULTS, InvalidRequest
from cortex_plane.kernel.documents import unique
from cortex_plane.kernel.errors import InvalidInput, TooLarge
from cortex_plane.kernel.fields import MAX_BODY_BYTES, adapter
from cortex_plane.kernel.shares import Turns

COMPILED = frozenset({"policies", "parameters"})
"""Fields whose validation compiles what the caller sends: conditions and schemas. Such a body is validated in a thread."""
LOOKED_AT_BYTES = 64 * 1024
"""A larger body is validated in a thread too: every value in it is looked at."""
DESCRIBED = 100
"""More faults than these are only counted: to describe each of them costs more than to find it."""

_MISSING = object()
_threads = Turns(2)


async def read_body(request: Request) -> Any:
    """The parsed body; its bytes where it is not declared to be JSON."""
    try:
        content = await request.body()
    except ClientDisconnect:
        raise HTTPException(400) from None
    if not content:
        return _MISSING
    if not _is_json(request.headers.get("content-type", "")):
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


async def validate_body(request: Request, kind: Any, body: Any) -> tuple[Any, list[dict[str, Any]]]:
    """The value and its faults."""
    if body is _MISSING:
        return None, [{"type": "missing", "loc": ("body",), "msg": "Field required"}]
    if isinstance(body, dict) and (
        not COMPILED.isdisjoint(body) or len(await request.body()) > LOOKED_AT_BYTES
    ):
        return await _threads.run(_validate, kind, body)
    return _validate(kind, body)


def faults_at(place: tuple[str, ...], error: ValidationError) -> list[dict[str, Any]]:
    return [
        {**fault, "loc": (*place, *fault["loc"])}
        for fault in error.errors(include_url=False, include_context=False, include_input=False)
    ]


def _validate(kind: Any, body: Any) -> tuple[Any, list[dict[str, Any]]]:
    validator = adapter(kind)
    try:
        return validator.validate_python(body, from_attributes=True), []
    except ValidationError as error:
        if error.error_count() <= DESCRIBED:
            return None, faults_at(("body",), error)
        return None, _count_faults(error.error_count(), body, validator)


def _count_faults(count: int, body: Any, validator: TypeAdapter[Any]) -> list[dict[str, Any]]:
    known = validator.json_schema().get("properties", {})
    unknown = [name for name in body if name not in known] if isinstance(body, dict) else []
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


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))
