"""Who may decide an approval, and what a decision leads to."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import orjson

from cortex_plane.approvals.model import approvals as approval_model
from cortex_plane.approvals.model.approvals import Approval, ApprovalStatus, Cause, Choice, Vote  # fmt: skip
from cortex_plane.approvals.model.questions import ASK_PERSON, form_of, require_answer
from cortex_plane.jobs.model.checkpoints import CheckpointCorrupt, check_seal, missing_checkpoint
from cortex_plane.jobs.model.effects import CallStatus
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import Conflict, CortexError, Forbidden, InvalidInput, Stale
from cortex_plane.kernel.text import in_words
from cortex_plane.policies.model import policies as policy_model
from cortex_plane.policies.model.policies import Approvers, CountedVote
from cortex_plane.proof.model import SessionEvent
from cortex_plane.proof.rules.receipts import ReceiptFacts
from cortex_plane.tenancy.model.access import Actor, Fact

SHORTEST_GRANT_SECONDS = 3600


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitingJob:
    id: UUID
    status: JobStatus
    holds: list[str]
    open_approvals: int
    checkpoint: dict[str, Any] = field(default_factory=dict)
    """From which it goes on, as a receipt names it."""
    sealed: str | None = None
    """The whole checkpoint, empty where it is gone; None for a job that has none, or that does not wait."""


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

    approval: Approval
    visible: bool
    """Whether whoever opened it sees it."""
    jobs: list[WaitingJob]
    calls: list[WaitingCall]
    siblings: list[Sibling]
    votes: list[CountedVote]
    policies: str
    now: datetime
    timeout_seconds: int
    remind_at: datetime | None
    levels: list[Approvers]
    """Who is asked besides at each escalation."""
    level_times: list[datetime]
    behind: list[UUID] = field(default_factory=list)
    """Everybody who could be the human who decides now, them first."""
    earlier: dict[str, Any] | None = None
    """What was recorded under the idempotency key of the decision."""
    cast_votes: list[Vote] = field(default_factory=list)
    """All on the version that is there, also those that do not count any more."""
    receipt: ReceiptFacts | None = None
    """What was read of what the receipt says besides; None where nobody decides."""

    @property
    def grant_seconds(self) -> int:
        """How long a grant lives: as long as people had to give it, but long enough for a busy worker to use it."""
        return max(self.timeout_seconds, SHORTEST_GRANT_SECONDS)


@dataclass(frozen=True, kw_only=True, slots=True)
class JobOutcome:
    id: UUID
    open: int
    status: JobStatus | None
    """None: it still waits for others."""
    error: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ApprovalChange:
    """What a decision or a deadline does to an approval, its calls and jobs."""

    status: ApprovalStatus
    calls: Sequence[tuple[UUID, CallStatus, str | None]]
    jobs: list[JobOutcome]
    cancelled: list[Sibling]
    answer: Any = None
    """The result of the calls that are answered."""

    @property
    def resumed(self) -> list[UUID]:
        """The jobs that run again."""
        return [job.id for job in self.jobs if job.status is JobStatus.RUNNING]


@dataclass(frozen=True, slots=True)
class Edit:
    """Other arguments for a call, and what the policies say about it then."""

    arguments: bytes
    input_hash: str
    policies: str
    terms: Sequence[policy_model.Terms]
    error: CortexError | None
    """Why nobody could approve these arguments."""
    same_terms: bool = False
    """Whether the policies say the very same of the call as it is: whoever else is to vote may vote on this too."""


def refusal(approval: Approval, actor: Actor, choice: Choice) -> CortexError | None:
    """Why the actor may not decide so, in words; None where they may."""
    if choice is Choice.DENIED and approval.refusal in BARS_ONLY_YES:
        return None
    if approval.refusal == "self_approval" and approval.kind is approval_model.ApprovalKind.CHANGE:
        return Forbidden(
            "You proposed this change, or the key of yours did, and somebody else approves it.",
            code="self_approval",
            hint="Ask one of the others who may decide it. You may deny it.",
        )
    if approval.refusal == "one_human":
        whom = f"You and {approval.same_human_as}, who asked for this, count as one human"
        return Forbidden(
            f"{whom}, and its policy wants somebody else to approve it.",
            code="self_approval",
            hint="Prove a channel of your own: `cortex user link`. Or ask another approver. You may deny it.",
        )
    return describe_refusal(approval.refusal, actor, approval.approvers, approval.required_clearance, approval.caused)


BARS_ONLY_YES = frozenset({"self_approval", "one_human"})
"""The codes of those who may deny a request, but not approve it."""


REFUSALS = {
    "not_a_settler": (
        "You are not one of those who may say what became of this call.",
        "It needed no approval: admins, operators and approvers answer about it.",
    ),
    "not_a_person": (
        "Only a person may decide.",
        "Use the key of a member, or the dashboard; keys of programs decide nothing.",
    ),
    "guest_cannot_decide": ("Guests decide nothing.", "Ask an admin to make you a member."),
    "delegated_away": (
        "You handed your part in this to somebody else.",
        "Whoever has it now decides; the card shows who.",
    ),
    "not_an_approver": (
        "You are not one of those who may decide this.",
        "It is for {approvers} to decide; the policy that asks for it says so.",
    ),
    "clearance_too_low": (
        "This needs clearance {needed}; yours is {clearance}.",
        "Ask somebody with that clearance, or an admin to raise yours.",
    ),
    "self_approval": (
        "You shaped this call{part}, and its policy wants somebody else to approve it.",
        "Ask another approver. You may deny it.",
    ),
}
"""The message and the hint of each code of the SQL function `decider_refusal`."""


def describe_refusal(
    code: str | None, actor: Actor, approvers: Approvers, required_clearance: int, caused: Sequence[Cause] = ()
) -> CortexError | None:
    """The words for a code of the SQL function `decider_refusal`."""
    if code is None:
        return None
    part = "; ".join(cause.why for cause in caused if cause.member_id == actor.user_account_id)
    values = {
        "approvers": describe_approvers(approvers), "needed": required_clearance, "clearance": actor.clearance,
        "part": f" ({part})" if part else "",
    }  # fmt: skip
    message, hint = REFUSALS[code]
    public_code = "not_an_approver" if code == "not_a_settler" else code
    return Forbidden(message.format(**values), code=public_code, hint=hint.format(**values))


def describe_approvers(approvers: Approvers) -> str:
    words = []
    if approvers.owner:
        words.append("the session's owner")
    words += [f"anybody with the role {role}" for role in approvers.roles]
    if approvers.members:
        words.append(f"{len(approvers.members)} named member{'s' if len(approvers.members) > 1 else ''}")
    return ", ".join(words) or "nobody"


def is_enough(row: LockedApproval, quorum: policy_model.Quorum, actor: Actor, votes: Sequence[CountedVote]) -> bool:
    """Whether these votes fulfil the quorum together with the actor's own."""
    if actor.user_account_id is None:
        return False
    if quorum.votes == 1 and not quorum.roles:
        return True
    return policy_model.is_reached(quorum, _with_own(row, actor, actor.user_account_id, votes))


