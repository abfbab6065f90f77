"""Errors as gRPC statuses, with `google.rpc` details: a stable code for programs, fields that are not valid, when to try again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import structlog
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2
from pydantic import ValidationError

from cortex_plane.kernel.errors import AlreadyExists, CortexError, GateClosed, InvalidInput
from grpc import StatusCode

log = structlog.get_logger()

DOMAIN = "cortex-plane"
DETAILS = "grpc-status-details-bin"
"""The metadata in which clients of every language look for details."""
STREAM_DROPPED = "stream_dropped"
"""The end of a stream that its reader goes on with elsewhere."""
SHOWN_FAULTS = 10
_SHOWN_FIELD, _SHOWN_MESSAGE = 300, 1000
MOST_QUESTIONS = 3000
"""Bytes: clients take 8 KB of metadata."""

CODES = {
    400: StatusCode.INVALID_ARGUMENT,
    401: StatusCode.UNAUTHENTICATED,
    403: StatusCode.PERMISSION_DENIED,
    404: StatusCode.NOT_FOUND,
    409: StatusCode.FAILED_PRECONDITION,
    410: StatusCode.OUT_OF_RANGE,
    412: StatusCode.ABORTED,
    413: StatusCode.RESOURCE_EXHAUSTED,
    422: StatusCode.INVALID_ARGUMENT,
    424: StatusCode.FAILED_PRECONDITION,
    429: StatusCode.RESOURCE_EXHAUSTED,
    503: StatusCode.UNAVAILABLE,
}
"""By the HTTP status of an error. Any other is INTERNAL."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """How a call ends that fails."""

    code: StatusCode
    message: str
    details: bytes
    """A `google.rpc.Status`."""


def refusal_of(error: Exception, request_id: str) -> Refusal:
    """The refusal of an error. One that nobody raised on purpose is logged, and says nothing about itself."""
    if isinstance(error, CortexError):
        return _refuse(error, request_id)
    log.error("request failed", exc_info=error)
    defect = CortexError(
        "Something went wrong in the plane.", code="internal", hint="Report it with the id of the request."
    )
    return _refuse(defect, request_id)


def _refuse(error: CortexError, request_id: str) -> Refusal:
    code = CODES.get(error.http_status, StatusCode.INTERNAL)
    if isinstance(error, AlreadyExists):
        code = StatusCode.ALREADY_EXISTS
    if error.http_status == 503 and error.code != STREAM_DROPPED:
        log.warning("unavailable", error=str(error), cause=repr(error.__cause__))
    metadata = {"hint": error.hint}
    if isinstance(error, GateClosed):
        questions = orjson.dumps(error.questions)
        metadata["questions"] = questions.decode() if len(questions) <= MOST_QUESTIONS else "too many to show here"
    details: list[Any] = [error_details_pb2.ErrorInfo(reason=error.code, domain=DOMAIN, metadata=metadata)]
    faults: Sequence[tuple[str, str]] = error.details.get("faults", ())
    if not faults and error.details.get("field"):
        faults = [(str(error.details["field"]), error.message)]
    if faults and code is StatusCode.INVALID_ARGUMENT:
        violations = [
            error_details_pb2.BadRequest.FieldViolation(
                field=field[:_SHOWN_FIELD], description=message[:_SHOWN_MESSAGE]
            )
            for field, message in faults[:SHOWN_FAULTS]
        ]
        details.append(error_details_pb2.BadRequest(field_violations=violations))
    if error.http_status in (429, 503):
        seconds = float(error.details.get("retry_after", 1))
        delay = Duration(seconds=int(seconds), nanos=int(seconds % 1 * 1e9))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    details.append(error_details_pb2.RequestInfo(request_id=request_id))
    status = status_pb2.Status(code=code.value[0], message=error.message)
    for detail in details:
        status.details.append(_packed(detail))
    return Refusal(code, error.message, status.SerializeToString())


def _packed(detail: Any) -> AnyMessage:
    packed = AnyMessage()
    packed.Pack(detail)
    return packed


def invalid_fields(error: ValidationError, names: Mapping[str, str]) -> InvalidInput:
    """``names``: what a field of the value is called in the message, where that is another name."""
    faults = [
        (
            ".".join(str(part) for part in (names.get(str(fault["loc"][0]), fault["loc"][0]), *fault["loc"][1:]))
            if fault["loc"]
            else "",
            fault["msg"],
        )
        for fault in error.errors(include_url=False, include_context=False, include_input=False)
    ]
    count = len(faults)
    return InvalidInput(
        f"{count} field{'s are' if count > 1 else ' is'} not valid: {', '.join(field for field, _ in faults[:3])}.",
        faults=faults,
    )
