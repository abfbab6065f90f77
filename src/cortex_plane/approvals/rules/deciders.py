"""Who may decide an approval, what a decision leads to, and who may take a part of it over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from uuid import UUID

from cortex_plane.approvals.model.approvals import (
    Approval,
    ApprovalKind,
    ApprovalStatus,
    Cause,
    Choice,
    Decision,
    Vote,
)
from cortex_plane.jobs.model.effects import CallStatus
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.kernel.errors import Conflict, CortexError, Forbidden, InvalidInput, NotFound, Stale
from cortex_plane.policies.model.policies import (
    Approvers,
    CountedVote,
    OnDeny,
    Quorum,
    Template,
    is_met,
    is_reached,
    quorum_said,
    same_human,
)
from cortex_plane.tenancy.model.access import Actor, ActorKind, Permission
from cortex_plane.tenancy.model.orgs import Member, Role

DECIDE_FOR_NOBODY = frozenset({Role.ADMIN, Role.APPROVER})
"""Who stands in for an owner where a session has none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """An approval, as far as deciding it needs."""

    id: UUID
    kind: ApprovalKind
    status: ApprovalStatus
    version: int
    session_id: UUID
    job_id: UUID
    step_index: int
    tool_name: str
    tool_digest: str | None
    risk: str
    input_hash: str
    template: Template
    required_clearance: int
    timeout_seconds: int
    approvers: Approvers
    on_deny: OnDeny
    self_approval: bool
    owner_id: UUID | None
    causes: list[UUID]
    caused: list[Cause] = field(default_factory=list)
    deadline: datetime | None
    remind_at: datetime | None
    reminded_at: datetime | None
    requested_at: datetime
    resolved_by_name: str | None
    resolution_reason: str | None
    rule: str
    quorum: Quorum
    escalations: list[Approvers]
    escalate_at: list[datetime]
    escalation_level: int
    delegated: list[UUID]
    standing: bool
    settles: UUID | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitingJob:
    id: UUID
    status: JobStatus
    holds: list[str]
    open_approvals: int


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitingCall:
    id: UUID
    job_id: UUID
    status: CallStatus
    step_index: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Sibling:
    id: UUID
    tool_name: str
    jobs: list[UUID] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedApproval:
    """An approval with everything that its decision depends on, under its locks."""

    approval: Request
    jobs: list[WaitingJob]
    calls: list[WaitingCall]
    siblings: list[Sibling]
    votes: list[CountedVote]
    policies: str
    now: datetime
    behind: list[UUID] = field(default_factory=list)
    """Everybody who could be the human who decides now, them first."""
    shaped_by: str | None = None
    """A cause of the call who could be that same human, where a cause must not approve it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobOutcome:
    id: UUID
    open: int
    status: JobStatus | None
    """None: it still waits for others."""
    error: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ApprovalEnd:
    """What the end of an approval does."""

    status: ApprovalStatus
    calls: list[tuple[UUID, CallStatus, str | None]]
    jobs: list[JobOutcome]
    cancelled: list[Sibling]


# Who may ---------------------------------------------------------------------------------------------------------


def refusal(
    *,
    approvers: Approvers,
    required_clearance: int,
    self_approval: bool,
    owner_id: UUID | None,
    causes: Sequence[UUID],
    actor: Actor,
    choice: Choice,
    delegated: Sequence[UUID] = (),
    caused: Sequence[Cause] = (),
) -> CortexError | None:
    """Why this actor may not decide so; None where they may."""
    person = actor.user_account_id
    if actor.kind is not ActorKind.PERSON or person is None:
        return Forbidden(
            "Only a person may decide.",
            code="not_a_person",
            hint="Use the key of a member, or the dashboard; keys of programs decide nothing.",
        )
    if actor.roles <= {Role.GUEST}:
        return Forbidden(
            "Guests decide nothing.", code="guest_cannot_decide", hint="Ask an admin to make you a member."
        )
    if person in delegated:
        return Forbidden(
            "You handed your part in this to somebody else.",
            code="delegated_away",
            hint="Whoever has it now decides; the card shows who.",
        )
    if not is_approver(approvers, owner_id, actor):
        return Forbidden(
            "You are not one of those who may decide this.",
            code="not_an_approver",
            hint=f"It is for {describe_approvers(approvers)} to decide; the policy that asks for it says so.",
        )
    if actor.clearance < required_clearance:
        return Forbidden(
            f"This needs clearance {required_clearance}; yours is {actor.clearance}.",
            code="clearance_too_low",
            hint="Ask somebody with that clearance, or an admin to raise yours.",
        )
    if choice is Choice.APPROVED and not self_approval and person in causes:
        own = "; ".join(cause.why for cause in caused if cause.member_id == person)
        return Forbidden(
            f"You shaped this call{f' ({own})' if own else ''}, and its policy wants somebody else to approve it.",
            code="self_approval",
            hint="Ask another approver. You may deny it.",
        )
    return None


def one_human(shaped_by: str | None, choice: Choice) -> CortexError | None:
    """Why whoever decides cannot approve what ``shaped_by`` shaped, who could be the same human."""
    if choice is Choice.DENIED or shaped_by is None:
        return None
    return Forbidden(
        f"You and {shaped_by}, who asked for this, count as one human, and its policy wants somebody else to approve it.",
        code="self_approval",
        hint="Prove a channel of your own: `cortex user link`. Or ask another approver. You may deny it.",
    )


def may_decide_at_all(actor: Actor) -> bool:
    """Whether the actor is one of those who decide anything at all."""
    return (
        actor.kind is ActorKind.PERSON
        and actor.user_account_id is not None
        and not actor.roles <= {Role.GUEST}
    )


def is_approver(approvers: Approvers, owner_id: UUID | None, actor: Actor) -> bool:
    if approvers.owner and owner_id is not None and actor.user_account_id == owner_id:
        return True
    if approvers.owner and owner_id is None and not actor.roles.isdisjoint(DECIDE_FOR_NOBODY):
        return True
    return not actor.roles.isdisjoint(approvers.roles) or actor.user_account_id in approvers.members


def describe_approvers(approvers: Approvers) -> str:
    words = []
    if approvers.owner:
        words.append("the session's owner")
    words += [f"anybody with the role {role}" for role in approvers.roles]
    if approvers.members:
        words.append(f"{len(approvers.members)} named member{'s' if len(approvers.members) > 1 else ''}")
    return ", ".join(words) or "nobody"


def may_decide(request: Request, actor: Actor, choice: Choice) -> CortexError | None:
    return refusal(
        approvers=request.approvers,
        required_clearance=request.required_clearance,
        self_approval=request.self_approval,
        owner_id=request.owner_id,
        causes=request.causes,
        actor=actor,
        choice=choice,
        delegated=request.delegated,
        caused=request.caused,
    )


def may_approve(approval: Approval, actor: Actor) -> CortexError | None:
    return refusal(
        approvers=approval.approvers,
        required_clearance=approval.required_clearance,
        self_approval=approval.self_approval,
        owner_id=approval.owner_id,
        causes=approval.causes,
        actor=actor,
        choice=Choice.APPROVED,
        delegated=approval.delegated,
        caused=approval.caused,
    )


def may_settle(opened: LockedApproval, actor: Actor, choice: Choice) -> CortexError | None:
    """Who answers about an uncertain call: whoever could approve it, or, where it needed no approval, whoever settles jobs. To give
    it up is a no, and one is enough."""
    if opened.approval.settles is not None:
        return may_decide(opened.approval, actor, choice) or one_human(opened.shaped_by, choice)
    if actor.may(Permission.JOB_SETTLE):
        return None
    return Forbidden(
        "You are not one of those who may say what became of this call.",
        code="not_an_approver",
        hint="It needed no approval: admins, operators and approvers answer about it.",
    )


# How many ---------------------------------------------------------------------------------------------------------


def completes(opened: LockedApproval, quorum: Quorum, actor: Actor, *, anew: bool) -> bool:
    """Whether this yes is the last one that is needed. ``anew``: the arguments change with it, so no other counts."""
    return _enough(opened, quorum, actor, [] if anew else opened.votes)


def _enough(opened: LockedApproval, quorum: Quorum, actor: Actor, votes: Sequence[CountedVote]) -> bool:
    """Whether these votes are, with the actor's own."""
    person = actor.user_account_id
    if person is None:
        return False
    if quorum.votes == 1 and not quorum.roles:
        return True
    own = CountedVote(member_id=person, roles=actor.roles, behind=opened.behind or [person])
    return is_reached(quorum, [*(vote for vote in votes if vote.member_id != person), own])