def _with_own(row: LockedApproval, actor: Actor, person: UUID, votes: Sequence[CountedVote]) -> list[CountedVote]:
    own = CountedVote(member_id=person, roles=actor.roles, behind=row.behind or [person])
    return [*(vote for vote in votes if vote.member_id != person), own]


def is_vote(row: LockedApproval, edit: Edit | None) -> bool:
    """Whoever edits the arguments shapes the call: where self-approval is off, their own yes to it does not count."""
    if edit is None:
        return True
    return row.approval.self_approval and all(terms.self_approval for terms in edit.terms)


def ends_it(row: LockedApproval, actor: Actor, edit: Edit | None) -> bool:
    """Whether this yes is the last one: it takes a quorum. After an edit no earlier vote counts."""
    if not is_vote(row, edit):
        return False
    if edit is None:
        return is_enough(row, row.approval.quorum, actor, row.votes)
    # An edited call may need more people than the one that was asked for, and never fewer.
    quorum = functools.reduce(policy_model.stricter_quorum, [terms.quorum for terms in edit.terms], row.approval.quorum)
    return is_enough(row, quorum, actor, [])


def agrees(row: LockedApproval, actor: Actor, answer: str) -> bool:
    """Whether enough people give this answer about an uncertain call, with this one."""
    if row.approval.settles is None:
        return True
    return is_enough(row, row.approval.quorum, actor, [v for v in row.votes if v.answer == answer])


