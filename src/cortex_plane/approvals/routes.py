"""Routes of approvals."""

from __future__ import annotations

from types import NoneType
from uuid import UUID

from cortex_plane.approvals.model import approvals, credentials
from cortex_plane.jobs.model.jobs import Job
from cortex_plane.kernel.fields import MAX_BODY_BYTES, Name
from cortex_plane.kernel.routes import ListRoute, Query, Route, filters


class DelegateQuery(Query):
    approval_id: UUID | None = None
    """Only members who could decide this request."""
    name: Name | None = None
    """Only members whose name contains this."""


LIST_APPROVALS = ListRoute(
    "GET /v1/approvals",
    approvals.Approval,
    query=filters(status=approvals.ApprovalStatus, job_id=UUID, session_id=UUID),
    columns="id status risk tool_name agent deadline may_decide resolved_by_name",
)
"""Newest first. Whoever is not staff sees those of their own sessions, and those that name them."""
GET_APPROVAL = Route("GET /v1/approvals/{approval_id}", approvals.ApprovalDetails)
"""The whole card: the exact arguments, who may decide, and what happened to it so far."""
DECIDE_APPROVAL = Route(
    "POST /v1/approvals/{approval_id}/decide",
    approvals.DecisionReceipt,
    body=approvals.ApprovalDecision,
    once=True,
    max_body=MAX_BODY_BYTES,
)
"""Approve or deny exactly what you saw, or respond to it: `version` and `input_hash` must be those of the card.

With `responded` nothing is sent: the agent gets `answer` as the result of its call. A question of `plane.ask_person` is
answered so, and the answer must fit its choices or its schema.

With `arguments` the call is approved as you edited it. The first decision stands: the same one again answers
`DUPLICATE`, another one is the error `approval_conflict`."""
DELEGATE_APPROVAL = Route(
    "POST /v1/approvals/{approval_id}/delegate", approvals.Approval, body=approvals.DelegationDraft
)
"""Hand your part in a request to somebody with the clearance for it. You decide no more; they may hand it on."""
ANSWER_APPROVAL = Route(
    "POST /v1/approvals/{approval_id}/answer",
    approvals.DecisionReceipt,
    body=approvals.EffectAnswer,
    max_body=MAX_BODY_BYTES,
)
"""For the card of an uncertain effect: it happened, it did not, or give the job up."""

ROTATE_SIGNING_SECRET = Route(
    "POST /v1/org/signing-secret", credentials.SecretRotation, body=credentials.SecretRotationDraft, tag="approvals"
)
"""Sign links with a new secret. Those that were sent work to their deadline, unless `forget` is true."""
DECIDE_BY_TOKEN = Route(
    "POST /v1/approvals/decide", approvals.DecisionReceipt, body=credentials.TokenDecision, needs_key=False
)
"""Approve or deny with the token of a message: it names its person, and what that message showed them.

Needs no key. The token goes into the body and nowhere else. Used again it answers with what was recorded: the same
decision is `DUPLICATE`, another one the error `approval_conflict`."""

LIST_STANDING_APPROVALS = ListRoute(
    "GET /v1/standing-approvals",
    approvals.StandingApproval,
    query=filters(session_id=UUID, active=bool),
    columns="id tool_name agent granted_by used_calls max_calls expires_at condition usable why_not",
)
"""Newest first. Whoever is not staff sees those of their own sessions, and those that they gave.

`active` leaves out what is revoked, over or used up."""
GET_STANDING_APPROVAL = Route("GET /v1/standing-approvals/{standing_id}", approvals.StandingApproval)
"""What it covers, how often it was used, and whether it still covers anything."""
REVOKE_STANDING_APPROVAL = Route(
    "POST /v1/standing-approvals/{standing_id}/revoke", approvals.StandingApproval, body=approvals.Revocation
)
"""From now on it covers nothing. For whoever gave it, admins and operators; once more changes nothing."""

LIST_DELEGATES = ListRoute(
    "GET /v1/delegates", approvals.Delegate, query=DelegateQuery, tag="absences", columns="id display_name"
)
"""Colleagues to whom you may hand your part, by name, at most 200; `name` is the whole name.

With `approval_id`, those who could take your part in that request."""

EXECUTE_REQUEST = Route("POST /v1/agent-requests/{request_id}/execute", Job, status=202, tag="requests", also_at="/api")
"""Spec 3's way to start or resume a request, which is a job. What waits for a decision is refused with 409."""
APPROVE_TOOL = Route(
    "POST /v1/approve-tool/{tool_call_id}",
    approvals.DecisionReceipt,
    body=approvals.ToolDecision,
    once=True,
    tag="requests",
    also_at="/api",
)
"""Spec 3's way to decide on a tool call: its `id` in the event `tool_call`. The request then goes on by itself."""
APPROVE_BY_TOKEN, DENY_BY_TOKEN = (
    Route(
        f"POST /api/approvals/{choice}",
        approvals.DecisionReceipt,
        body=credentials.TokenAnswer,
        needs_key=False,
        in_document=False,
    )
    for choice in ("approve", "deny")
)
"""Paths of spec 1 for `POST /v1/approvals/decide`. The token goes into the body."""
APPROVE_BY_PATH, DENY_BY_PATH = (
    Route(
        f"POST /api/approvals/{{token}}/{choice}",
        NoneType,
        path_types={"token": str},
        needs_key=False,
        in_document=False,
    )
    for choice in ("approve", "deny")
)
"""Paths of spec 1. A token in a path ends up in logs, so they are refused."""
