"""The words, classes and times that pages show."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from markupsafe import Markup

from cortex_plane.approvals.model import approvals as approval_model
from cortex_plane.approvals.model.approvals import question_of
from cortex_plane.calls.model import ActionAnswer, ActionState, Whom
from cortex_plane.gates.model.atlases import MatchMode, Trigger, TriggerType
from cortex_plane.gates.rules.prompts import NewsKind, gate_of_rule
from cortex_plane.jobs.model.effects import MAX_REPEATS
from cortex_plane.kernel.text import in_words, span, stamp
from cortex_plane.policies.model.policies import Approvers, OnDeny
from cortex_plane.tenancy.model.identities import Connection, ConnectionState, Delivery, DeliveryStatus
from cortex_plane.tenancy.model.orgs import Absence


def ago(at: datetime, now: datetime) -> Markup:
    """How long ago, with the exact time as its tooltip; the page's script keeps it current."""
    seconds = (now - at).total_seconds()
    return _time_element(at, "ago", "just now" if seconds < 5 else f"{span(seconds, 1)} ago")


def until(at: datetime, now: datetime) -> Markup:
    """A countdown."""
    seconds = (at - now).total_seconds()
    return _time_element(at, "countdown", span(seconds) if seconds > 0 else "over")


def _time_element(at: datetime, kind: str, text: str) -> Markup:
    machine = at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return Markup('<time datetime="{}" title="{}" data-{}>{}</time>').format(machine, stamp(at), kind, text)


def is_soon(at: datetime, now: datetime) -> bool:
    return at - now < timedelta(minutes=5)


_STATUSES = {"PENDING": "Queued", "RETRY": "Retrying", "WAITING_FOR_APPROVAL": "Waiting for a person"}
_CALLS = {
    "awaiting_approval": "waiting for a person",
    "awaiting": "waiting for a person",
    "allowed": "allowed, not begun",
    "approved": "approved, not begun",
    "intended": "under way",
    "uncertain": "did it happen?",
    "cleared": "is sent again",
    "parked": "waits for what it called",
}
_EVENTS = {
    "responded": "Answered",
    "joined": "An identical call joined",
    "dispatched": "Delivered",
    "undeliverable": "Could not be delivered",
    "delegated": "Handed on",
    "voted": "Voted yes",
    "reminded": "Reminder",
    "edited": "Arguments edited",
    "refused": "A decision was refused",
    "channel_duplicate": "The same decision came again",
    "channel_conflict": "A later decision came too late",
}
_DOORS = {"dashboard": "in the dashboard", "api": "over the API", "email": "by mail", "webhook": "over a webhook"}
_CHANNELS = {"email": "Mail", "whatsapp": "WhatsApp", "github": "GitHub", "gitlab": "GitLab"}


def risk(name: str) -> str:
    return f"{name.capitalize()} risk" if name in ("low", "medium", "high") else name.capitalize()


def job_status(status: str) -> str:
    return _STATUSES.get(str(status), str(status).replace("_", " ").capitalize())


def call_status(status: str) -> str:
    return _CALLS.get(str(status), str(status).replace("_", " "))


def event(name: str) -> str:
    return _EVENTS.get(name, name.replace("_", " ").capitalize())


def door(name: str) -> str:
    return _DOORS.get(str(name)) or f"on {channel(name)}"


def happened(what: approval_model.ApprovalEvent) -> str:
    """What an event's name does not say: to whom, through whom, how far, why not."""
    payload = what.payload
    match what.event_type:
        case "delegated":
            to = payload.get("name") or "somebody"
            return f"to {to}" + (", being out of office" if payload.get("automatic") else "")
        case "escalated":
            return f"to level {payload.get('level')}"
        case "dispatched" | "undeliverable":
            words = [f"to {payload['member']}" if payload.get("member") else "", str(payload.get("error") or "")]
            return ": ".join(word for word in words if word)
    return ""


def plain_reason(reason: str, automatic: Any) -> str:
    """Without what stands beside it as a mark already."""
    return re.sub(r"^out of office(?:: )?", "", reason) if automatic else reason


_CONNECTION_STATES = {
    ConnectionState.OK: ("Works", "delivered"),
    ConnectionState.FAILING: ("Failing", "dead"),
    ConnectionState.PAUSED: ("Paused", "pending"),
    ConnectionState.DISABLED: ("Disabled", "dead"),
    ConnectionState.NOT_SERVED: ("Not served", "dead"),
}


def connection_state(connection: Connection) -> tuple[str, str]:
    """The words for how a connection does, and their colour."""
    return _CONNECTION_STATES[connection.state]


