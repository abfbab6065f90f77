"""Approvals: the record, its states, decisions, marks in lists, delegates and standing approvals."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

from pydantic import Field, StrictBool
from pydantic.dataclasses import dataclass as draft

from cortex_plane.approvals.model.questions import QuestionForm, form_of
from cortex_plane.gates.model.gates import ShownAnswer
from cortex_plane.jobs.model.effects import Verdict
from cortex_plane.kernel.canonical import iso
from cortex_plane.kernel.fields import DRAFT, JsonObject, JsonValue, Note, adapter
from cortex_plane.policies.model.policies import Approvers, OnDeny, Quorum, Template, Terms
from cortex_plane.tenancy.model.identities import Delivery


class ApprovalStatus(StrEnum):
    """Where a request for approval stands."""

    PENDING = "pending"
    APPROVED = "approved"
    DENIED = "denied"
    RESPONDED = "responded"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


_S = ApprovalStatus
TRANSITIONS: dict[ApprovalStatus, dict[ApprovalStatus, str]] = {
    _S.PENDING: {
        _S.APPROVED: "an approver approves",
        _S.DENIED: "an approver denies",
        _S.RESPONDED: "an approver answers in the place of the call",
        _S.EXPIRED: "its deadline passes",
        _S.CANCELLED: "its job or session ends, its agent withdraws the call, or another version holds",
    },
    _S.APPROVED: {},
    _S.DENIED: {},
    _S.RESPONDED: {},
    _S.EXPIRED: {},
    _S.CANCELLED: {},
}


class ApprovalKind(StrEnum):
    """What a request asks people about."""

    CALL = "call"
    """A call that was not sent: may it be?"""
    UNCERTAIN_EFFECT = "uncertain_effect"
    """A call that may have been sent: did it happen?"""
    CHANGE = "change"
    """A version of an atlas or of the policies that does not hold yet: may it? It belongs to no job."""


class Choice(StrEnum):
    """What a person decides about a call."""

    APPROVED = "approved"
    DENIED = "denied"
    RESPONDED = "responded"
    """Nothing is sent: the agent gets the person's answer as the result of its call."""


class Channel(StrEnum):
    """Through which door a decision came."""

    DASHBOARD = "dashboard"
    EMAIL = "email"
    WEBHOOK = "webhook"
    TELEGRAM = "telegram"
    SLACK = "slack"
    DISCORD = "discord"
    WHATSAPP = "whatsapp"
    GITHUB = "github"
    GITLAB = "gitlab"
    API = "api"


OWN_DOORS = frozenset({Channel.DASHBOARD, Channel.API})
"""The plane's own. All others belong to connections of the org, which may stop using them."""


class RecordResult(StrEnum):
    """What recording a decision did."""

    OK = "OK"
    DUPLICATE = "DUPLICATE"
    """The same decision was there before: nothing changed. A different one is an error, `approval_conflict`."""


@draft(config=DRAFT | {"title": "Decision"}, frozen=True, kw_only=True)
class ApprovalDecision:
    """A person's decision, with the version and the digest of what they saw."""

    __qualname__ = "Decision"  # its name in the OpenAPI document

    decision: Choice
    version: Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
    """The version of the request that was seen."""
    input_hash: Annotated[str, Field(pattern="^[a-f0-9]{64}$")]
    reason: Note | None = None
    arguments: JsonObject | None = None
    """Approve the call with these arguments instead of those that the agent sent."""
    standing: StandingDraft | None = None
    """And say yes to more than this one call, so far."""
    answer: JsonValue = None
    """With `responded`: what the agent gets as the result of its call. Words; to a question of `plane.ask_person` one of its choices,
    or an object that fits its schema."""


@draft(config=DRAFT, frozen=True, kw_only=True)
class EffectAnswer:
    """A person's answer to the card of an uncertain effect."""

    verdict: Verdict
    result: JsonValue = None
    note: Note | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class EditContext:
    """What gates and policies look at besides an edited call itself, and what its tool declared when the call was asked for."""

    agent: str
    teams: tuple[UUID, ...]
    session_kind: str
    request_policies: list[Any]
    """Several jobs may wait for this one decision, each with demands of its own."""
    parameters: dict[str, Any] | None
    read_only: bool
    declares_risk: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """Somebody who shaped a call: where self-approval is off, their yes to it never counts."""

    member_id: UUID | None
    """Null where it is not known by id who it was, so that nobody is excluded for it."""
    name: str | None
    """The name of who it was."""
    why: str
    """What they did to shape the call."""


def causes_in_words(caused: Sequence[Cause]) -> str:
    """Each person once, with everything that they did."""
    did: dict[str, list[str]] = {}
    for cause in caused:
        did.setdefault(cause.name or "somebody", []).append(cause.why)
    return ", ".join(f"{name} ({'; '.join(why)})" for name, why in did.items())


