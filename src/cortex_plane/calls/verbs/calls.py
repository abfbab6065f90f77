"""Calls of agents that run elsewhere: authorize, begin, and their list."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from cortex_plane.approvals.verbs.approval_requests import Possible, count, nobody_can
from cortex_plane.calls import model as call_model
from cortex_plane.calls import store as calls_store
from cortex_plane.calls.store import CallContext, NewCall
from cortex_plane.calls.verbs import intents
from cortex_plane.calls.verbs.authorization import CallVerdict, decide_call
from cortex_plane.calls.verbs.call_approvals import Asked, ask_people, terms_of
from cortex_plane.calls.verbs.context import call_context, read_call, retry_under_session_lock, shown_call, tool_digest
from cortex_plane.db.database import Database, Transaction
from cortex_plane.jobs.model.effects import CallStatus
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import Conflict
from cortex_plane.kernel.ids import new_id
from cortex_plane.kernel.pages import Page, Position
from cortex_plane.policies.model.policies import PolicyVerdict
from cortex_plane.proof.model import Fact
from cortex_plane.tenancy import store as tenancy_store
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs.connections import require_webhook
from cortex_plane.tenancy.verbs.frame import verb


@verb(Permission.JOB_READ)
async def get_call(db: Database, actor: Actor, id: UUID) -> call_model.ExternalCall:
    return shown_call(await read_call(db, actor, id), None)


@verb(Permission.JOB_READ)
async def watch_call(db: Database, actor: Actor, id: UUID) -> tuple[call_model.ExternalCall, int]:
    """With how far the events of its session go, for whoever waits."""
    stored_call = await read_call(db, actor, id)
    return shown_call(stored_call, None), stored_call.event_seq


@verb(Permission.JOB_READ)
async def list_calls(
    db: Database,
    actor: Actor,
    position: Position | None,
    limit: int,
    *,
    session_id: UUID | None = None,
    status: CallStatus | None = None,
) -> Page[call_model.CallShown]:
    """Newest first."""
    async with db.transaction(actor.org_id) as tx:
        return await calls_store.list_calls(tx, position, limit, actor.sees, session_id, status)


@verb(Permission.JOB_SUBMIT)
async def authorize_call(
    db: Database, actor: Actor, session_id: UUID, draft: call_model.CallDraft
) -> call_model.ExternalCall:
    """Ask before acting. The same key again is answered with the same call; it never makes a second one."""
    return await authorize_in(db, actor, session_id, draft)


@dataclass(frozen=True, slots=True)
class ResolutionScope:
    id: UUID
    expires_at: datetime
    check: Callable[[Database, CallContext, call_model.RequestedCall], Awaitable[None]]
    """Raises where it does not cover the call."""


def expired() -> Conflict:
    return Conflict(
        "This resolution has expired.", code="resolution_expired", hint="Resolve again, and execute under the new one."
    )


async def authorize_in(
    db: Database, actor: Actor, session_id: UUID, draft: call_model.CallDraft, under: ResolutionScope | None = None
) -> call_model.ExternalCall:
    id, fresh = await retry_under_session_lock(
        db, actor, lambda db: _authorize(db, actor, session_id, draft, under), session=session_id
    )
    stored_call = await read_call(db, actor, id)
    call = call_model.advised(stored_call.call, is_sender=True) if fresh else shown_call(stored_call, draft.sender)
    if not fresh and draft.dispatch and call.next is call_model.Next.BEGIN and not call.edited:
        if under is not None and call.now >= under.expires_at:
            # What has begun goes on, and nothing more begins under it.
            raise expired()
        intent = call_model.IntentDraft(input_hash=call.input_hash, sender=draft.sender)
        return await intents.begin(db, actor, id, intent)
    return call


async def _authorize(
    db: Database, actor: Actor, session_id: UUID, draft: call_model.CallDraft, under: ResolutionScope | None
) -> tuple[UUID, bool]:
    """The call's id, and whether it is new."""
    arguments = canonical(draft.arguments)
    request = call_model.RequestedCall(
        id=new_id(), name=draft.tool, digest=tool_digest(draft), arguments=arguments,
        input_hash=hashlib.sha256(arguments).hexdigest(), read_only=draft.read_only, risk=draft.risk,
        says=draft.says,
    )  # fmt: skip
    request_hash = hashlib.sha256(f"{request.name}\n{request.digest}\n{request.input_hash}".encode()).digest()
    context = await call_context(db, actor, session_id, draft.key, draft.tool, request.input_hash, acts=True)
    request = request.with_risk(context.known_risk)
    if under is not None:
        await under.check(db, context, request)
    if context.earlier is not None:
        return await _same(db, actor, context.earlier, request_hash), False
    callback_id = await _callback(db, actor, draft.callback)
    verdict = await decide_call(db, actor, context, request, covering=True)
    answer = verdict.answer
    call = replace(_new(actor, draft, request, request_hash, context, verdict), callback_id=callback_id)
    more = {"resolution": str(under.id)} if under is not None else {}
    possible = None
    if answer.verdict is PolicyVerdict.REQUIRES_APPROVAL:
        possible = await terms_of(db, context, verdict)
        if possible.terms is None:
            error = nobody_can(request.name, answer.decision, possible.excluded)
            call, possible = replace(call, status=CallStatus.REJECTED, error=error), None
    id, fresh = await _write_call(db, actor, context, request, call, verdict, more, possible)
    if fresh:
        return id, True
    if under is not None:
        # Another request had the key first, maybe under another resolution.
        await under.check(db, replace(context, earlier=id), request)
    return await _same(db, actor, id, request_hash), False


