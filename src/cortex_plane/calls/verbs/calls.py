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
from cortex_plane.calls.rules.pipeline import CallVerdict, PlannedCall, call_fact, facts_by, status_of
from cortex_plane.calls.store import CallContext, queries
from cortex_plane.calls.verbs import deadlines, intents, outcomes
from cortex_plane.calls.verbs.authorization import decide_call, preview_verdict
from cortex_plane.calls.verbs.call_approvals import Asked, ask_people, terms_of
from cortex_plane.calls.verbs.external import (
    call_context,
    doubt_hash_of,
    read_call,
    retry_under_session_lock,
    shown_call,
)
from cortex_plane.db.database import Database, Row, Transaction, after, page
from cortex_plane.jobs.model.effects import CallStatus
from cortex_plane.jobs.model.jobs import TERMINAL
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import Conflict, CortexError, Forbidden, GateClosed, Unavailable
from cortex_plane.kernel.fields import UNDECLARED, adapter
from cortex_plane.kernel.ids import new_id
from cortex_plane.kernel.pages import Page, Position
from cortex_plane.policies.model.policies import PolicyRow, PolicyVerdict
from cortex_plane.policies.model.versions import RequestPolicy
from cortex_plane.tenancy import store as tenancy_store
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs.connections import require_webhook
from cortex_plane.tenancy.verbs.frame import require_found, verb


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
        rows = await tx.rows(queries.list_calls, *after(position), limit + 1, actor.sees, session_id, status)
    if rows and rows[-1]["status"] is None:  # the look ended before the page was full
        *calls, end = rows
        return replace(
            page(call_model.CallShown, calls, limit), next=Position(created_at=end["created_at"], id=end["id"])
        )
    return page(call_model.CallShown, rows, limit)


@dataclass(frozen=True, slots=True)
class CallDemand:
    """What a caller demands for one call besides what its session has: it only tightens."""

    agent_id: UUID | None = None
    """The agent of the session."""
    team_id: UUID | None = None
    """One of the teams of the agent."""
    policy: RequestPolicy | None = None
    scope: str = ""
    """What tells the act apart from others of the same tool and arguments: only a call of the same scope is the same one."""
    only_approval: bool = False
    """A call that needs no approval is refused, and not written."""

    def applied_to(self, context: CallContext) -> CallContext:
        """Raises where the caller means another agent or team."""
        for field, wanted, ids in (
            ("agent_id", self.agent_id, [context.agent_id]),
            ("team_id", self.team_id, context.teams),
        ):
            if wanted is not None and wanted not in ids:
                raise Forbidden(
                    f"`{field}` is not that of this session.",
                    code="not_of_the_caller",
                    hint="Leave it out: the session says it.",
                    field=field,
                )
        if self.policy is None:
            return context
        row = adapter(PolicyRow).dump_python(self.policy.as_row(), mode="json", exclude_none=True)
        return replace(context, request_policies=[*(context.request_policies or ()), row])


NO_DEMAND = CallDemand()


def approval_not_needed(tool: str, rule: str) -> Conflict:
    return Conflict(
        f"`{tool}` needs no approval ({rule}).",
        code="approval_not_needed",
        hint="Ask with GovernanceService.Check, and run the call where it says ALLOW.",
    )


@verb(Permission.JOB_SUBMIT)
async def authorize_call(
    db: Database, actor: Actor, session_id: UUID, draft: call_model.CallDraft, demand: CallDemand = NO_DEMAND
) -> call_model.ExternalCall:
    """Ask before acting. The same key again is answered with the same call; it never makes a second one."""
    return await authorize_in(db, actor, session_id, draft, demand=demand)


@verb(Permission.JOB_SUBMIT)
async def preview_call(
    db: Database, actor: Actor, session_id: UUID, draft: call_model.CallDraft, demand: CallDemand = NO_DEMAND
) -> call_model.CallPreview:
    """What would be decided now. Nothing is recorded, and nobody is asked."""
    request = _requested(draft)
    context = await call_context(db, actor, session_id, None, draft.tool, request.input_hash, acts=True)
    request, context = request.with_risk(context.known_risk), demand.applied_to(context)
    verdict = await preview_verdict(db, actor, context, request)
    decision = verdict.answer.decision
    return call_model.CallPreview(
        verdict=verdict.verdict, rule=decision.rule, reason=status_of(request.name, verdict.answer, verdict.reason)[1],
        arguments=draft.arguments, input_hash=request.input_hash,
    )  # fmt: skip