def explain_votes(approval: Approval, votes: Sequence[approval_model.Vote]) -> list[approval_model.Vote]:
    """With whose vote counts instead, where one does not add to the quorum of an open request."""
    if approval.status is not ApprovalStatus.PENDING:
        return list(votes)
    current = [vote for vote in votes if vote.version == approval.version and vote.decision is Choice.APPROVED]
    counting = policy_model.independent(current)

    def counts_with(vote: approval_model.Vote) -> str | None:
        is_void = vote in current and vote not in counting
        return next((v.member for v in counting if is_void and not set(v.behind).isdisjoint(vote.behind)), None)

    return [replace(vote, counts_with=counts_with(vote)) for vote in votes]


def is_same(approval: Approval, decision: approval_model.ApprovalDecision, edited_hash: str | None) -> bool:
    """Whether a resolved approval says just what this decision says."""
    if approval.status.value != decision.decision.value:
        return False
    if decision.decision is Choice.RESPONDED:
        return canonical(approval.answer) == canonical(decision.answer)
    return decision.decision is Choice.DENIED or (edited_hash or decision.input_hash) == approval.input_hash


def already_decided(approval: Approval) -> Conflict:
    by = f" by {approval.resolved_by_name}" if approval.resolved_by_name else ""
    why = f": {approval.resolution_reason}" if approval.resolution_reason else ""
    return Conflict(
        f"It is {approval.status} already{by}{why}.",
        code="approval_conflict",
        hint="The first decision stands; read it with `cortex approval show`.",
    )


def channel_not_used(channel: str) -> Forbidden:
    return Forbidden(
        f"This org does not use {channel} for approvals any more.",
        code="channel_not_used",
        hint="Decide on the dashboard, or ask an admin: `cortex org update --approval-channel`.",
    )


def approval_expired() -> Conflict:
    return Conflict(
        "Its time is over.", code="approval_expired", hint="Submit the job again with `cortex job resubmit`."
    )


def answer_refusal(approval: Approval, decision: approval_model.ApprovalDecision) -> CortexError | None:
    """Why the answer of a decision cannot be taken; a question takes nothing but an answer, or a no."""
    if decision.decision is Choice.RESPONDED:
        if approval.kind is not approval_model.ApprovalKind.CALL:
            return InvalidInput("Only a call can be answered in its place.", hint="Approve it or deny it.")
        if decision.arguments is not None or decision.standing is not None:
            hint = "Leave `arguments` and `standing` out: an answer lets nothing run."
            return InvalidInput("Only a yes takes arguments or stands for more calls.", hint=hint)
        try:
            require_answer(approval.tool_name, approval.arguments, decision.answer)
        except InvalidInput as error:
            return error
    elif decision.answer is not None:
        hint = 'Send `"decision": "responded"` with it, or leave it out.'
        return InvalidInput("An answer goes with the decision `responded` alone.", hint=hint)
    elif decision.decision is Choice.APPROVED and approval.tool_name == ASK_PERSON:
        return Conflict(
            "This is a question: there is nothing to approve.",
            code="answer_needed",
            hint="Answer it with `cortex approval answer`, or decline it with `cortex approval deny`.",
        )
    return None


def staleness_error(approval: Approval, decision: approval_model.ApprovalDecision, now: datetime) -> CortexError | None:
    """Why an open approval cannot be decided by what the decider saw."""
    if approval.deadline is not None and now >= approval.deadline:
        return approval_expired()
    if decision.version != approval.version or decision.input_hash != approval.input_hash:
        return Stale(
            f"It changed: you saw version {decision.version}, it is now at {approval.version}.",
            code="approval_changed",
            hint="Look at it again, then decide with the version and digest that it has now.",
        )
    return None


