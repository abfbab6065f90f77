"""The intent of a call that runs elsewhere: the last look at what allows it, in the commit after which it may act."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from cortex_plane.calls import store as calls_store
from cortex_plane.calls.model import DISPATCH_SECONDS, MAX_SENDS, ExternalCall, IntentDraft, Next, advised
from cortex_plane.calls.store import CallContext, StoredCall
from cortex_plane.calls.verbs import doubts
from cortex_plane.calls.verbs.authorization import CallVerdict, covering_approval, decide_call
from cortex_plane.calls.verbs.call_approvals import (
    ask_people,
    nobody_can_approve,
    receipt_fault,
    terms_of,
    was_granted,
)
from cortex_plane.calls.verbs.context import (
    RequestedCall,
    call_context,
    read_call,
    retry_under_session_lock,
    with_known_risk,
)
from cortex_plane.db.database import Database, Transaction
from cortex_plane.gates import store as gates_store
from cortex_plane.jobs.model.effects import SETTLED, CallStatus
from cortex_plane.kernel.errors import Conflict
from cortex_plane.policies.model.policies import PolicyVerdict
from cortex_plane.proof import store as proof_store
from cortex_plane.proof.model import Fact
from cortex_plane.tenancy.model.access import Actor


async def begin(db: Database, actor: Actor, id: UUID, draft: IntentDraft) -> ExternalCall:
    begun = await retry_under_session_lock(db, actor, lambda db: _begin(db, actor, id, draft), call=id)
    return advised((await read_call(db, actor, id)).call, is_sender=begun)


async def _begin(db: Database, actor: Actor, id: UUID, draft: IntentDraft) -> bool:
    """Whether the intent is this try's; else a person is asked now, or it is over."""
    kept = await read_call(db, actor, id)
    call = kept.call
    mine = draft.sender is not None and kept.sender == draft.sender
    if call.input_hash != draft.input_hash:
        raise Conflict(
            "These are not the arguments that may be run.",
            code="arguments_changed",
            hint="Somebody edited them: read the call, and begin with the arguments and the digest that it has now.",
        )
    if call.status is CallStatus.INTENDED and mine and not draft.renew:
        return True  # only the answer was lost on the way
    refused = _refusal(call, draft, mine)
    if refused is not None:
        raise refused
    given = await call_context(
        db, actor, call.session_id, None, call.tool, call.input_hash, asked_by=kept.asker, acts=True
    )
    kept = replace(kept, call=with_known_risk(call, given))
    if call.status is CallStatus.ALLOWED:
        return await _allowed(db, actor, given, kept, draft)
    if call.status is CallStatus.APPROVED:
        return await _approved(db, actor, given, kept, draft)
    return await _again(db, actor, given, kept, draft, renews=mine and draft.renew)