async def _callback(db: Database, actor: Actor, name: str | None) -> UUID | None:
    """The webhook that is told of decisions. An agent names one that the org has; it never says where to send something."""
    if name is None:
        return None
    async with db.transaction(actor.org_id) as tx:
        connection = require_webhook(await tenancy_store.get_connection_name(tx, name))
    if connection.disabled_at is not None:
        raise Conflict(
            "The webhook that `callback` names is disabled.",
            code="connection_disabled",
            hint="Enable it with `cortex connection enable`, name another one, or leave `callback` out and ask with `?wait=`.",
        )
    return connection.id


async def _write_call(
    db: Database, actor: Actor, context: CallContext, request: call_model.RequestedCall, call: NewCall, verdict: CallVerdict,
    under: dict[str, Any], possible: Possible | None,
) -> tuple[UUID, bool]:  # fmt: skip
    """One commit: the call, the request that it waits for (``possible``: by these terms), and the callback of its agent."""

    async def insert(at: Database | Transaction, asked: Asked | None = None) -> tuple[UUID, bool]:
        sends = call.status is CallStatus.INTENDED
        record = verdict.record(actor, request if sends else None, shown=request if asked is not None else None)
        events, facts = [*record.events, *_events(call)], [*record.facts, *_facts(actor, call)]
        if asked is not None:
            events, facts = [*events, *asked[1]], [*facts, *asked[0].facts]
        row = call if asked is None else replace(call, approval_id=asked[0].id)
        more = verdict.more(record, **under)
        return await calls_store.authorize_call(
            at, actor.org_id, context.job_id, row, call_model.DISPATCH_SECONDS, events, facts, more
        )

    if possible is None and call.callback_id is None:
        return await insert(db)
    async with db.transaction(actor.org_id) as tx:
        asked = await ask_people(tx, actor, context, request, verdict, possible) if possible is not None else None
        id, fresh = await insert(tx, asked)
        if asked is not None and not fresh:
            # Another session of the agent had the key first: what was asked here is rolled back, and that call is the answer.
            raise Conflict("Another request has this key.", code="retry")
        if fresh and call.callback_id is not None:
            await calls_store.record_callback(tx, id, call.callback_id)
    if asked is not None:
        count(actor.org_id, [asked[0]])
    return id, fresh