@verb(Permission.JOB_SUBMIT)
async def authorize_calls(
    db: Database, actor: Actor, session_id: UUID, batch: call_model.CallBatch
) -> call_model.BatchAnswer:
    """Several calls of one response, in their order: each has a commit, a verdict and an answer of its own."""
    answers = []
    for draft in batch.calls:
        try:
            answers.append(call_model.CallAnswer(call=await authorize_in(db, actor, session_id, draft)))
        except Unavailable:
            # The whole batch may be sent again: each call has a key.
            raise
        except CortexError as error:
            if error.code in ("session_not_found", "not_external"):
                raise  # as for any of them
            questions = list(error.questions) if isinstance(error, GateClosed) else []
            refusal = call_model.CallProblem(
                status=error.http_status, code=error.code, detail=error.message, hint=error.hint, questions=questions
            )
            answers.append(call_model.CallAnswer(error=refusal))
    return call_model.BatchAnswer(answers=answers)


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
    db: Database, actor: Actor, session_id: UUID, draft: call_model.CallDraft, under: ResolutionScope | None = None,
    *, callback_id: UUID | None = None, demand: CallDemand = NO_DEMAND,
) -> call_model.ExternalCall:  # fmt: skip
    """``callback_id``: the connection of a vendor that is told of decisions, instead of a webhook."""
    call, earlier = await retry_under_session_lock(
        db, actor, lambda db: _authorize(db, actor, session_id, draft, under, callback_id, demand), session=session_id
    )
    if call is not None:
        return call_model.advised(call, is_sender=True)
    id = require_found(earlier, "call")
    stored_call = await read_call(db, actor, id)
    call = shown_call(stored_call, draft.sender)
    if (
        call.status is CallStatus.UNCERTAIN
        and call.job_status in TERMINAL
        and stored_call.unsettled
        and not call.is_asked
    ):
        # Its agent was to find out, and its session ended.
        await deadlines.ask_human(db, actor, id)
        return shown_call(await read_call(db, actor, id), draft.sender)
    if call.status is CallStatus.CLEARED and call.job_status in TERMINAL and call.session_id != session_id:
        # It did not happen, and nothing begins again in a session that is over.
        await outcomes.end_cleared(db, actor, call)
        return await authorize_in(db, actor, session_id, draft, under, callback_id=callback_id, demand=demand)
    call = await _take_answer(db, actor, call, draft.sender)
    if draft.dispatch and call.next is call_model.Next.BEGIN and not call.edited:
        if under is not None and call.now >= under.expires_at:
            # What has begun goes on, and nothing more begins under it.
            raise expired()
        intent = call_model.IntentDraft(input_hash=call.input_hash, sender=draft.sender, runner=draft.runner)
        return await intents.begin(db, actor, id, intent)
    return call


async def _take_answer(
    db: Database, actor: Actor, call: call_model.ExternalCall, sender: str | None
) -> call_model.ExternalCall:
    """What people answered about a call is for the next who asks, whatever their key; the same request after that is another call. Only
    who asks by a key takes it, so that a look at the call does not use it up; a repeated try (``sender``) gets the same answer again."""
    if call.settled_by is None or call.finished_at is None:
        return call
    async with db.transaction(actor.org_id) as tx:
        is_first = await tx.value(queries.take_answer, call.id, actor.identity, sender) is not None
    return replace(call, newly_answered=is_first)


def _requested(draft: call_model.CallDraft) -> call_model.RequestedCall:
    arguments = canonical(draft.arguments)
    return call_model.RequestedCall(
        id=new_id(), name=draft.tool, digest=draft.tool_digest, arguments=arguments,
        input_hash=hashlib.sha256(arguments).hexdigest(), read_only=draft.read_only, risk=draft.risk or UNDECLARED,
        declares_risk=draft.risk is not None, says=draft.says,
    )  # fmt: skip