@dataclass(frozen=True, kw_only=True, slots=True)
class NewRequest:
    """What a worker asks a person about one of its calls."""

    id: UUID
    kind: ApprovalKind
    call_id: UUID
    step_index: int
    tool_name: str
    tool_digest: str | None
    arguments: bytes
    """Canonical: exactly what would be sent."""
    input_hash: str
    risk: str
    summary: str
    agent_says: str | None
    asked_for: str | None
    question: str | None
    rule: str
    policy_version: str
    terms: Terms
    rule_reason: str | None = None
    gate_answers: Sequence[ShownAnswer] = ()
    changed_by: Sequence[Cause] = ()
    """Who changed the rules since the call was asked for before, where its terms are others now."""

    def terms_hash(self, *, apart: bool = False) -> bytes:
        """Calls join one request only where all of this is the same for them. ``apart``: this one joins none."""
        question = hashlib.sha256(self.question.encode()).hexdigest() if self.question is not None else ""
        words = (self.rule_reason, *self.gate_answers)
        shown = [hashlib.sha256(repr(words).encode()).hexdigest()] if any(words) else []
        parts = (self.tool_digest or "", question, *shown, *([str(self.id)] if apart else []))
        return hashlib.sha256(adapter(Terms).dump_json(self.terms) + "|".join(parts).encode()).digest()


@dataclass(frozen=True, kw_only=True, slots=True)
class Vote:
    version: int
    """The version of the request that was seen."""
    member_id: UUID
    member: str
    decision: Choice
    reason: str | None
    channel: Channel
    created_at: datetime
    behind: list[UUID] = field(default_factory=list)
    """Everybody who could be the human behind it, the member first: whoever enrolled or promoted them while they have proven no
    channel of their own, and whoever set up the connection through which it came."""
    counts_with: str | None = None
    """It does not add to the quorum: whose vote counts instead, because the two could be one human."""


