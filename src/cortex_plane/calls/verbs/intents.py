"""The intent of a call that runs elsewhere: the last look at what allows it, in the commit after which it may act."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from cortex_plane.agents.model.tools import OnUncertain
from cortex_plane.approvals.verbs.approval_requests import count, nobody_can
from cortex_plane.calls import store as calls_store
from cortex_plane.calls.model import DISPATCH_SECONDS, ExternalCall, IntentDraft, Next, RequestedCall, advised
from cortex_plane.calls.rules import pipeline
from cortex_plane.calls.rules.pipeline import MAX_ERROR, CallVerdict, call_fact, facts_by
from cortex_plane.calls.store import CallContext, StoredCall
from cortex_plane.calls.verbs import deadlines
from cortex_plane.calls.verbs.authorization import cover_external, decide_call
from cortex_plane.calls.verbs.call_approvals import ask_people, terms_of, was_granted
from cortex_plane.calls.verbs.earlier_approvals import receipt_fault
from cortex_plane.calls.verbs.external import call_context, read_call, retry_under_session_lock
from cortex_plane.db.database import Database
from cortex_plane.gates.verbs import session_gates
from cortex_plane.jobs.model.effects import MAX_SENDS, SETTLED, CallStatus
from cortex_plane.kernel.errors import Conflict
from cortex_plane.kernel.fields import highest_risk
from cortex_plane.policies.model.policies import PolicyVerdict
from cortex_plane.tenancy.model.access import Actor


async def begin(db: Database, actor: Actor, id: UUID, draft: IntentDraft) -> ExternalCall:
    begun = await retry_under_session_lock(db, actor, lambda db: _begin(db, actor, id, draft), call=id)
    return advised((await read_call(db, actor, id)).call, is_sender=begun)


async def _begin(db: Database, actor: Actor, id: UUID, draft: IntentDraft) -> bool:
    """Whether the intent is this try's; else a person is asked now, or it is over."""
    stored_call = await read_call(db, actor, id)
    call = stored_call.call
    mine = draft.sender is not None and stored_call.sender == draft.sender
    if call.input_hash != draft.input_hash:
        raise Conflict(
            "These are not the arguments that may be run.",
            code="arguments_changed",
            hint="Somebody edited them: read the call, and begin with the arguments and the digest that it has now.",
        )
    if call.status is CallStatus.INTENDED and mine and not draft.renew:
        return True  # only the answer was lost on the way
    if (refusal := _refusal(call, draft, mine)) is not None:
        raise refusal
    context = await call_context(
        db, actor, call.session_id, None, call.tool, call.input_hash, asked_by=stored_call.asker, acts=True
    )
    stored_call = replace(stored_call, call=replace(call, risk=highest_risk(call.risk, context.known_risk)))
    if call.status is CallStatus.ALLOWED:
        return await _allowed(db, actor, context, stored_call, draft)
    if call.status is CallStatus.APPROVED:
        return await _approved(db, actor, context, stored_call, draft)
    return await _again(db, actor, context, stored_call, draft, renews=mine and draft.renew)


def _refusal(call: ExternalCall, draft: IntentDraft, mine: bool) -> Conflict | None:
    """Why it cannot begin as it stands, whatever the policies say."""
    if call.status in SETTLED:
        code = "call_refused" if call.status in (CallStatus.REJECTED, CallStatus.ANSWERED) else "call_settled"
        return Conflict(
            f"This call is {call.status}: {call.error or 'it is done'}", code=code, hint="Do not run it again."
        )
    if call.status is CallStatus.AWAITING:
        return Conflict(
            "Nobody has approved this call yet.",
            code="call_awaiting",
            hint="Wait for the decision with `GET /v1/calls/{id}?wait=30`.",
        )
    if call.status is CallStatus.INTENDED and mine and draft.renew:
        return None
    advice = advised(call, is_sender=False)
    able = advice.next is Next.BEGIN or (advice.next is Next.PROBE and draft.did_not_happen)
    if call.status in (CallStatus.INTENDED, CallStatus.UNCERTAIN) and not able:
        hint = "Never run it again blindly: read the call, and do what its `next` says."
        return Conflict(advice.reason or "Nobody knows whether it happened.", code="call_in_doubt", hint=hint)
    return None