def agrees(opened: LockedApproval, actor: Actor, answer: str) -> bool:
    """Whether enough people give this answer about an uncertain call, with this one."""
    if opened.approval.settles is None:
        return True
    return _enough(opened, opened.approval.quorum, actor, [v for v in opened.votes if v.answer == answer])


def explained(approval: Approval, votes: Sequence[Vote]) -> list[Vote]:
    """With whose vote counts instead, where one does not add to the quorum of an open request."""
    current = [
        vote for vote in votes if vote.version == approval.version and vote.decision is Choice.APPROVED
    ]
    if approval.status is not ApprovalStatus.PENDING:
        return list(votes)
    instead = {vote.member_id: same_human(current, vote) for vote in current}
    return [
        replace(vote, counts_with=other.member)
        if (other := instead.get(vote.member_id)) and vote in current
        else vote
        for vote in votes
    ]


def has_voted(opened: LockedApproval, actor: Actor) -> bool:
    return any(vote.member_id == actor.user_account_id for vote in opened.votes)


def adds_nothing(opened: LockedApproval, actor: Actor) -> bool:
    """Whether they voted, and the same vote again counts for no more."""
    own = [vote for vote in opened.votes if vote.member_id == actor.user_account_id]
    return any(set(vote.behind) <= set(opened.behind) for vote in own)