@draft(config=DRAFT, frozen=True, kw_only=True)
class DelegationDraft:
    """Hand one's part in a request to somebody else."""

    to: UUID
    """The id of the member who gets it."""
    reason: Note | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Delegation:
    """One hop of spec 4's delegation chain."""

    from_member_id: UUID
    """The id of who handed it on."""
    from_member: str
    """The name of who handed it on."""
    to_member_id: UUID
    """The id of who got it."""
    to_member: str
    """The name of who got it."""
    to_clearance: int
    """The clearance of who got it."""
    reason: str | None
    automatic: bool
    """Somebody was out of office."""
    at: datetime
    """When it was handed on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ApprovalEvent:
    """One line of an approval's life."""

    event_type: str
    """What happened, such as `requested` or `voted`."""
    channel: str | None
    actor_member_id: UUID | None
    actor: str | None
    """Who did it, by name."""
    payload: dict[str, Any]
    """The facts of what happened."""
    created_at: datetime
    times: int = 1
    """How often it happened: refused decisions of one person are counted in one row after the tenth."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Approval:
    """A request as surfaces show it, from the very bytes that would be sent."""

    id: UUID
    kind: ApprovalKind
    status: ApprovalStatus
    version: int
    """Rises when an identical call joins, and with every edit."""
    session_id: UUID | None
    """Null where a change of rules is asked for, and so are job and agent."""
    job_id: UUID | None
    agent_id: UUID | None
    """The id of the agent; null for a change of rules."""
    agent: str
    """Its slug; empty for a change."""
    agent_name: str
    """Of a change: who proposed it."""
    step_index: int
    action_type: str
    """What kind of act is asked for: `tool_call`, or a change of rules."""
    tool_name: str
    tool_digest: str | None
    target: str
    arguments: Any
    original_arguments: Any
    """What the agent sent, where somebody edited it; else null."""
    input_hash: str
    """SHA-256 of the canonical arguments, in hex."""
    invocations: int
    """How many identical calls this decides."""
    risk: str
    action_summary: str
    """What would happen, in one line."""
    agent_says: str | None
    """The agent's own words with the call. They may mislead: the arguments are what runs."""
    asked_for: str | None
    """The message or the task that the job answers."""
    question: str | None
    """For an uncertain effect: what is asked."""
    rule: str
    rule_reason: str | None = None
    """Why its policies ask for approval, in their stewards' words. Lists leave it out."""
    gate_answers: list[ShownAnswer] = field(default_factory=list)
    """What the agent answered to gates before this call. Its own words: they may mislead. Lists leave it out."""
    policy_version: str
    template: Template
    """The template of its terms."""
    required_clearance: int
    approvers: Approvers
    deciders: list[str] = field(default_factory=list)
    """Names of members who could decide it now; at most twenty."""
    on_deny: OnDeny
    self_approval: bool
    owner_id: UUID | None
    """Whose session it is."""
    caused_by: UUID | None
    """Whose message or task it answers."""
    causes: list[UUID]
    """Everybody who shaped the call. Where ``self_approval`` is off, none of them approves it."""
    caused: list[Cause] = field(default_factory=list)
    """The same with names and what each did. Without a ``member_id`` nobody is excluded. Lists leave it out."""
    quorum: Quorum
    votes_for: int
    """How many said yes to this version so far."""
    delegated: list[UUID]
    """Who handed their part to somebody else: they decide no more."""
    standing: bool
    """Whether its policy lets an approver say yes to more than this one call."""
    action: str | None
    """What the job itself says is to happen; like ``agent_says``, it may mislead."""
    details: dict[str, Any] | None
    escalation_level: int
    """How many levels it has gone up."""
    escalations: int
    """How many levels it can go up."""
    escalate_at: datetime | None
    """When it goes up next."""
    channels_dispatched: list[str]
    """The channels over which it was sent."""
    requested_at: datetime
    """When it was requested."""
    deadline: datetime | None
    """Null for an uncertain effect: it waits until somebody knows."""
    reminded_at: datetime | None
    """When its approvers were reminded; null before."""
    resolved_at: datetime | None
    """When it was decided or ended; null before."""
    resolved_by: UUID | None
    """The id of the member who decided it last."""
    resolved_by_name: str | None
    """The name of the member who decided it last."""
    resolution_reason: str | None
    """The reason that was given with the decision."""
    resolved_via: Channel | None
    """The channel that the decision came through."""
    answer: Any = None
    """What a person answered in the place of the call, or the default of a question that nobody answered in time."""
    settles: UUID | None = None
    """Of an uncertain effect: the request that let the call be sent. Whoever could approve that answers this, in the same number."""
    repeats: int = 0
    """How often somebody answered that its call did not happen. Lists leave it out."""
    programs: list[str] = field(default_factory=list)
    """What programs changed that decides about it: agent, policies, confirmations, atlases. Lists leave it out."""
    session_kind: str | None = None
    """`external`: the agent runs elsewhere. Null where a short list leaves it out."""
    may_decide: bool = False
    """Whether whoever asks could decide it."""
    why_not: str | None = None
    """Where they could not: why."""
    refusal: Annotated[str | None, Field(exclude=True)] = "not_a_person"
    """The same as a code of the SQL function `decider_refusal`, None where they could. It is in no API answer."""
    same_human_as: Annotated[str | None, Field(exclude=True)] = None
    """With the code `one_human`: the name of the cause who could be the same human."""
    created_at: datetime
    """The same as ``requested_at``; lists are ordered by it."""

    @property
    def names_version(self) -> bool:
        """Whether `rule` ends with `policy_version`, so that it need not be shown again."""
        return self.rule.endswith(f"@{self.policy_version}")


def question_of(approval: Approval) -> QuestionForm | None:
    """What a request asks; None where it is about a call that does something."""
    return form_of(approval.tool_name, approval.arguments) if approval.kind is ApprovalKind.CALL else None


def if_nobody_decides(approval: Approval) -> str:
    if approval.kind is ApprovalKind.UNCERTAIN_EFFECT:
        return "It waits until somebody knows; nothing expires."
    if approval.kind is ApprovalKind.CHANGE:
        return "If nobody decides by then, nothing changes."
    if (question := question_of(approval)) is not None:
        what = "the agent is told so" if question.default is None else "its default is the answer"
        return f"If nobody answers by then, {what}."
    then = "the agent is told so" if approval.on_deny is OnDeny.CONTINUE else "the job fails"
    return f"If nobody decides by then, the call is not sent and {then}."


def shaped_by(approval: Approval) -> str:
    """Who shaped the call and what follows from that, as cards say it; empty where nobody is known."""
    known = causes_in_words([cause for cause in approval.caused if cause.member_id is not None])
    unknown = causes_in_words([cause for cause in approval.caused if cause.member_id is None])
    parts = []
    if known:
        rule = "its policy allows self-approval" if approval.self_approval else "none of them may approve it"
        parts.append(f"{known}: {rule}")
    if unknown:
        parts.append(f"{unknown}: kept without an id, so nobody is excluded for it")
    if approval.programs:
        parts.append(f"Changed by programs: {', '.join(approval.programs)}")
    return ". ".join(parts)