async def _allowed(db: Database, actor: Actor, context: CallContext, stored: StoredCall, draft: IntentDraft) -> bool:
    """What policies allowed then they must allow now; a standing approval is counted here."""
    verdict = await decide_call(db, actor, context, RequestedCall.of(stored.call), covering=True, seen_before=True)
    answer = verdict.answer
    if answer.verdict is PolicyVerdict.ALLOW:
        is_new = stored.policies != context.policies or answer.decision.rule != stored.call.rule
        return await _write(db, actor, context, stored.call, draft, verdict, anew=is_new or answer.leaning is not None)
    if answer.verdict is PolicyVerdict.DENY:
        return await _reject(db, actor, stored.call, verdict)
    return await _ask(db, actor, context, stored.call, verdict)


async def _approved(db: Database, actor: Actor, context: CallContext, stored: StoredCall, draft: IntentDraft) -> bool:
    """A person said yes to exactly this: the receipt must say so, and nothing must forbid it by now."""
    call = stored.call
    async with db.transaction(actor.org_id) as tx:
        grant = await calls_store.get_grant(tx, call.id)
    holds = grant is not None and grant.expires_at > call.now
    verdict = await decide_call(db, actor, context, RequestedCall.of(call), approved=holds)
    if verdict.verdict is PolicyVerdict.DENY:
        return await _reject(db, actor, call, verdict)
    why = pipeline.outgrown_reason(verdict.verdict, verdict.ruling, grant.expires_at if grant else None, call.now)
    if grant is None or why is not None:
        verdict.notes.append(call_fact(facts_by(actor), "approval_outgrown", RequestedCall.of(call), reason=why))
        if verdict.verdict is PolicyVerdict.REQUIRES_APPROVAL:
            return await _ask(db, actor, context, call, verdict)
        return await _end(db, actor, call, "Its grant has expired. Ask again, with a new key.", verdict)
    if (fault := receipt_fault(db.vault, actor.org_id, RequestedCall.of(call), grant.stamp, call.now)) is not None:
        verdict.notes.append(call_fact(facts_by(actor), "receipt_refused", RequestedCall.of(call), reason=fault))
        return await _end(db, actor, call, f"`{call.tool}` was not sent: {fault}.", verdict)
    return await _write(db, actor, context, call, draft, verdict, anew=False, has_grant=True)


async def _again(
    db: Database, actor: Actor, context: CallContext, stored_call: StoredCall, draft: IntentDraft, *, renews: bool
) -> bool:
    """It was sent before: see `may_be_sent_again`."""
    call, requested_call = stored_call.call, RequestedCall.of(stored_call.call)
    # Of these somebody knows that the attempt before did nothing: a person, or the agent itself.
    is_cleared = call.status in (CallStatus.CLEARED, CallStatus.PARKED)
    if not is_cleared and call.attempt >= MAX_SENDS and not renews:
        return await deadlines.ask_human(db, actor, call.id)
    has_grant = await was_granted(db, actor, call)
    verdict = await decide_call(db, actor, context, requested_call, again=True, approved=has_grant)
    # Whoever approved it then speaks for the gates that stood on their card, and for no others.
    by_grant = has_grant and verdict.is_for_people and not pipeline.is_unseen(verdict.ruling)
    if not by_grant:
        verdict = await cover_external(db, actor, context, requested_call, verdict)
    is_anew = is_cleared and verdict.verdict is PolicyVerdict.ALLOW  # A standing approval is counted for it once more.
    if is_anew or pipeline.may_be_sent_again(verdict.answer, verdict.ruling, has_grant=by_grant):
        return await _write(db, actor, context, call, draft, verdict, anew=not by_grant)
    if not is_cleared:
        return await deadlines.ask_human(db, actor, call.id)
    if verdict.verdict is PolicyVerdict.DENY:
        return await _reject(db, actor, call, verdict)
    return await _ask(db, actor, context, call, verdict)