def decision_change(
    row: LockedApproval, actor: Actor, decision: approval_model.ApprovalDecision, edit: Edit | None
) -> ApprovalChange | None:
    """None where the same was recorded before."""
    if row.earlier is not None or row.approval.status is not ApprovalStatus.PENDING:
        return None
    if decision.decision is Choice.DENIED:
        return end_denied(row, actor.name, decision.reason)
    if decision.decision is Choice.RESPONDED:
        return end_responded(row, actor.name, decision.answer)
    if ends_it(row, actor, edit):
        return end_approved(row)
    own = [vote for vote in row.votes if vote.member_id == actor.user_account_id]
    if edit is None and any(set(vote.behind) <= set(row.behind) for vote in own):
        return None  # they voted, and the same vote again counts for no more
    calls = [(call.id, call.status, None) for call in _awaiting(row)] if edit else []
    return ApprovalChange(status=ApprovalStatus.PENDING, calls=calls, jobs=[], cancelled=[])


def changes_rules(approval: Approval, change: ApprovalChange) -> bool:
    """Whether this decision puts a change of rules in force."""
    is_change = approval.kind is approval_model.ApprovalKind.CHANGE
    return is_change and change.status is ApprovalStatus.APPROVED


def end_approved(row: LockedApproval) -> ApprovalChange:
    awaiting = _awaiting(row)
    calls = [(call.id, CallStatus.APPROVED, None) for call in awaiting]
    return ApprovalChange(status=ApprovalStatus.APPROVED, calls=calls, jobs=_going_on(row, awaiting), cancelled=[])


def end_denied(row: LockedApproval, by: str, reason: str | None) -> ApprovalChange:
    text = (reason or "").strip()
    end = "" if text.endswith((".", "!", "?")) else "."
    why = f": {text}{end}" if text else "."
    word = "was declined" if row.approval.tool_name == ASK_PERSON else "denied"
    return _turned_down(row, ApprovalStatus.DENIED, f"{word} by {by}{why}")


def end_responded(row: LockedApproval, by: str, answer: Any) -> ApprovalChange:
    """The calls are over without having been sent, and their jobs go on with the answer."""
    asks = row.approval.tool_name == ASK_PERSON
    note = None if asks else f"`{row.approval.tool_name}` was not sent: {by} answered in its place."
    return _answered(row, ApprovalStatus.RESPONDED, answer, note)


def _answered(row: LockedApproval, status: ApprovalStatus, answer: Any, note: str | None) -> ApprovalChange:
    awaiting = _awaiting(row)
    calls = [(call.id, CallStatus.ANSWERED, note) for call in awaiting]
    return ApprovalChange(status=status, calls=calls, jobs=_going_on(row, awaiting), cancelled=[], answer=answer)


def end_expired(row: LockedApproval) -> ApprovalChange:
    form = form_of(row.approval.tool_name, row.approval.arguments)
    if form is not None and form.default is not None:
        return _answered(row, ApprovalStatus.EXPIRED, form.default, None)
    return _turned_down(row, ApprovalStatus.EXPIRED, f"timed out after {in_words(row.timeout_seconds)}.")


def end_withdrawn(row: LockedApproval, call_id: UUID) -> ApprovalChange | None:
    """Nobody is asked any more, where this call was the last that waited for it; else None. The call itself is over already."""
    awaiting = _awaiting(row)
    if any(call.id != call_id for call in awaiting):
        return None
    return ApprovalChange(status=ApprovalStatus.CANCELLED, calls=[], jobs=_going_on(row, awaiting), cancelled=[])


