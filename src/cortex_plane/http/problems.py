"""Errors as RFC 9457 problems: a stable code for programs, and what to do next for people."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import structlog
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from cortex_plane.kernel.errors import CortexError, GateClosed, InvalidInput, TooLarge

log = structlog.get_logger()

MEDIA_TYPE = "application/problem+json"
SHOWN_FAULTS = 10
MANY_FAULTS = "many_faults"
"""The type of the fault that says how many there are where they are not all described."""
_SHOWN_FIELD, _SHOWN_MESSAGE = 300, 1000

TITLES = {
    400: "The request cannot be read",
    401: "Not authenticated",
    403: "Not allowed",
    404: "Not found",
    405: "Method not allowed",
    408: "The request did not arrive in time",
    409: "Conflict with the current state",
    410: "Not here any more",
    412: "Changed in the meantime",
    413: "Too large",
    422: "Invalid input",
    424: "Something that it needs has failed",
    429: "Too many at once",
    431: "The head of the request is too large",
    500: "Internal error",
    503: "Not available now",
}


class InvalidRequest(Exception):
    """Parts of a request are not valid."""

    def __init__(self, faults: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(faults)
        self.faults = faults


@dataclass(frozen=True)
class FieldError:
    field: str
    message: str


@dataclass(frozen=True, kw_only=True)
class Problem:
    """RFC 9457. ``code`` is stable and meant for programs; ``hint`` says what to do next."""

    type: str = "about:blank"
    title: str
    status: int
    code: str
    detail: str
    hint: str
    request_id: str | None = None
    errors: list[FieldError] = field(default_factory=list)
    used_by: dict[str, int] | None = None
    questions: list[dict[str, Any]] | None = None
    """Of `gate_closed`: what must be answered first."""


def problem(
    request: Request,
    status: int,
    code: str,
    detail: str,
    hint: str,
    *,
    headers: dict[str, str] | None = None,
    **details: Any,
) -> Response:
    """``details`` are the other fields of a problem."""
    request_id = request.scope.get("state", {}).get("request_id")
    title = TITLES.get(status, "Error")
    body = Problem(title=title, status=status, code=code, detail=detail, hint=hint, request_id=request_id, **details)
    content = orjson.dumps({name: value for name, value in vars(body).items() if value not in (None, [])})
    return Response(content, status, headers, MEDIA_TYPE)


async def _answer_refusal(request: Request, error: CortexError) -> Response:
    status = error.http_status
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    if status in (429, 503):
        headers["Retry-After"] = str(error.details.get("retry_after", 1))
    if status == 503:
        log.warning("unavailable", error=str(error), cause=repr(error.__cause__))
    place = error.details.get("field")
    return problem(
        request,
        status,
        error.code,
        error.message,
        error.hint,
        errors=[FieldError(field=place, message=error.message)] if place else [],
        used_by=error.details.get("used_by"),
        questions=error.questions if isinstance(error, GateClosed) else None,
        headers=headers,
    )


async def _answer_invalid(request: Request, error: InvalidRequest) -> Response:
    faults = error.faults
    errors = [
        FieldError(field=".".join(str(part) for part in fault["loc"])[:_SHOWN_FIELD], message=_describe(fault))
        for fault in faults[:SHOWN_FAULTS]
    ]
    if any(fault["type"] == "json_invalid" for fault in faults):
        return problem(
            request, 422, "invalid_json", "The body is not valid JSON.", "Send one JSON object.", errors=errors
        )
    count = faults[-1]["count"] if faults[-1]["type"] == MANY_FAULTS else len(faults)
    rest = " These are the first of them." if count > len(errors) else ""
    return problem(
        request,
        422,
        "invalid_request",
        f"{count} field{'s are' if count > 1 else ' is'} not valid.{rest}",
        InvalidInput.default_hint,
        errors=errors,
    )


def _describe(fault: Mapping[str, Any]) -> str:
    is_unknown = fault["type"] in ("unexpected_keyword_argument", "extra_forbidden")
    return "There is no such field." if is_unknown else str(fault["msg"])[:_SHOWN_MESSAGE]


async def _answer_http_error(request: Request, error: HTTPException) -> Response:
    code, detail, hint = {
        404: ("route_not_found", "There is no such route.", "The routes are listed in /openapi.json."),
        405: ("method_not_allowed", "This route does not take this method.", "See /openapi.json."),
        400: ("unreadable", "The body cannot be read.", "Send UTF-8 encoded JSON."),
        413: (TooLarge.code, str(error.detail), TooLarge.default_hint),
    }.get(error.status_code, ("http_error", str(error.detail), "See /openapi.json."))
    return problem(request, error.status_code, code, detail, hint, headers=dict(error.headers or {}))


async def _answer_defect(request: Request, error: Exception) -> Response:
    log.error("request failed", exc_info=error)
    return problem(request, 500, "internal", "Something went wrong in the plane.", "Report it with the request id.")


HANDLERS: Mapping[Any, Callable[[Request, Any], Awaitable[Response]]] = {
    CortexError: _answer_refusal,
    InvalidRequest: _answer_invalid,
    HTTPException: _answer_http_error,
    Exception: _answer_defect,
}