async def _write(
    db: Database, actor: Actor, context: CallContext, call: ExternalCall, draft: IntentDraft, verdict: CallVerdict, *, anew: bool,
    has_grant: bool = False,
) -> bool:  # fmt: skip
    """``anew``: by another authorization than the one that it has."""
    requested_call = RequestedCall.of(call)
    record = verdict.record(actor, requested_call, has_grant)
    answer = verdict.answer if anew else None
    # Whatever was sent before, also where somebody was asked again meanwhile: a late outcome is of that attempt.
    before = call.dispatch_before is not None
    attempt = call.attempt + before
    use = answer.leaning if answer is not None else None
    fact, facts = facts_by(actor), [*record.facts]
    if use is not None:
        facts.append(pipeline.standing_fact(fact, requested_call, use))
    facts.append(
        call_fact(
            fact, "call_sent_again" if before else "call_intended", requested_call, input_hash=call.input_hash,
            attempt=attempt, granted=has_grant, policies=context.policies,
            rule=answer.decision.rule if answer is not None else call.rule,
            did_not_happen=draft.did_not_happen and call.on_uncertain is OnUncertain.PROBE,
        )
    )  # fmt: skip
    intent = pipeline.intent_row(
        requested_call, attempt, call.on_uncertain, call.timeout_seconds, grant=has_grant, authorization=answer, use=use
    )
    if draft.runner is not None:
        intent["runner"] = draft.runner
    await calls_store.intend_call(
        db, actor.org_id, call, draft.sender, context.policies, DISPATCH_SECONDS, intent, actor.identity, record.events,
        facts, verdict.more(record),
    )  # fmt: skip
    return True


async def _ask(db: Database, actor: Actor, context: CallContext, call: ExternalCall, verdict: CallVerdict) -> bool:
    """What held when it was authorised does not any more: a person is asked, about the same call."""
    possible = await terms_of(db, context, verdict, again=call.id)
    requested_call = RequestedCall.of(call)
    fact = pipeline.authorized_fact(facts_by(actor), requested_call, verdict.answer, context.policies, again=True)
    if possible.terms is None:
        error = nobody_can(requested_call.name, verdict.answer.decision, possible.excluded)
        verdict.notes.append(fact)
        return await _end(db, actor, call, error, verdict)
    async with db.transaction(actor.org_id) as tx:
        request, events = await ask_people(tx, actor, context, requested_call, verdict, possible, call.step_index)
        row = pipeline.call_row(
            requested_call, verdict.answer, status=CallStatus.AWAITING, step=call.step_index,
            on_uncertain=call.on_uncertain, timeout_seconds=call.timeout_seconds,
        )  # fmt: skip
        arguments = requested_call.arguments
        await calls_store.ask_again(tx, call.job_id, call.session_id, row, arguments, context.policies, request.id)
        record = verdict.record(actor, shown=requested_call)
        facts = [fact, *request.facts]
        await session_gates.write(tx, call.session_id, call.job_id, record, facts, events)
    count(actor.org_id, [request])
    return False


async def _reject(db: Database, actor: Actor, call: ExternalCall, verdict: CallVerdict) -> bool:
    rule = verdict.answer.decision.rule
    error = pipeline.denial(call.tool, rule, verdict.reason, by_now=True)
    status = CallStatus.REJECTED
    verdict.notes.append(call_fact(facts_by(actor), "call_settled", RequestedCall.of(call), status=status, rule=rule))
    return await _end(db, actor, call, error, verdict)


async def _end(db: Database, actor: Actor, call: ExternalCall, error: str, verdict: CallVerdict) -> bool:
    """It is not sent, and never will be."""
    status = CallStatus.REJECTED
    async with db.transaction(actor.org_id) as tx:
        await calls_store.lock_asking(tx, call.job_id, is_open=True)
        await calls_store.end_call(
            tx, pipeline.outcome_row(call.id, status, error=error[:MAX_ERROR], settled_by="policy")
        )
        event = pipeline.result_event(call.step_index, call.id, call.tool, status, error)
        await session_gates.write(tx, call.session_id, call.job_id, verdict.record(actor), (), [event])
    return False