def _turned_down(row: LockedApproval, status: ApprovalStatus, what: str) -> ApprovalChange:
    asks = row.approval.tool_name == ASK_PERSON
    message = f"The question {what}" if asks else f"Approval of `{row.approval.tool_name}` {what}"
    answer = message if asks else f"{message} Do not send the same call again; go another way."
    awaiting = _awaiting(row)
    calls = [(call.id, CallStatus.REJECTED, answer) for call in awaiting]
    if row.approval.on_deny is policy_model.OnDeny.CONTINUE:
        return ApprovalChange(status=status, calls=calls, jobs=_going_on(row, awaiting), cancelled=[])
    steps = {call.job_id: call.step_index for call in awaiting}
    failed = []
    for job in row.jobs:
        if job.id in steps:
            error = f"Job {job.id}, step {steps[job.id]}: {message} `cortex job resubmit` asks again."
            failed.append(JobOutcome(id=job.id, open=0, status=JobStatus.FAILED, error=error))
    # What waits for nobody else any more ends with its job.
    cancelled = [sibling for sibling in row.siblings if set(sibling.jobs or ()) <= set(steps)]
    return ApprovalChange(status=status, calls=calls, jobs=failed, cancelled=cancelled)


def corrupt_jobs(row: LockedApproval) -> dict[UUID, CheckpointCorrupt]:
    """The jobs that wait for this and could not go on: their checkpoints are gone or damaged. Whether somebody forged one is for the
    worker to find: it holds the master key for as long as it runs, and whoever decides may have an older one."""
    waiting, corrupt = {call.job_id for call in _awaiting(row)}, {}
    for job in row.jobs:
        if job.sealed is None or job.id not in waiting:
            continue
        try:
            if not job.sealed:
                raise missing_checkpoint()
            check_seal(job.sealed, None, job.id, None)
        except CheckpointCorrupt as fault:
            corrupt[job.id] = fault
    return corrupt


def corruption_refusal(row: LockedApproval, corrupt: Mapping[UUID, CheckpointCorrupt]) -> CortexError | None:
    """Why nothing was decided: every job that waits has failed. Where others wait, it is decided for them."""
    if not corrupt:
        return None
    if any(call.job_id not in corrupt for call in _awaiting(row)):
        return Conflict("A job that waited for this failed meanwhile.", code="retry", hint="Decide again.")
    job_id, fault = next(iter(corrupt.items()))
    return CheckpointCorrupt(
        f"Nothing was decided and nothing was sent: the checkpoint of job {job_id} is corrupt, so the job has failed."
        f" {fault.message}",
        corruption_type=fault.corruption_type, job=str(job_id),
    )  # fmt: skip


def _awaiting(row: LockedApproval) -> Sequence[WaitingCall]:
    return [call for call in row.calls if call.status is CallStatus.AWAITING]


def _going_on(row: LockedApproval, awaiting: Sequence[WaitingCall]) -> list[JobOutcome]:
    """With its last open approval a job goes on, or pauses where somebody holds it."""
    waiting = {call.job_id for call in awaiting}
    outcomes = []
    for job in row.jobs:
        if job.id in waiting:
            open_approvals = job.open_approvals - 1
            status = None if open_approvals else JobStatus.PAUSED if job.holds else JobStatus.RUNNING
            outcomes.append(JobOutcome(id=job.id, open=open_approvals, status=status))
    return outcomes


def approval_after(
    row: LockedApproval, change: ApprovalChange, actor: Actor, decision: approval_model.ApprovalDecision,
    edit: Edit | None, channel: approval_model.Channel,
) -> Approval:  # fmt: skip
    """The approval as this decision leaves it, but for what an edit makes of its causes."""
    approval = row.approval
    if edit is not None:
        approval = replace(
            approval, version=approval.version + 1, arguments=orjson.loads(edit.arguments), input_hash=edit.input_hash,
            original_arguments=approval.arguments if approval.original_arguments is None else approval.original_arguments,
        )  # fmt: skip
    votes_for = _votes_after(row, change, actor, decision, edit)
    if change.status is ApprovalStatus.PENDING:
        return replace(approval, votes_for=votes_for)
    return replace(
        approval, status=change.status, votes_for=votes_for, escalate_at=None, resolved_at=row.now,
        resolved_by=actor.user_account_id, resolved_by_name=actor.name, resolution_reason=decision.reason,
        resolved_via=channel, answer=change.answer,
    )  # fmt: skip