def joined(one: Approvers, other: Approvers) -> Approvers:
    """Whoever is in either."""
    return Approvers(
        owner=one.owner or other.owner,
        roles=tuple(dict.fromkeys((*one.roles, *other.roles))),
        members=tuple(dict.fromkeys((*one.members, *other.members))),
    )


# Whether it still can be ------------------------------------------------------------------------------------------


def is_same(request: Request, decision: Decision, edited_hash: str | None) -> bool:
    """Whether a resolved approval says just what this decision says."""
    if request.status.value != decision.decision.value:
        return False
    return decision.decision is Choice.DENIED or (edited_hash or decision.input_hash) == request.input_hash


def already(request: Request) -> Conflict:
    by = f" by {request.resolved_by_name}" if request.resolved_by_name else ""
    why = f": {request.resolution_reason}" if request.resolution_reason else ""
    return Conflict(
        f"It is {request.status} already{by}{why}.",
        code="approval_conflict",
        hint="The first decision stands; read it with `cortex approval show`.",
    )


def approval_expired() -> Conflict:
    return Conflict(
        "Its time is over.",
        code="approval_expired",
        hint="Submit the job again with `cortex job resubmit`.",
    )


def outdated(request: Request, decision: Decision, now: datetime) -> CortexError | None:
    """Why an open approval cannot be decided by what the decider saw."""
    if request.deadline is not None and now >= request.deadline:
        return approval_expired()
    if decision.version != request.version or decision.input_hash != request.input_hash:
        return Stale(
            f"It changed: you saw version {decision.version}, it is now at {request.version}.",
            code="approval_changed",
            hint="Look at it again, then decide with the version and digest that it has now.",
        )
    return None


# What it does -----------------------------------------------------------------------------------------------------


def approved(opened: LockedApproval) -> ApprovalEnd:
    calls = [(call.id, CallStatus.APPROVED, None) for call in _awaiting(opened)]
    return ApprovalEnd(
        status=ApprovalStatus.APPROVED, calls=list(calls), jobs=_going_on(opened), cancelled=[]
    )


def denied(opened: LockedApproval, by: str, reason: str | None) -> ApprovalEnd:
    given = (reason or "").strip()
    end = "" if given.endswith((".", "!", "?")) else "."
    why = f": {given}{end}" if given else "."
    return _turned_down(opened, ApprovalStatus.DENIED, f"denied by {by}{why}")


def expired(opened: LockedApproval) -> ApprovalEnd:
    after = opened.approval.timeout_seconds
    return _turned_down(opened, ApprovalStatus.EXPIRED, f"timed out after {in_words(after)}.")


def _turned_down(opened: LockedApproval, status: ApprovalStatus, what: str) -> ApprovalEnd:
    request = opened.approval
    told = f"Approval of `{request.tool_name}` {what}"
    answer = f"{told} Do not send the same call again; go another way."
    calls = [(call.id, CallStatus.REJECTED, answer) for call in _awaiting(opened)]
    if request.on_deny is OnDeny.CONTINUE:
        return ApprovalEnd(status=status, calls=list(calls), jobs=_going_on(opened), cancelled=[])
    steps = {call.job_id: call.step_index for call in _awaiting(opened)}
    failed = [
        JobOutcome(
            id=job.id,
            open=0,
            status=JobStatus.FAILED,
            error=f"Job {job.id}, step {steps[job.id]}: {told} `cortex job resubmit` asks again.",
        )
        for job in opened.jobs
        if job.id in steps
    ]
    # What waits for nobody else any more ends with its job.
    cancelled = [sibling for sibling in opened.siblings if set(sibling.jobs or ()) <= set(steps)]
    return ApprovalEnd(status=status, calls=list(calls), jobs=failed, cancelled=cancelled)


def _awaiting(opened: LockedApproval) -> Sequence[WaitingCall]:
    return [call for call in opened.calls if call.status is CallStatus.AWAITING]