async def _authorize(
    db: Database,
    actor: Actor,
    session_id: UUID,
    draft: call_model.CallDraft,
    under: ResolutionScope | None,
    callback_id: UUID | None,
    demand: CallDemand,
) -> tuple[call_model.ExternalCall | None, UUID | None]:
    """The new call, or the id of the one that this key stands for."""
    request = _requested(draft)
    request_hash = hashlib.sha256(f"{request.name}\n{request.digest}\n{request.input_hash}".encode()).digest()
    # What only reads is read again.
    runner = None if draft.read_only else draft.runner
    doubt_hash = doubt_hash_of(request.name, request.input_hash, demand.scope)
    context = await call_context(
        db,
        actor,
        session_id,
        draft.key,
        draft.tool,
        request.input_hash,
        acts=True,
        runner=runner,
        request_hash=doubt_hash,
        digest=request.digest,
    )
    request, context = request.with_risk(context.known_risk), demand.applied_to(context)
    earlier = context.earlier or context.joined or context.doubted
    if under is not None:
        await under.check(db, replace(context, earlier=earlier), request)
    if context.earlier is not None:
        return None, await _same(db, actor, context.earlier, request_hash)
    if context.joined is not None:
        # Its tool may be declared otherwise by now: the key joined the act, which has the same tool and arguments.
        return None, await _same(db, actor, context.joined, None)
    if context.doubted is not None:
        if runner is not None and draft.key is not None:
            act = replace(request, id=context.doubted)
            fact = call_fact(facts_by(actor), "call_doubt_joined", act, key=draft.key)
            await calls_store.join_doubt(db, actor, context.job_id, act, draft.key, runner, doubt_hash, fact)
        return None, context.doubted
    callback_id = callback_id or await _callback(db, actor, draft.callback)
    verdict = await decide_call(db, actor, context, request, covering=True)
    if demand.only_approval and verdict.verdict is PolicyVerdict.ALLOW:
        raise approval_not_needed(request.name, verdict.answer.decision.rule)
    status, error = status_of(request.name, verdict.answer, verdict.reason)
    call = PlannedCall(
        draft=draft, request=request, request_hash=request_hash, authorization=verdict.answer, policies=context.policies,
        status=status or (CallStatus.INTENDED if draft.dispatch else CallStatus.ALLOWED), error=error,
        runner=runner, doubt_hash=doubt_hash, callback_id=callback_id,
    )  # fmt: skip
    more = {"resolution": str(under.id)} if under is not None else {}
    possible = None
    if call.status is CallStatus.AWAITING:
        possible = await terms_of(db, context, verdict)
        if possible.terms is None:
            error = nobody_can(request.name, verdict.answer.decision, possible.excluded)
            call, possible = replace(call, status=CallStatus.REJECTED, error=error), None
    row = await _write_call(db, actor, context, call, verdict, more, possible)
    id = row["id"]
    if row["fresh"] and possible is None:
        return call.shown(session_id, context.job_id, context.agent, row), None
    if row["fresh"]:
        return (await read_call(db, actor, id)).call, None
    if under is not None:
        # Another request had the key first, maybe under another resolution.
        await under.check(db, replace(context, earlier=id), request)
    return None, await _same(db, actor, id, request_hash)


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
    db: Database, actor: Actor, context: CallContext, call: PlannedCall, verdict: CallVerdict, under: dict[str, Any],
    possible: Possible | None,
) -> Row:  # fmt: skip
    """One commit: the call, and the request that it waits for (``possible``: by these terms)."""
    request = call.request

    async def insert(at: Database | Transaction, asked: Asked | None = None) -> Row:
        sends = call.status is CallStatus.INTENDED
        record = verdict.record(actor, request if sends else None, shown=request if asked is not None else None)
        events, facts = [*record.events, *call.events()], [*record.facts, *call.facts(facts_by(actor))]
        if asked is not None:
            events, facts = [*events, *asked[1]], [*facts, *asked[0].facts]
        return await calls_store.authorize_call(
            at, actor.org_id, context.job_id, call.row(), request.arguments,
            call.declaration(actor, asked[0].id if asked is not None else None), call_model.DISPATCH_SECONDS,
            events, facts, verdict.more(record, **under),
        )  # fmt: skip

    if possible is None:
        return await insert(db)
    async with db.transaction(actor.org_id) as tx:
        asked = await ask_people(tx, actor, context, request, verdict, possible)
        row = await insert(tx, asked)
        if not row["fresh"]:
            # Another session of the agent had the key first: what was asked here is rolled back, and that call is the answer.
            raise Conflict("Another request has this key.", code="retry")
    count(actor.org_id, [asked[0]])
    return row


async def _same(db: Database, actor: Actor, id: UUID, request_hash: bytes | None) -> UUID:
    """The call that this key stands for, if it is the same one and the same one asks: nobody else's outcome is used. ``request_hash``:
    None where the request was compared already."""
    async with db.transaction(actor.org_id) as tx:
        stored_call = await calls_store.get_call(tx, id, actor.sees)
    is_same = stored_call is not None and request_hash in (None, stored_call.asked_hash)
    if stored_call is None or not is_same or stored_call.asker != actor.identity:
        raise Conflict(
            "This key stands for another call of the agent.",
            code="call_key_reused",
            hint="Send a new key with a new call; repeat a key only as yourself, with the same tool, arguments and flags.",
        )
    return id


@verb(Permission.JOB_SUBMIT)
async def begin_call(db: Database, actor: Actor, id: UUID, draft: call_model.IntentDraft) -> call_model.ExternalCall:
    """The agent begins now: what allowed it is consumed. Only where the answer says `run` may it act."""
    return await intents.begin(db, actor, id, draft)