class Excerpt(str):
    """The beginning of arguments that are too large for a list, as JSON text."""

    __slots__ = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """What waits for a decision, the most urgent first, of a look at 500 requests. Large arguments are an ``Excerpt``."""

    mine: list[Approval]
    """What whoever asks could decide."""
    mine_total: int
    others: list[Approval]
    others_total: int
    arrived: int
    """How many came after the time that was asked for; they are in no list and in no other count."""
    latest: datetime | None
    """When the newest of all was requested."""
    further: UUID | None
    """The last request of the look, where more are pending after it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ApprovalDetails:
    """The whole card."""

    approval: Approval
    votes: list[Vote]
    """The votes on it, in order."""
    events: list[ApprovalEvent]
    """The newest hundred, in order."""
    similar: list[Approval]
    """Earlier decisions about the same tool in this org, newest first; at most five."""
    delegations: list[Delegation]
    """Who handed their part on to whom."""
    deliveries: list[Delivery]
    """What was sent to whom, on which channel; for staff only."""
    now: datetime
    """The database's clock, for countdowns."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DecisionReceipt:
    result: RecordResult
    """Whether it was recorded now or before."""
    approval: Approval
    """The request after the decision."""


@draft(config=DRAFT, frozen=True, kw_only=True)
class ToolDecision:
    """Yes or no to one call of a tool, as it stands now."""

    approved: Annotated[bool, Field(strict=True)]
    """True approves the call, false denies it."""
    reason: Note | None = None
    version: Annotated[int, Field(strict=True, ge=1, le=1_000_000)] | None = None
    """Of the approval, as whoever decides saw it. Needed where the call was joined by others, edited or asked for again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    approval_id: UUID
    handed_by: str | None
    """Who handed their part to whoever looks."""
    out_of_office: bool
    """It came by itself, because they are absent."""
    voted: bool
    """Whoever looks said yes to this version; others are still to."""
    undelivered: bool
    """Somebody could not be told; for staff."""


UNMARKED = Mark(approval_id=UUID(int=0), handed_by=None, out_of_office=False, voted=False, undelivered=False)


AT_MOST = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Delegate:
    """A colleague, with no more than one needs to tell them apart."""

    id: UUID
    display_name: str


DEFAULT_SECONDS = 24 * 3600
MAX_SECONDS = 7 * 24 * 3600
MAX_CALLS = 1000
NEVER = frozenset({Template.FULL_PIPELINE, Template.CRITICAL_PATH})
"""What these templates ask for is decided call by call, whatever a row says."""


@draft(config=DRAFT, frozen=True, kw_only=True)
class StandingDraft:
    """What an approver says yes to beyond the one call. At least one bound is named."""

    same_arguments: StrictBool = False
    """Only calls with exactly the arguments that are approved."""
    calls: Annotated[int, Field(strict=True, ge=1, le=MAX_CALLS)] | None = None
    """So many more calls, after the one that is approved."""
    seconds: Annotated[int, Field(strict=True, ge=1, le=MAX_SECONDS)] | None = None
    """So long from now; a day where nothing is said."""
    condition: Note | None = None
    """CEL over the arguments and the context, as in policies."""

    @property
    def is_bounded(self) -> bool:
        return self.same_arguments or self.calls is not None or self.seconds is not None or self.condition is not None


@draft(config=DRAFT, frozen=True, kw_only=True)
class Revocation:
    """Take a standing approval back."""

    reason: Note | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class GrantedUnder:
    """What the request demanded of its approver when the standing approval was given."""

    rule: str
    template: Template
    """The template of its terms."""
    clearance: int
    """The clearance that it demanded."""
    approvers: Approvers = field(default_factory=Approvers)
    version: int = 1
    """Of the request."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StandingApproval:
    id: UUID
    session_id: UUID
    agent: str
    """Its slug."""
    tool_name: str
    tool_digest: str
    input_hash: str | None
    """Where only these arguments are covered: their SHA-256, in hex."""
    condition: str | None
    """CEL over the arguments and the context; null covers all arguments."""
    max_calls: int | None
    """How many calls it covers; null for no limit."""
    used_calls: int
    """How many calls it has covered."""
    expires_at: datetime
    granted_by: str
    granted_by_id: UUID
    required: GrantedUnder
    approval_id: UUID
    """The request that was approved together with it."""
    reason: str | None
    revoked_at: datetime | None
    revoked_by: str | None
    revocation_reason: str | None
    created_at: datetime
    last_used_at: datetime | None
    owner_id: UUID | None
    """Whose session it is."""
    usable: bool = False
    """Whether it covers anything now; each call is looked at anew all the same."""
    why_not: str | None = None
    """Where it does not: why."""

    @property
    def calls_left(self) -> int | None:
        return None if self.max_calls is None else self.max_calls - self.used_calls

    def bounds(self) -> dict[str, Any]:
        """As the audit trail and the receipt tell them."""
        return {
            "tool": self.tool_name,
            "digest": self.tool_digest,
            "input_hash": self.input_hash,
            "condition": self.condition,
            "max_calls": self.max_calls,
            "expires_at": iso(self.expires_at),
        }