def _refusal(call: ExternalCall, draft: IntentDraft, mine: bool) -> Conflict | None:
    """Why it cannot begin as it stands, whatever the policies say."""
    if call.status in SETTLED:
        code = "call_refused" if call.status is CallStatus.REJECTED else "call_settled"
        return Conflict(
            f"This call is {call.status}: {call.error or 'it is done'}",
            code=code,
            hint="Do not run it again.",
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


async def _allowed(
    db: Database, actor: Actor, given: CallContext, kept: StoredCall, draft: IntentDraft
) -> bool:
    """What policies allowed then they must allow now; a standing approval is counted here."""
    found = await decide_call(db, actor, given, RequestedCall.of(kept.call), covering=True, told=True)
    answer = found.answer
    if answer.verdict is PolicyVerdict.ALLOW:
        changed = kept.policies != given.policies or answer.decision.rule != kept.call.rule
        return await _write(
            db, actor, given, kept.call, draft, found, anew=changed or answer.leaning is not None
        )
    if answer.verdict is PolicyVerdict.DENY:
        return await _reject(db, actor, kept.call, found)
    return await _ask(db, actor, given, kept.call, found)


async def _approved(
    db: Database, actor: Actor, given: CallContext, kept: StoredCall, draft: IntentDraft
) -> bool:
    """A person said yes to exactly this: the receipt must say so, and nothing must forbid it by now."""
    call = kept.call
    async with db.transaction(actor.org_id) as tx:
        grant = await calls_store.get_grant(tx, call.id)
    holds = grant is not None and grant.expires_at > call.now
    found = await decide_call(db, actor, given, RequestedCall.of(call), approved=holds)
    if found.verdict is PolicyVerdict.DENY:
        return await _reject(db, actor, call, found)
    if grant is None or not holds:
        return await _outgrown(db, actor, given, call, found)
    if found.ruling is not None and found.ruling.verdict is PolicyVerdict.REQUIRES_APPROVAL:
        # Whoever approved it did not see every gate that a person must pass by now.
        return await _ask(db, actor, given, call, found)
    fault = receipt_fault(db, actor, call, grant, call.now)
    if fault is not None:
        fact = Fact.of(actor, "receipt_refused", call=str(call.id), tool=call.tool, reason=fault)
        return await _end(db, actor, call, f"`{call.tool}` was not sent: {fault}.", fact, found)
    return await _write(db, actor, given, call, draft, found, anew=False, granted=True)


async def _again(
    db: Database, actor: Actor, given: CallContext, kept: StoredCall, draft: IntentDraft, *, renews: bool
) -> bool:
    """What was sent before needs permission of this moment, or the very approval that it was sent with."""
    call, wanted = kept.call, RequestedCall.of(kept.call)
    cleared = call.status is CallStatus.CLEARED
    if not cleared and call.attempt >= MAX_SENDS and not renews:
        return await doubts.ask_human(db, actor, call.id)
    granted = await was_granted(db, actor, call)
    found = await decide_call(db, actor, given, wanted, again=True, approved=granted)
    # Whoever approved it then speaks for the gates that stood on their card, and for no others.
    unseen = found.ruling is not None and found.ruling.verdict is PolicyVerdict.REQUIRES_APPROVAL
    by_person = found.verdict is PolicyVerdict.REQUIRES_APPROVAL or found.needed_a_person
    if granted and by_person and not unseen and found.verdict is not PolicyVerdict.DENY:
        return await _write(db, actor, given, call, draft, found, anew=False)
    found.answer, found.told = await covering_approval(db, actor, given, wanted, found.answer)
    leaning = found.answer.leaning
    if found.verdict is PolicyVerdict.ALLOW and (leaning is None or leaning.counted or cleared):
        return await _write(db, actor, given, call, draft, found, anew=True)
    if not cleared:
        return await doubts.ask_human(db, actor, call.id)
    if found.verdict is PolicyVerdict.DENY:
        return await _reject(db, actor, call, found)
    return await _ask(db, actor, given, call, found)


async def _write(
    db: Database, actor: Actor, given: CallContext, call: ExternalCall, draft: IntentDraft, found: CallVerdict, *, anew: bool,
    granted: bool = False,
) -> bool:  # fmt: skip
    """``anew``: by another authorization than the one that it has."""
    found.sent(RequestedCall.of(call), approved=granted)
    answer = found.answer if anew else None
    before = call.dispatch_before is not None
    named = {"call": str(call.id), "tool": call.tool, "input_hash": call.input_hash}
    leaning = answer.leaning if answer is not None else None
    facts = found.facts(actor)
    if leaning is not None:
        facts.append(
            Fact.of(
                actor, "standing_used", standing=str(leaning.standing_id), digest=call.tool_digest, **named
            )
        )
    action = "call_sent_again" if before else "call_intended"
    probed = draft.did_not_happen and call.probes_if_uncertain
    facts.append(
        Fact.of(
            actor, action, **named, attempt=call.attempt + before, granted=granted, policies=given.policies,
            rule=answer.decision.rule if answer is not None else call.rule, did_not_happen=probed,
        )
    )  # fmt: skip
    await calls_store.intend_call(
        db, actor.org_id, call, draft.sender, given.policies, DISPATCH_SECONDS,
        authorization=(answer.id, answer.decision) if answer is not None else None, granted=granted,
        standing=(leaning.standing_id, leaning.granter_revision) if leaning is not None else None,
        by=actor.identity, events=found.events, facts=facts, more=found.more(),
    )  # fmt: skip
    return True


async def _ask(
    db: Database, actor: Actor, given: CallContext, call: ExternalCall, found: CallVerdict, *notes: Fact
) -> bool:
    """What held when it was authorised does not any more: a person is asked, about the same call."""
    answer = found.answer
    possible = await terms_of(db, given, found, again=call.id)
    wanted = RequestedCall.of(call)
    if possible.terms is None:
        error = nobody_can_approve(wanted, found, possible)
        return await _end(db, actor, call, error, _authorized(actor, given, call, found), found)
    async with db.transaction(actor.org_id) as tx:
        request = await ask_people(tx, actor, given, wanted, found, possible, call.step_index)
        if not await calls_store.ask_again(
            tx, call.id, answer.id, answer.decision.rule, given.policies, request.id
        ):
            raise Conflict("The call changed meanwhile.", code="retry")
        await _remember(tx, call, found)
        events = [(kind, call.job_id, data) for kind, data in (*found.events, *request.events)]
        facts = [*found.facts(actor), *notes, _authorized(actor, given, call, found), *request.facts]
        await proof_store.append_to_session(tx, call.session_id, facts, events, job=call.job_id)
    request.count(actor.org_id)
    return False


async def _outgrown(
    db: Database, actor: Actor, given: CallContext, call: ExternalCall, found: CallVerdict
) -> bool:
    """The grant's time is over: it is judged as if nobody had been asked yet."""
    note = Fact.of(
        actor, "approval_outgrown", call=str(call.id), tool=call.tool, reason="its grant has expired"
    )
    if found.verdict is PolicyVerdict.REQUIRES_APPROVAL:
        return await _ask(db, actor, given, call, found, note)
    return await _end(db, actor, call, "Its grant has expired. Ask again, with a new key.", note, found)


async def _reject(db: Database, actor: Actor, call: ExternalCall, found: CallVerdict) -> bool:
    rule = found.answer.decision.rule
    error = f"`{call.tool}` is denied by now ({rule}){found.reason}. Do not call it again; go another way."
    fact = Fact.of(
        actor, "call_settled", call=str(call.id), tool=call.tool, status=CallStatus.REJECTED,
        rule=rule,
    )  # fmt: skip
    return await _end(db, actor, call, error, fact, found)


async def _end(
    db: Database, actor: Actor, call: ExternalCall, error: str, fact: Fact, found: CallVerdict
) -> bool:
    async with db.transaction(actor.org_id) as tx:
        await calls_store.lock_asking(tx, call.job_id, is_open=True)
        if not await calls_store.reject_call(tx, call.id, error[:4000]):
            raise Conflict("The call changed meanwhile.", code="retry")
        told = {
            "step": call.step_index, "id": str(call.id), "tool": call.tool, "status": CallStatus.REJECTED,
            "error": error[:500],
        }  # fmt: skip
        await _remember(tx, call, found)
        events = [(kind, call.job_id, data) for kind, data in (*found.events, ("tool_result", told))]
        await proof_store.append_to_session(
            tx, call.session_id, [*found.facts(actor), fact], events, job=call.job_id
        )
    return False


async def _remember(tx: Transaction, call: ExternalCall, found: CallVerdict) -> None:
    written = found.looked.written if found.looked is not None else {}
    if written:
        await gates_store.record_gates(tx, call.session_id, written)


def _authorized(actor: Actor, given: CallContext, call: ExternalCall, found: CallVerdict) -> Fact:
    return Fact.of(
        actor, "call_authorized", call=str(call.id), tool=call.tool, digest=call.tool_digest,
        input_hash=call.input_hash, verdict=found.verdict, rule=found.answer.decision.rule, policies=given.policies,
        again=True,
    )  # fmt: skip