def channel(name: str) -> str:
    return _CHANNELS.get(str(name)) or str(name).capitalize()


def delivery(message: Delivery) -> str:
    """How far a message came."""
    if message.status is DeliveryStatus.DEAD:
        return "Given up"
    if message.status is DeliveryStatus.DELIVERED:
        return "Delivered"
    if message.attempts:
        return "Trying again"
    return "Being updated" if message.rendered_version else "Waiting to be sent"


def tries(message: Delivery) -> str:
    if not message.attempts:
        return ""
    return f"{message.attempts} {'try' if message.attempts == 1 else 'tries'} so far"


def votes(approval: approval_model.Approval) -> str:
    """How far the quorum is."""
    quorum = approval.quorum.votes
    return f"{min(approval.votes_for, quorum)} of {quorum} {'vote' if quorum == 1 else 'votes'}"


def quorum_roles(approval: approval_model.Approval) -> str:
    """Who must be among the voters."""
    parts = [f"{role.votes} {role.role}{'s' if role.votes > 1 else ''}" for role in approval.quorum.roles]
    return f"among them at least {' and '.join(parts)}" if parts else ""


def escalation(approval: approval_model.Approval) -> str:
    if not approval.escalation_level:
        return f"Not escalated yet; {approval.escalations} {'level' if approval.escalations == 1 else 'levels'} to go"
    return f"Level {approval.escalation_level} of {approval.escalations}"


def repeats(approval: approval_model.Approval) -> str:
    times = "once" if approval.repeats == 1 else f"{approval.repeats} times"
    return f"{times} after an answer that it did not happen; at most {MAX_REPEATS} times"


def approvers(approval: approval_model.Approval) -> str:
    """Who may decide, as the policy says it."""
    text = people(approval.approvers) or "nobody that the policy names"
    return text[0].upper() + text[1:]


def gate(approval: approval_model.Approval) -> str:
    """The gate that a person passes by approving; empty where a policy asks."""
    return (gate_of_rule(approval.rule) or "").rpartition("/")[2]


def people(who: Approvers) -> str:
    words = ["the owner of the session"] if who.owner else []
    words += [f"whoever is {role}" for role in who.roles]
    if who.members:
        count = len(who.members)
        words.append("one named person" if count == 1 else f"{count} named people")
    return " or ".join(words)


def standing_offer(draft: approval_model.StandingDraft) -> str:
    """What somebody is about to allow besides the one call."""
    how_many = f"the next {draft.calls} calls" if draft.calls and draft.calls > 1 else "the next call"
    what = (how_many if draft.calls else "every call") + " of this tool in this session"
    what += ", with exactly these arguments" if draft.same_arguments else ", whatever its arguments are"
    what += f", if {draft.condition}" if draft.condition else ""
    return f"{what}, for {in_words(draft.seconds or approval_model.DEFAULT_SECONDS)} from now"


def standing_scope(standing: approval_model.StandingApproval) -> str:
    """What a standing approval covers."""
    parts = ["the same arguments only" if standing.input_hash else "any arguments"]
    if standing.condition:
        parts.append(f"if {standing.condition}")
    return ", ".join(parts)


def standing_count(standing: approval_model.StandingApproval) -> str:
    if standing.max_calls is None:
        return f"used {standing.used_calls} {'time' if standing.used_calls == 1 else 'times'}"
    return f"{standing.used_calls} of {standing.max_calls} calls used"


def absence(away: Absence) -> str:
    return "Out of office" if away.status == "current" else away.status.capitalize()


def on_deny(approval: approval_model.Approval) -> str:
    if approval.kind is approval_model.ApprovalKind.CHANGE:
        return "Nothing changes."
    if approval.on_deny is OnDeny.CONTINUE:
        return "The agent is told your reason and goes another way."
    return "The job fails and its other open requests are cancelled. The session stays open."


def outcome(approval: approval_model.Approval) -> str:
    """How it ended, in one line."""
    by = approval.resolved_by_name
    words = approval.status.capitalize()
    if (
        approval.kind is approval_model.ApprovalKind.UNCERTAIN_EFFECT
        and approval.status is not approval_model.ApprovalStatus.PENDING
    ):
        words = "Answered" if by else words
    if approval.status is approval_model.ApprovalStatus.RESPONDED:
        words = "Answered"
    return f"{words} by {by}" if by else words