def _new(
    actor: Actor,
    draft: call_model.CallDraft,
    requested_call: call_model.RequestedCall,
    request_hash: bytes,
    context: CallContext,
    verdict: CallVerdict,
) -> NewCall:
    answer = verdict.answer
    status, error = CallStatus.INTENDED if draft.dispatch else CallStatus.ALLOWED, None
    if answer.verdict is PolicyVerdict.DENY:
        status = CallStatus.REJECTED
        error = f"`{requested_call.name}` is denied ({answer.decision.rule}){verdict.reason}. Do not call it again; go another way."
    elif answer.verdict is PolicyVerdict.REQUIRES_APPROVAL:
        status = CallStatus.AWAITING
    leaning = answer.leaning if status is CallStatus.INTENDED else None
    return NewCall(
        id=requested_call.id, key=draft.key, asked_hash=request_hash, sender=draft.sender, tool=requested_call.name, digest=requested_call.digest,
        parameters=canonical(draft.parameters) if draft.parameters is not None else None,
        arguments=requested_call.arguments, input_hash=requested_call.input_hash, read_only=draft.read_only, risk=requested_call.risk,
        on_uncertain=draft.settlement, timeout_seconds=draft.timeout_seconds, says=draft.says,
        decision=answer.decision, policies=context.policies, status=status, error=error,
        asker=actor.identity, caused_by=actor.user_account_id,
        standing_id=leaning.standing_id if leaning else None,
        granter_revision=leaning.granter_revision if leaning else None,
    )  # fmt: skip


async def _same(db: Database, actor: Actor, id: UUID, request_hash: bytes) -> UUID:
    """The call that this key stands for, if it is the same one and the same one asks: nobody else's outcome is used."""
    async with db.transaction(actor.org_id) as tx:
        stored_call = await calls_store.get_call(tx, id, actor.sees)
    if stored_call is None or stored_call.asked_hash != request_hash or stored_call.asker != actor.identity:
        raise Conflict(
            "This key stands for another call of the agent.",
            code="call_key_reused",
            hint="Send a new key with a new call; repeat a key only as yourself, with the same tool, arguments and flags.",
        )
    return id


def _facts(actor: Actor, call: NewCall) -> list[Fact]:
    names = {"call": str(call.id), "tool": call.tool}
    facts = [
        Fact.of(
            actor, "call_authorized", **names, digest=call.digest, input_hash=call.input_hash,
            verdict=call.decision.verdict, rule=call.decision.rule, policies=call.policies, key=call.key,
            status=call.status, callback=str(call.callback_id) if call.callback_id else None,
        )
    ]  # fmt: skip
    if call.standing_id is not None:
        facts.append(
            Fact.of(
                actor, "standing_used", standing=str(call.standing_id), **names, digest=call.digest,
                input_hash=call.input_hash,
            )
        )  # fmt: skip
    if call.status is CallStatus.INTENDED:
        facts.append(Fact.of(actor, "call_intended", **names, input_hash=call.input_hash, attempt=1))
    return facts


def _events(call: NewCall) -> list[tuple[str, dict[str, object]]]:
    """The step's number is put in where it is known."""
    names = {"step": 0, "id": str(call.id), "tool": call.tool}
    events: list[tuple[str, dict[str, object]]] = [("tool_call", {**names, "input_hash": call.input_hash})]
    if call.status is CallStatus.REJECTED:
        events.append(("tool_result", {**names, "status": call.status, "error": (call.error or "")[:500]}))
    return events


@verb(Permission.JOB_SUBMIT)
async def begin_call(db: Database, actor: Actor, id: UUID, draft: call_model.IntentDraft) -> call_model.ExternalCall:
    """The agent begins now: what allowed it is consumed. Only where the answer says `run` may it act."""
    return await intents.begin(db, actor, id, draft)
