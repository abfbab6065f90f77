"""Routes of calls."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from pydantic import Field

from cortex_plane.calls import model
from cortex_plane.jobs.model.effects import CallStatus
from cortex_plane.kernel.fields import MAX_BODY_BYTES
from cortex_plane.kernel.routes import ListRoute, Query, Route, filters
from cortex_plane.sessions.model.sessions import Session


class WaitQuery(Query):
    wait: Annotated[
        float, Field(ge=0, le=model.MAX_WAIT, allow_inf_nan=False, description="Seconds to wait for a decision.")
    ] = 0


AUTHORIZE_CALL = Route(
    "POST /v1/sessions/{session_id}/calls",
    model.ExternalCall,
    body=model.CallDraft,
    status=201,
    max_body=MAX_BODY_BYTES,
    tag="calls",
)
"""Ask before acting. Act only where the answer says `run`; its `next` says what to do otherwise."""
AUTHORIZE_CALLS = Route(
    "POST /v1/sessions/{session_id}/calls/batch",
    model.BatchAnswer,
    body=model.CallBatch,
    max_body=MAX_BODY_BYTES,
    tag="calls",
)
"""Ask about several calls of one response at once. Each needs a key, and is answered as if it were sent alone, in their order."""
LIST_CALLS = ListRoute(
    "GET /v1/calls",
    model.CallShown,
    query=filters(session_id=UUID, status=CallStatus),
    columns="id agent tool status rule attempt key created_at",
)
"""Calls of agents that run elsewhere, newest first."""
GET_CALL = Route("GET /v1/calls/{call_id}", model.ExternalCall, query=WaitQuery)
"""One call. With `wait` it is answered once there is something to do, or when that time is over."""
INTEND_CALL = Route("POST /v1/calls/{call_id}/intent", model.ExternalCall, body=model.IntentDraft)
"""Say that you begin. Act only where the answer says `run`, and before its `dispatch_before`."""
SETTLE_CALL = Route(
    "POST /v1/calls/{call_id}/outcome", model.OutcomeReceipt, body=model.OutcomeDraft, max_body=MAX_BODY_BYTES
)
"""Say what became of it. Told twice the same, nothing changes."""
COMPLETE_SESSION = Route(
    "POST /v1/sessions/{session_id}/complete", Session, body=model.Ending, max_body=MAX_BODY_BYTES, tag="calls"
)
"""The agent that runs elsewhere is done."""
FAIL_SESSION = Route(
    "POST /v1/sessions/{session_id}/fail", Session, body=model.Ending, max_body=MAX_BODY_BYTES, tag="calls"
)
"""The agent that runs elsewhere gives up: nobody is asked any more."""

RESOLVE_REQUEST = Route(
    "POST /v1/sessions/{session_id}/resolve",
    model.Resolution,
    body=model.ResolutionRequest,
    status=201,
    max_body=MAX_BODY_BYTES,
    tag="resolutions",
)
"""What an agent that runs elsewhere may do now, and what it must know and answer first. Asking uses nothing up."""
GET_RESOLUTION = Route("GET /v1/resolutions/{resolution_id}", model.Resolution)
"""A resolution as it was given: for whoever asked for it, and for those who see the whole org."""
EXECUTE_RESOLUTION = Route(
    "POST /v1/resolutions/{resolution_id}/execute",
    model.ExternalCall,
    body=model.CallDraft,
    status=201,
    max_body=MAX_BODY_BYTES,
)
"""Begin a call that the resolution covers. Act only where the answer says `run`."""
REPORT_RESOLUTION = Route(
    "POST /v1/resolutions/{resolution_id}/report", model.OutcomeReceipt, body=model.ReportDraft, max_body=MAX_BODY_BYTES
)
"""Say what became of a call that was executed under it. Told twice the same, nothing changes."""
ANSWER_GATE = Route(
    "POST /v1/sessions/{session_id}/answers",
    model.AnswerReceipt,
    body=model.AnswerDraft,
    max_body=MAX_BODY_BYTES,
    tag="resolutions",
)
"""Answer a gate that stops an agent that runs elsewhere. A wrong answer is one try less."""
GET_PERMISSIONS = Route("GET /v1/sessions/{session_id}/permissions", model.Permissions, tag="resolutions")
"""What is allowed in a session now, and which gate, capability or policy did it. Looking changes nothing."""