def _votes_after(
    row: LockedApproval, change: ApprovalChange, actor: Actor, decision: approval_model.ApprovalDecision, edit: Edit | None
) -> int:  # fmt: skip
    """While a request is open, those that two humans or more gave; of one that ended, every yes."""
    person = actor.user_account_id
    if edit is not None:
        return int(is_vote(row, edit))
    if change.status is ApprovalStatus.PENDING:
        return len(policy_model.independent(_with_own(row, actor, person, row.votes) if person else row.votes))
    others = [vote for vote in row.cast_votes if vote.decision is Choice.APPROVED and vote.member_id != person]
    return len(others) + (decision.decision is Choice.APPROVED)


def receipt_facts(
    row: LockedApproval, source: ReceiptFacts, change: ApprovalChange, person: UUID, name: str,
    decision: approval_model.ApprovalDecision, edit: Edit | None, channel: approval_model.Channel,
) -> ReceiptFacts:  # fmt: skip
    """What the receipt of a decision says besides the approval: what was read under the locks, and what the decision writes at ``row.now``.
    Of earlier votes those count whose voters could still give them."""
    approval = row.approval
    own = Vote(
        version=approval.version + (edit is not None), member_id=person, member=name, decision=decision.decision,
        reason=decision.reason, channel=channel, created_at=row.now,
    )  # fmt: skip
    counted = {vote.member_id for vote in row.votes if vote.member_id != person} if edit is None else set()
    earlier = [vote for vote in row.cast_votes if vote.member_id in counted]
    granted = any(status is CallStatus.APPROVED for _, status, _ in change.calls)
    waiting = {call.job_id for call in _awaiting(row)}
    return replace(
        source,
        original_hash=source.original_hash or (approval.input_hash if edit is not None else None),
        expires_at=row.now + timedelta(seconds=row.grant_seconds) if granted else None,
        votes=sorted([*earlier, own], key=lambda vote: (vote.created_at, vote.member_id)),
        checkpoints=[job.checkpoint for job in row.jobs if job.id in waiting],
    )


def shown_to(approval: Approval, actor: Actor) -> Approval:
    """With whether the actor could approve it, and if not, why."""
    if approval.status is not ApprovalStatus.PENDING:
        return approval
    if approval.refusal == "not_a_settler":
        return replace(approval, why_not="Only admins, operators and approvers may answer this.")
    error = refusal(approval, actor, Choice.APPROVED)
    return replace(approval, may_decide=error is None, why_not=error.message if error else None)


def job_facts_and_events(
    row: LockedApproval, change: ApprovalChange, actor: Actor
) -> tuple[list[Fact], list[SessionEvent]]:
    """Audit entries and events about the jobs of an approval, and about their other approvals."""
    facts: list[Fact] = []
    events: list[SessionEvent] = []
    approval_id = str(row.approval.id)
    for job in change.jobs:
        if job.status is None:
            continue
        events.append(("status", job.id, {"status": job.status, "error": job.error}))
        if job.status is JobStatus.FAILED:
            facts.append(Fact.of(actor, "job_failed", job=str(job.id), error=job.error))
            events.append(("error", job.id, {"message": job.error}))
        else:
            step = next(call.step_index for call in row.calls if call.job_id == job.id)
            reason_to_resume = {"approval_id": approval_id, "resumed_by_approval": True, "resumed_at_loop": step}
            held = job.status is JobStatus.PAUSED
            facts.append(Fact.of(actor, "session_resumed", job=str(job.id), held=held, **reason_to_resume))
            if not held:
                events.append(("session_resumed", job.id, {**reason_to_resume, "resumed_at": row.now.isoformat()}))
    for sibling in change.cancelled:
        facts.append(Fact.of(actor, "approval_cancelled", approval=str(sibling.id), because_of=approval_id))
        events.append(("approval_cancelled", row.approval.job_id, {"approval_id": str(sibling.id)}))
    return facts, events
