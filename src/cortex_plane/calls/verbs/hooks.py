"""Hooks of coding agents: each tool that they use is a call of an external session, whose outside id is their own session's."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from pydantic import ValidationError

from cortex_plane.agents.model.tools import OnUncertain
from cortex_plane.calls import store as calls_store
from cortex_plane.calls.model import (
    CallDraft,
    Dialect,
    ExternalCall,
    IntentDraft,
    Next,
    OutcomeDraft,
    OutcomeStatus,
    advised,
)
from cortex_plane.calls.rules import hooks
from cortex_plane.calls.rules.hooks import HookDecision, HookEvent, HookPhase
from cortex_plane.calls.rules.pipeline import facts_by
from cortex_plane.calls.store import queries
from cortex_plane.calls.verbs import intents
from cortex_plane.calls.verbs.calls import CallDemand, authorize_in
from cortex_plane.calls.verbs.external import doubt_hash_of, read_call
from cortex_plane.calls.verbs.outcomes import record_reported, settle_call
from cortex_plane.db.database import Database
from cortex_plane.gates.verbs.session_lifecycle import open_outside_session
from cortex_plane.jobs.model.effects import CallStatus
from cortex_plane.kernel.canonical import canonical, check_json
from cortex_plane.kernel.errors import Conflict, CortexError, InvalidInput, NotFound
from cortex_plane.kernel.fields import MAX_OBJECT_BYTES
from cortex_plane.sessions.verbs.sessions import find_last_outside_session
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs.frame import require_found, verb


@dataclass(frozen=True, kw_only=True, slots=True)
class HookReply:
    """What the coding agent reads, and the call that waits, if one does."""

    body: dict[str, Any]
    call: ExternalCall | None = None


@verb(Permission.JOB_SUBMIT)
async def answer_hook(
    db: Database, actor: Actor, dialect: Dialect, payload: dict[str, Any],
    *, agent: str | None = None, can_defer: bool = False, plane_url: str | None = None, process: str | None = None,
) -> HookReply:  # fmt: skip
    """The answer to one event of a coding agent. A call that cannot be asked about is denied with the reason, in its own words.
    ``process``: names that of the coding agent, where it is known."""
    agent = agent or dialect.value
    try:
        event = hooks.parse_event(dialect, payload)
        if event.phase is not HookPhase.BEFORE:
            await _report(db, actor, dialect, agent, event, process)
            return HookReply(body={})
        call, decision = await _ask(db, actor, dialect, agent, event, plane_url, process)
    except NotFound as error:
        if error.code == "agent_not_found":
            error = NotFound(
                f"The plane has no agent `{agent}` for this coding agent.",
                code=error.code,
                hint=f"An admin makes it with `cortex agent create {agent} --model none`; or name another one with `?agent=`.",
            )
        return HookReply(body=hooks.refused_answer(dialect, payload, error))
    except CortexError as error:
        return HookReply(body=hooks.refused_answer(dialect, payload, error))
    if decision.waits and can_defer:
        first = await _earlier_waiting(db, actor, call)
        can_defer = first is None
        decision = decision if first is None else hooks.behind(first)
    body = hooks.answer_of(dialect, event, decision, can_defer=can_defer)
    return HookReply(body=body, call=call if decision.waits else None)


async def _ask(
    db: Database, actor: Actor, dialect: Dialect, agent: str, event: HookEvent, plane_url: str | None, process: str | None
) -> tuple[ExternalCall, HookDecision]:  # fmt: skip
    draft = _draft_of(dialect, event, process)
    session_id = await open_outside_session(db, actor, agent, event.session)
    scope = hooks.scope_of(event)
    await _join_waiting(db, actor, session_id, draft, scope)
    call = await authorize_in(db, actor, session_id, draft, demand=CallDemand(scope=scope))
    if call.status is CallStatus.INTENDED and call.next is not Next.RUN:
        call = await _doubt_abandoned(db, actor, call, draft)
    # An edited call does not begin by itself, and only where the coding agent runs what the approver made of it.
    if call.next is Next.BEGIN and hooks.can_run(dialect, event, call):
        intent = IntentDraft(input_hash=call.input_hash, sender=draft.sender, runner=draft.runner)
        call = await intents.begin(db, actor, call.id, intent)
    link = None
    if plane_url is not None and call.approval_id is not None:
        link = f"{plane_url.rstrip('/')}/approvals/{call.approval_id}"
    return call, hooks.decision_of(event, call, link)


async def _doubt_abandoned(db: Database, actor: Actor, call: ExternalCall, draft: CallDraft) -> ExternalCall:
    """Its process is gone: a person is asked now whether it happened, not after the time of a call that runs."""
    async with db.transaction(actor.org_id) as tx:
        if not await tx.value(queries.is_run_elsewhere, call.id, draft.runner):
            return call
    try:
        await record_reported(db, actor, call.id, call.attempt, "its process ended without a report")
    except Conflict as error:
        if error.code not in ("attempt_over", "call_settled", "call_not_begun"):
            raise
    return advised((await read_call(db, actor, call.id)).call, is_sender=False)


def _draft_of(dialect: Dialect, event: HookEvent, process: str | None) -> CallDraft:
    form, sender = hooks.FORMS[dialect], uuid4().hex
    try:
        return CallDraft(
            tool=event.tool, arguments=dict(event.arguments), key=event.key, dispatch=True,
            runner=hooks.runner_of(dialect, event, process, sender),
            parameters=hooks.declare_tool(event), says=hooks.describe(event),
            # Each request is a try of its own: whoever repeats one, or resumes one session twice, does not run the tool twice.
            sender=sender, on_uncertain=OnUncertain(form.on_uncertain), timeout_seconds=hooks.TIMEOUT_SECONDS,
        )  # fmt: skip
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
        field = ".".join(str(part) for part in fault["loc"])
        raise InvalidInput(f"The call cannot be asked about: `{field}` {fault['msg']}", field=field) from None


async def _join_waiting(db: Database, actor: Actor, session_id: UUID, draft: CallDraft, scope: str) -> None:
    """A model that makes a call again, after the same one waited for a person, gives it a new id: it is that call."""
    key, arguments = require_found(draft.key, "call"), canonical(draft.arguments)
    input_hash = hashlib.sha256(arguments)
    request_hash = doubt_hash_of(draft.tool, input_hash.hexdigest(), scope)
    async with db.transaction(actor.org_id) as tx:
        waiting = await tx.row(
            queries.find_waiting_call, session_id, actor.identity, request_hash, draft.tool_digest, input_hash.digest(), key
        )  # fmt: skip
    if waiting is not None:
        fact = facts_by(actor)("call_key_joined", call=str(waiting["call_id"]), tool=draft.tool, key=key)
        await calls_store.join_waiting(db, actor, waiting["job_id"], waiting["call_id"], key, request_hash, fact)


async def _earlier_waiting(db: Database, actor: Actor, call: ExternalCall) -> str | None:
    """The tool of a call of the same session that waits for a person, and did so before this one."""
    async with db.transaction(actor.org_id) as tx:
        first = await tx.row(queries.find_first_waiting, call.job_id)
    return None if first is None or first["id"] == call.id else str(first["tool_name"])


async def _report(
    db: Database, actor: Actor, dialect: Dialect, agent: str, event: HookEvent, process: str | None
) -> None:
    runner = hooks.runner_of(dialect, event, process, "")
    input_hash = hashlib.sha256(canonical(dict(event.arguments)))
    async with db.transaction(actor.org_id) as tx:
        session = require_found(await find_last_outside_session(tx, actor, agent, event.session), "session")
        call = await tx.row(
            queries.find_hook_call, session["id"], actor.identity, event.key, event.tool,
            doubt_hash_of(event.tool, input_hash.hexdigest(), hooks.scope_of(event)), input_hash.digest(), runner,
        )  # fmt: skip
    call = require_found(call, "call")
    if call["attempt"] > 1 and call["runner"] != runner:
        # Of the first attempt there is one result, whoever brings it.
        raise Conflict(
            "Another process began this call again since, and this is not its result.",
            code="attempt_over",
            hint="Whoever began the last attempt reports its outcome.",
        )
    if event.phase is HookPhase.FAILED:
        outcome = OutcomeDraft(status=OutcomeStatus.FAILED, error=event.error, attempt=call["attempt"])
    else:
        outcome = OutcomeDraft(status=OutcomeStatus.COMPLETED, result=_storable(event.result), attempt=call["attempt"])
    await settle_call(db, actor, call["id"], outcome)


def _storable(result: Any) -> Any:
    """A result that cannot be stored does not undo the call."""
    try:
        check_json(result, "tool_response", MAX_OBJECT_BYTES)
    except CortexError as error:
        return {"unstorable": error.message[:500]}
    return result
