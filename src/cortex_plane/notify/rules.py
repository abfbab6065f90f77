"""When a delivery is tried again, when it is given up, and what a message is about."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import orjson

from cortex_plane.approvals.model.approvals import Approval, ApprovalStatus, Delegation
from cortex_plane.approvals.model.questions import QuestionForm
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.notify.model.notifications import ChatReply, Occasion, TryAgain
from cortex_plane.tenancy.model.identities import NotificationKind

SCHEDULE = (5.0, 30.0, 120.0, 600.0, 1800.0, 3600.0, *(7200.0,) * 5)
"""Seconds to wait after each failure; after the last one a message is given up. A channel may have its own."""
LONGEST_WAIT_SECONDS = 24 * 3600.0
"""Nobody may put us off for longer."""
TRIES_IN_ORDER = 3
"""So often a reply is tried before what comes after it in its chat is sent."""
BREAKER_FAILURES = 5
"""So many tries of a connection that fail in a row pause it."""
NO_BREAKER = 2**31 - 1
"""For connections whose receivers fail one by one."""
LONGEST_OUTAGE = timedelta(days=3)
"""A vendor that is away for so long costs a message no try."""
FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=5), timedelta(minutes=5)
ANY_VERSION = 2**31 - 1
"""Nothing is newer: what a message would have shown is not known."""
OUTCOME_IS_NEWS = timedelta(hours=24)
"""How a request ended is told for so long. After that nobody waits for it."""
BROKEN_OFF = "The agent was interrupted. It writes this answer anew when it goes on."
"""In the place of an answer whose beginning the chat showed."""
MOVED = "You wrote in another place meanwhile. The answer is there."


def delay(attempts: int, chance: float, least: float | None, schedule: Sequence[float] = SCHEDULE) -> float:
    """Full jitter below the step of this failure (``attempts`` counts it), but not sooner than whoever refused it asked."""
    return max(chance * schedule[min(attempts, len(schedule)) - 1], min(least or 0.0, LONGEST_WAIT_SECONDS))


def holds_lane(kind: NotificationKind, attempts: int) -> bool:
    """Whether later messages to the same chat wait for one that failed. Words of an agent are read in their order; one that its vendor
    refuses again and again keeps nothing else waiting."""
    return kind is NotificationKind.REPLY and attempts <= TRIES_IN_ORDER


def requested_pause(error: TryAgain) -> timedelta | None:
    """How long whoever refused a message asked to be left alone; None where that is no time to speak of."""
    if error.after_seconds is None or error.after_seconds <= 0:
        return None
    return timedelta(seconds=min(error.after_seconds, LONGEST_WAIT_SECONDS))


def gives_up(
    attempts: int, resolved_at: datetime | None, now: datetime, schedule: Sequence[float] = SCHEDULE
) -> str | None:
    """Why nobody tries again; None where somebody does."""
    if attempts > len(schedule):
        return f"given up after {attempts} tries"
    if resolved_at is not None and now - resolved_at > OUTCOME_IS_NEWS:
        return "given up: the request was over for more than a day"
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportedState:
    """The state of a request that a message reports."""

    status: str
    version: int
    level: int
    delegations: int
    reminded_at: str | None
    votes: int

    @classmethod
    def of(cls, approval: Approval, delegations: Sequence[Delegation]) -> ReportedState:
        return cls(
            status=approval.status.value,
            version=approval.version,
            level=approval.escalation_level,
            delegations=len(delegations),
            reminded_at=approval.reminded_at.isoformat() if approval.reminded_at else None,
            votes=approval.votes_for,
        )


def occasion(
    approval: Approval, delegations: Sequence[Delegation], member_id: UUID, earlier: Mapping[str, Any], first_level: int
) -> Occasion:
    """What is new since the last message. ``first_level``: how far the request had gone up when this person was asked."""
    if approval.status is not ApprovalStatus.PENDING:
        return Occasion.RESOLVED
    if not earlier:
        if any(hop.to_member_id == member_id for hop in delegations):
            return Occasion.DELEGATED
        return Occasion.ESCALATED if first_level > 0 else Occasion.REQUESTED
    now = ReportedState.of(approval, delegations)
    if now.reminded_at != earlier.get("reminded_at"):
        return Occasion.REMINDED
    if now.level != earlier.get("level"):
        return Occasion.ESCALATED
    return Occasion.DELEGATED if now.delegations != earlier.get("delegations") else Occasion.CHANGED


def chat_reply(reply: Mapping[str, Any], thread: str | None) -> ChatReply:
    """What the person of a conversation hears: words of their agent, as far as it has written them, or what became of its job."""
    if reply["is_partial"]:
        text = f"{reply['text'].rstrip()} …" if (reply["text"] or "").strip() else BROKEN_OFF
        return ChatReply(agent=reply["agent"], text=text, thread=thread, is_partial=True)
    if reply["ended"] == "moved":
        return ChatReply(agent=reply["agent"], text=MOVED, thread=thread)
    text = reply["text"] if reply["status"] is None else _job_report(reply["status"], reply["decision"])
    is_final = reply["status"] != JobStatus.WAITING_FOR_APPROVAL
    return ChatReply(agent=reply["agent"], text=text or "", thread=thread, is_final=is_final)


def _job_report(status: str, decision: str | None) -> str:
    """``decision``: on its last request, where it had one."""
    if status == JobStatus.WAITING_FOR_APPROVAL:
        return "I need an approval before I go on."
    if status == JobStatus.CANCELLED:
        return "The agent was stopped before it had written its answer."
    if status == JobStatus.COMPLETED:
        return "The agent is done and has nothing to say."
    if decision == ApprovalStatus.DENIED:
        return "The agent stopped: what it wanted to do was denied."
    if decision == ApprovalStatus.EXPIRED:
        return "The agent stopped: nobody decided in time about what it wanted to do."
    return "The agent stopped because of an error. Nothing that you wrote is lost: write again to let it try anew."


_LINE = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_.-]{0,63})\s*[:=]\s*(.*?)\s*")
_TRUTHS = {"yes": True, "true": True, "no": False, "false": False}


def answer_prompt(form: QuestionForm | None, *, is_reply: bool) -> str:
    """What is asked of somebody who answers in a chat: by a reply, or in a form."""
    answer = "Reply to this message with" if is_reply else "Answer with"
    if form is not None and form.choices:
        return f"{answer} one of these:\n" + "\n".join(f"- {choice}" for choice in form.choices)
    if form is None or form.schema is None:
        return "Reply to this message with your answer." if is_reply else "What do you answer?"
    lines = [f"{field.name}: {field.description or field.label}" for field in form.fields]
    return f"{answer} one line for each of these, as `name: value`:\n" + "\n".join(lines)


def read_answer(form: QuestionForm | None, words: str) -> Any:
    """What the agent gets: the words, one of the choices, or an object from lines of `name: value`, or from JSON."""
    if form is None or (not form.choices and form.schema is None):
        return words
    if form.choices:
        return next((choice for choice in form.choices if choice.casefold() == words.casefold()), words)
    if words.startswith("{"):
        try:
            return orjson.loads(words)
        except orjson.JSONDecodeError:
            raise _unreadable("it begins like JSON, and is none") from None
    types = {field.name: field.type for field in form.fields}
    if len(types) == 1 and _LINE.fullmatch(words) is None:
        ((name, kind),) = types.items()
        return {name: _value(name, kind, words)}
    answer = {}
    for line in filter(str.strip, words.splitlines()):
        match = _LINE.fullmatch(line)
        if match is None or match[1] not in types:
            raise _unreadable(f"`{line[:100]}` is no line of the form `name: value`")
        answer[match[1]] = _value(match[1], types[match[1]], match[2])
    return answer


def _value(name: str, kind: str, text: str) -> Any:
    try:
        if kind == "boolean":
            return _TRUTHS[text.lower()]
        return text if kind == "string" else int(text) if kind == "integer" else float(text)
    except (ValueError, KeyError):
        raise _unreadable(f"`{name}` must be {'yes or no' if kind == 'boolean' else 'a number'}") from None


def _unreadable(fault: str) -> InvalidInput:
    return InvalidInput(f"The answer does not fit: {fault}. Reply again.", code="answer_invalid")