def aftermath(approval: approval_model.Approval) -> str:
    """What an end that nobody decided means."""
    if approval.kind is approval_model.ApprovalKind.CHANGE:
        return "" if approval.status is approval_model.ApprovalStatus.APPROVED else "Nothing changed."
    if approval.status is approval_model.ApprovalStatus.EXPIRED and question_of(approval) is not None:
        return "Nobody answered in time" + (", so its default is the answer." if approval.answer is not None else ".")
    if approval.status is approval_model.ApprovalStatus.EXPIRED:
        return "Nobody decided in time, so the call was not sent."
    if approval.status is approval_model.ApprovalStatus.CANCELLED:
        return "Its job ended before anybody decided."
    return ""


def what_went_wrong(error: str) -> str:
    """A job's error without the job and the step that it begins with: the page names both."""
    return re.sub(r"^Job [0-9a-f-]{36}, step \d+: ", "", error)


def short_id(id: Any) -> str:
    """The end of an id: its beginning is a time, and alike for all that happened together."""
    return str(id)[-8:]


NAMES_LISTED = 20
_ACTION_STATES = {
    ActionState.ALLOWED: "Allowed now",
    ActionState.ASKS_FIRST: "Asks first",
    ActionState.DENIED: "Denied",
}
_ASKED = {Whom.AGENT: "Asks the agent first", Whom.PERSON: "Asks a person first"}
_NEWS = {NewsKind.REFUSED: "Not accepted", NewsKind.SKIPPED: "Left out"}
_TRIGGERS = {
    TriggerType.SESSION_START: "as a session begins",
    TriggerType.SESSION_END: "as a session ends",
    TriggerType.INTERACTIVE: "before anything goes on",
    TriggerType.ACTION_PRE: "before {patterns} runs",
    TriggerType.ACTION_POST: "after {patterns} ended",
    TriggerType.CAPABILITY_ACCESS: "before an action of {capabilities} runs",
    TriggerType.RISK_THRESHOLD: "before an action runs whose risk is {trigger.min_tier} or more",
    TriggerType.KEYWORD: "when {match} {patterns} is said",
    TriggerType.TIME_INTERVAL: "every {trigger.seconds:g} seconds",
    TriggerType.COUNT_INTERVAL: "every {trigger.actions} actions",
    TriggerType.EXPLICIT_REQUEST: "when the agent asks for {wish}",
    TriggerType.ERROR_OCCURRED: "when something went wrong",
    TriggerType.CUSTOM: "when {trigger.trigger_id} says so",
}
_MATCHES = {
    MatchMode.ANY: "any of",
    MatchMode.ALL: "each of",
    MatchMode.PHRASE: "the phrase",
    MatchMode.REGEX: "what matches",
}


def gate_word(kind: NewsKind) -> str:
    return _NEWS.get(kind, kind.capitalize())


def may_words(answer: ActionAnswer) -> str:
    """What happens to an action that is called now; where someone is asked first, who."""
    return _ACTION_STATES[answer.state] if answer.whom is None else _ASKED[answer.whom]


def rule_words(rule: str) -> str:
    """The gate, policy or capability behind a verdict."""
    kind, _, key = rule.partition(":")
    atlas, _, name = key.rpartition("/")
    match kind:
        case "gate":
            return f"gate {name or atlas}"
        case "atlas" if key == "default":
            return "nothing allows it"
        case "atlas":
            return f"policy {name}"
        case "capability":
            return f"capability {name}"
        case "action":
            return "its declaration"
    return rule


def own_name(key: str) -> str:
    """Without the atlas that it belongs to."""
    return str(key).rpartition("/")[2]


def trigger_words(trigger: Trigger) -> str:
    """When a gate fires, as its atlas has it."""
    if trigger.type is TriggerType.TIME_INTERVAL and not trigger.seconds:
        return "now and then"
    patterns = _list_names(trigger.patterns)
    return _TRIGGERS[trigger.type].format(
        trigger=trigger,
        patterns=patterns,
        wish=patterns or "it",
        capabilities=_list_names(trigger.capability_ids),
        match=_MATCHES[trigger.match_mode],
    )


def _list_names(names: Sequence[str]) -> str:
    text = ", ".join(names[:NAMES_LISTED])
    return text if len(names) <= NAMES_LISTED else f"{text} and {len(names) - NAMES_LISTED} more"


FILTERS: dict[str, Any] = {
    function.__name__: function
    for function in (
        happened, plain_reason, channel, connection_state, delivery, tries, votes, quorum_roles, escalation, people, gate,
        standing_offer, standing_scope, standing_count, absence, risk, job_status, call_status, door, event,
        approvers, approval_model.shaped_by, approval_model.if_nobody_decides, repeats, on_deny, outcome, aftermath, what_went_wrong, short_id,
        gate_word, may_words, rule_words, own_name, trigger_words,
    )
}  # fmt: skip
