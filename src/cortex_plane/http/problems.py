"""Errors as RFC 9457 problems: a stable code for programs, and what to do next for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response

from cortex_plane.jobs.model.journal import GateClosed
from cortex_plane.kernel.errors import CortexError, InvalidInput, TooLarge

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


class FieldError(BaseModel):
    field: str
    message: str


class Problem(BaseModel):
    """RFC 9457. ``code`` is stable and meant for programs; ``hint`` says what to do next."""

    type: str = "about:blank"
    title: str
    status: int
    code: str
    detail: str
    hint: str
    request_id: str | None = None
    errors: list[FieldError] = Field(default_factory=list)
    used_by: dict[str, int] | None = None
    questions: list[dict[str, Any]] | None = None
    """Of `gate_closed`: what must be answered first."""


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The error responses of a route, for its OpenAPI entry."""
    schema = {"$ref": "#/components/schemas/Problem"}
    return {
        status: {"description": TITLES[status], "content": {MEDIA_TYPE: {"schema": schema}}}
        for status in statuses
    }


def problem(
    request: Request,
    status: int,
    code: str,
    detail: str,
    hint: str,
    *,
    errors: list[FieldError] | None = None,
    used_by: dict[str, int] | None = None,
    questions: list[dict[str, Any]] | None = None,
    headers: dict[str, str] | None = None,
) -> Response:
    body = Problem(
        title=TITLES.get(status, "Error"),
        status=status,
        code=code,
        detail=detail,
        hint=hint,
        request_id=request.scope.get("state", {}).get("request_id"),
        errors=errors or [],
        used_by=used_by,
        questions=questions,
    )
    content = orjson.dumps({k: v for k, v in body.model_dump().items() if v not in (None, [])})
    return Response(content, status, headers, MEDIA_TYPE)


async def _ours(request: Request, error: Exception) -> Response:
    if not isinstance(error, CortexError):
        raise error
    status = error.http_status
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    if status in (429, 503):
        headers["Retry-After"] = str(error.details.get("retry_after", 1))
    if status == 503:
        log.warning("unavailable", error=str(error), cause=repr(error.__cause__))
    field = error.details.get("field")
    return problem(
        request,
        status,
        error.code,
        error.message,
        error.hint,
        errors=[FieldError(field=field, message=error.message)] if field else None,
        used_by=error.details.get("used_by"),
        questions=error.questions if isinstance(error, GateClosed) else None,
        headers=headers,
    )


async def _invalid(request: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        raise error
    faults: Sequence[Any] = error.errors()
    errors = [
        FieldError(field=".".join(str(part) for part in item["loc"])[:_SHOWN_FIELD], message=_said(item))
        for item in faults[:SHOWN_FAULTS]
    ]
    if any(item["type"] == "json_invalid" for item in faults):
        return problem(
            request,
            422,
            "invalid_json",
            "The body is not valid JSON.",
            "Send one JSON object.",
            errors=errors,
        )
    count = faults[-1]["count"] if faults[-1]["type"] == MANY_FAULTS else len(faults)
    shown = " These are the first of them." if count > len(errors) else ""
    return problem(
        request,
        422,
        "invalid_request",
        f"{count} field{'s are' if count > 1 else ' is'} not valid.{shown}",
        InvalidInput.default_hint,
        errors=errors,
    )


def _said(item: dict[str, Any]) -> str:
    unknown = item["type"] in ("unexpected_keyword_argument", "extra_forbidden")
    return "There is no such field." if unknown else str(item["msg"])[:_SHOWN_MESSAGE]


async def _framework(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    codes = {
        404: ("route_not_found", "There is no such route.", "The routes are listed in /openapi.json."),
        405: ("method_not_allowed", "This route does not take this method.", "See /openapi.json."),
        400: ("unreadable", "The body cannot be read.", "Send UTF-8 encoded JSON."),
        413: (TooLarge.code, str(error.detail), TooLarge.default_hint),
    }
    code, detail, hint = codes.get(error.status_code, ("http_error", str(error.detail), "See /openapi.json."))
    return problem(request, error.status_code, code, detail, hint, headers=dict(error.headers or {}))


async def _defect(request: Request, error: Exception) -> Response:
    log.error("request failed", exc_info=error)
    return problem(
        request, 500, "internal", "Something went wrong in the plane.", "Report it with the request id."
    )


def install(app: FastAPI) -> None:
    app.add_exception_handler(CortexError, _ours)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _framework)
    app.add_exception_handler(Exception, _defect)
