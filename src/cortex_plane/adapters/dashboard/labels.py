"""The words and the classes of what pages show."""

from __future__ import annotations

import re
from typing import Any

from cortex_plane.domain.approvals import Approval, ApprovalKind, ApprovalStatus
from cortex_plane.domain.policies import OnDeny

_RISKS = {"low": "Low risk", "medium": "Medium risk", "high": "High risk", "critical": "Critical"}
_STATUSES = {
    "PENDING": "Queued",
    "RUNNING": "Running",
    "RETRY": "Retrying",
    "WAITING_FOR_APPROVAL": "Waiting for a person",
    "SLEEPING": "Sleeping",
    "PAUSED": "Paused",
    "COMPLETED": "Completed",
    "FAILED": "Failed",
    "CANCELLED": "Cancelled",
}
_CALLS = {
    "awaiting_approval": "waiting for a person",
    "intended": "under way",
    "uncertain": "did it happen?",
    "cleared": "is sent again",
}
_EVENTS = {
    "requested": "Requested",
    "joined": "An identical call joined",
    "reminded": "Reminder",
    "edited": "Arguments edited",
    "approved": "Approved",
    "denied": "Denied",
    "answered": "Answered",
    "expired": "Expired",
    "cancelled": "Cancelled",
    "refused": "A decision was refused",
    "channel_duplicate": "The same decision came again",
    "channel_conflict": "A later decision came too late",
}
_DOORS = {"dashboard": "in the dashboard", "api": "over the API"}


def risk(name: str) -> str:
    return _RISKS.get(name, name.capitalize())


def job_status(status: str) -> str:
    return _STATUSES.get(str(status), str(status).replace("_", " ").capitalize())


def call_status(status: str) -> str:
    return _CALLS.get(str(status), str(status).replace("_", " "))


def event(name: str) -> str:
    return _EVENTS.get(name, name.replace("_", " ").capitalize())


def door(name: str) -> str:
    return _DOORS.get(str(name), f"over {name}")


def approvers(approval: Approval) -> str:
    """Who may decide, as the policy says it."""
    who = []
    if approval.approvers.owner:
        who.append("the owner of the session")
    who += [f"whoever is {role}" for role in approval.approvers.roles]
    if approval.approvers.members:
        count = len(approval.approvers.members)
        who.append("one named person" if count == 1 else f"{count} named people")
    text = " or ".join(who) or "nobody that the policy names"
    return text[0].upper() + text[1:]


def afterwards(approval: Approval) -> str:
    """What happens when nobody decides, or somebody says no."""
    if approval.kind is ApprovalKind.UNCERTAIN_EFFECT:
        return "It waits until somebody knows; nothing expires."
    return "If nobody decides by then, the call is not sent and the job fails."


def on_deny(approval: Approval) -> str:
    if approval.on_deny is OnDeny.CONTINUE:
        return "The agent is told your reason and goes another way."
    return "The job fails and its other open requests are cancelled. The session stays open."


def outcome(approval: Approval) -> str:
    """How it ended, in one line."""
    by = approval.resolved_by_name
    words = {
        ApprovalStatus.PENDING: "Pending",
        ApprovalStatus.APPROVED: "Approved",
        ApprovalStatus.DENIED: "Denied",
        ApprovalStatus.EXPIRED: "Expired",
        ApprovalStatus.CANCELLED: "Cancelled",
    }[approval.status]
    if approval.kind is ApprovalKind.UNCERTAIN_EFFECT and approval.status is not ApprovalStatus.PENDING:
        words = "Answered" if by else words
    return f"{words} by {by}" if by else words


def aftermath(approval: Approval) -> str:
    """What an end that nobody decided means."""
    if approval.status is ApprovalStatus.EXPIRED:
        return "Nobody decided in time, so the call was not sent."
    if approval.status is ApprovalStatus.CANCELLED:
        return "Its job ended before anybody decided."
    return ""


def what_went_wrong(error: str) -> str:
    """A job's error without the job and the step that it begins with: the page names both."""
    return re.sub(r"^Job [0-9a-f-]{36}, step \d+: ", "", error)


def short_id(id: Any) -> str:
    """The end of an id: its beginning is a time, and alike for all that happened together."""
    return str(id)[-8:]


FILTERS = {
    "risk": risk,
    "job_status": job_status,
    "call_status": call_status,
    "door": door,
    "event": event,
    "approvers": approvers,
    "afterwards": afterwards,
    "on_deny": on_deny,
    "outcome": outcome,
    "aftermath": aftermath,
    "what_went_wrong": what_went_wrong,
    "short_id": short_id,
}