def _going_on(opened: LockedApproval) -> list[JobOutcome]:
    """With its last open approval a job goes on, or pauses where somebody holds it."""
    waiting = {call.job_id for call in _awaiting(opened)}
    outcomes = []
    for job in opened.jobs:
        if job.id not in waiting:
            continue
        left = job.open_approvals - 1
        status = None if left else JobStatus.PAUSED if job.holds else JobStatus.RUNNING
        outcomes.append(JobOutcome(id=job.id, open=left, status=status))
    return outcomes


def in_words(seconds: int) -> str:
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        # Days only from two on: people say 24 hours.
        if seconds % size == 0 and seconds >= size * (2 if unit == "day" else 1):
            count = seconds // size
            return f"{count} {unit}{'s' if count != 1 else ''}"
    return f"{seconds} second{'s' if seconds != 1 else ''}"


def shown_to(approval: Approval, actor: Actor, shaped_by: str | None = None) -> Approval:
    """With whether whoever looks could approve it, and if not, why. ``shaped_by``: a cause who could be the same human."""
    if approval.status is not ApprovalStatus.PENDING:
        return approval
    if approval.kind is ApprovalKind.UNCERTAIN_EFFECT and approval.settles is None:
        able = actor.may(Permission.JOB_SETTLE)
        why = None if able else "Only admins, operators and approvers may answer this."
        return replace(approval, may_decide=able, why_not=why)
    refused = may_approve(approval, actor) or one_human(shaped_by, Choice.APPROVED)
    return replace(approval, may_decide=refused is None, why_not=refused.message if refused else None)


def cannot_delegate(
    opened: LockedApproval,
    actor: Actor,
    to: Member,
    others: Mapping[UUID, frozenset[Role]],
    tied: str | None = None,
) -> CortexError | None:
    """Why the actor may not hand their part to this person. ``others`` may decide besides the actor, with their roles. ``tied``: a
    cause of the call who could be the same human as this person."""
    request = opened.approval
    if request.status is not ApprovalStatus.PENDING:
        return already(request)
    if request.kind is not ApprovalKind.CALL:
        return Conflict(
            "This asks whether a call happened; there is no part in it to hand on.",
            code="not_a_call",
            hint="Answer it, or ask somebody who knows to answer it.",
        )
    if request.deadline is not None and opened.now >= request.deadline:
        return approval_expired()
    # Whoever could not approve it has nothing to hand on: they must not choose who does.
    authority = may_decide(request, actor, Choice.APPROVED) or one_human(opened.shaped_by, Choice.APPROVED)
    if authority is not None:
        return authority
    if has_voted(opened, actor):
        return Conflict(
            "You have approved this already.",
            code="already_voted",
            hint="Your vote stands, unless you deny the request.",
        )
    return _cannot_take(request, actor, to, tied) or _too_few(request, to, others)


def nobody_to_take_it() -> NotFound:
    return NotFound(
        "There is no such member who could take it.",
        code="delegate_unknown",
        hint="Name an active member, not a guest: `cortex absence delegates` lists them.",
    )


def _cannot_take(request: Request, actor: Actor, to: Member, tied: str | None) -> CortexError | None:
    if to.deactivated_at is not None or set(to.roles) <= {Role.GUEST}:
        return nobody_to_take_it()
    if to.id == actor.user_account_id:
        return InvalidInput("You have it already.", code="delegate_is_self", hint="Name somebody else.")
    if to.id in request.delegated:
        return Conflict(
            f"{to.display_name} handed this on before: it would go round in a circle.",
            code="delegation_cycle",
            hint="Name somebody who has not had it yet.",
        )
    if to.clearance < request.required_clearance:
        return Forbidden(
            f"This needs clearance {request.required_clearance}; {to.display_name} has {to.clearance}.",
            code="delegate_clearance",
            hint="Name somebody with that clearance.",
        )
    if not request.self_approval and to.id in request.causes:
        return Forbidden(
            f"{to.display_name} asked for this, and its policy wants somebody else to approve it.",
            code="delegate_self_approval",
            hint="Name somebody who had no part in asking.",
        )
    if tied is not None:
        return Forbidden(
            f"{to.display_name} and {tied}, who asked for this, count as one human, and its policy wants somebody else to approve it.",
            code="delegate_self_approval",
            hint="Name somebody else, or let them prove a channel of their own: `cortex user link`.",
        )
    return None


def _too_few(request: Request, to: Member, others: Mapping[UUID, frozenset[Role]]) -> CortexError | None:
    able = {**others, to.id: frozenset(to.roles)}
    if is_met(request.quorum, list(able.values())):
        return None
    return Conflict(
        f"Without you too few are left: this needs {quorum_said(request.quorum)}.",
        code="quorum_impossible",
        hint="Name somebody who could not decide it yet.",
    )
