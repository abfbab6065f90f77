"""Resolutions of spec 5: an agent elsewhere asks what it may do, and executes under the answer."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

from cortex_plane.calls import store as calls_store
from cortex_plane.calls.model import (
    CallDraft,
    ExternalCall,
    OutcomeReceipt,
    ReportDraft,
    Resolution,
    ResolutionRequest,
)
from cortex_plane.calls.rules import (
    block_list,
    by_reference,
    check_action,
    decided,
    in_full,
    split_answers,
    time_window,
)
from cortex_plane.calls.store import CallContext, StoredResolution
from cortex_plane.calls.verbs import calls, outcomes
from cortex_plane.calls.verbs.action_answers import answer_action, answer_every_action, requested_call
from cortex_plane.calls.verbs.context import RequestedCall, retry_under_session_lock
from cortex_plane.calls.verbs.gate_answers import agent_context
from cortex_plane.db.database import Database
from cortex_plane.gates.rules.external import ExternalGates
from cortex_plane.gates.verbs import session_gates
from cortex_plane.gates.verbs.atlas_cache import book as atlas_book
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import Conflict, NotFound
from cortex_plane.kernel.ids import new_id
from cortex_plane.proof import store as proof_store
from cortex_plane.proof.model import Fact
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs.frame import require_found, verb

UNUSED_KEPT = timedelta(days=1)
"""How long one is kept after it expired, where nothing was executed under it."""


USED_KEPT = timedelta(days=30)
"""How long it can be read where something was; which calls those were is kept."""


MAX_LIVE = 1000
"""Resolutions of one session that hold at the same time."""


FORGOTTEN_AT_ONCE = 1000


@verb(Permission.JOB_SUBMIT)
async def resolve(db: Database, actor: Actor, session_id: UUID, request: ResolutionRequest) -> Resolution:
    """What may be done now, and what must be known and answered first. Gates and policies, and the stricter of the two."""
    check_action(request.action)
    return await retry_under_session_lock(
        db, actor, lambda db: _resolve(db, actor, session_id, request), session=session_id
    )


async def _resolve(db: Database, actor: Actor, session_id: UUID, request: ResolutionRequest) -> Resolution:
    wanted = requested_call(request)
    given = await agent_context(db, actor, session_id, wanted.tool, wanted.input_hash)
    wanted = wanted.known(given)
    goal = hashlib.sha256(request.goal.encode()).digest() if request.goal else None
    looked = await session_gates.of_agent(db, given, inputs=await _new_goal(db, given, request.goal, goal))
    if looked is not None and request.request is not None:
        looked.requested(request.request)
    if request.action is not None:
        answers, limits = await answer_action(db, actor, given, looked, wanted)
    else:
        answers, limits = await answer_every_action(db, given, looked, request)
    ends = given.at + timedelta(seconds=request.ttl_seconds)
    allowed, denied = split_answers(answers)
    made = Resolution(
        id=new_id(), session_id=session_id, trace_id=new_id(), decision=decided(answers),
        constraints=[time_window(ends), *limits], expires_at=ends,
        allowed_actions=allowed, denied_actions=denied,
        contexts=block_list(looked.atlases, looked.state) if looked is not None else [],
        questions=looked.questions(looked.waiting) if looked is not None else [],
    )  # fmt: skip
    await _write_resolution(db, actor, given, looked, request, made, goal)
    return made


async def _new_goal(
    db: Database, given: CallContext, goal: str | None, digest: bytes | None
) -> tuple[str, ...]:
    """A goal is heard once in a session: whoever answered what its keywords asked names it again, and goes on."""
    if goal is None or digest is None or given.bound is None:
        return ()
    async with db.transaction(given.org_id) as tx:
        return () if await calls_store.list_messages_heard(tx, given.session_id, digest) else (goal,)


async def _write_resolution(
    db: Database, actor: Actor, given: CallContext, looked: ExternalGates | None, request: ResolutionRequest, made: Resolution,
    goal: bytes | None,
) -> None:  # fmt: skip
    pins: list[dict[str, Any]] = given.bound["atlases"] if given.bound is not None else []
    fact = Fact.of(
        actor, "resolution_given", resolution=str(made.id), trace_id=str(made.trace_id), decision=made.decision,
        tool=request.action, allowed=len(made.allowed_actions), denied=len(made.denied_actions),
        atlases=[pin["digest"] for pin in pins], expires_at=made.expires_at.isoformat(),
    )  # fmt: skip
    asked = {"action": request.action, "input_hash": hashlib.sha256(canonical(request.arguments)).hexdigest()}
    async with db.transaction(actor.org_id) as tx:
        await calls_store.lock_asking(tx, given.job_id, is_open=True)
        if await calls_store.count_live(tx, given.session_id, MAX_LIVE) >= MAX_LIVE:
            raise Conflict(
                f"{MAX_LIVE} resolutions of this session hold already.",
                code="too_many_resolutions",
                hint="Execute under one of them, wait until some expire, or resolve with a shorter `ttl_seconds`.",
            )
        await calls_store.insert_resolution(
            tx, by_reference(made), actor.identity, goal, asked, pins, given.at
        )
        if looked is None:
            await proof_store.append_to_session(tx, given.session_id, [fact], job=given.job_id)
        else:
            looked.trace_id = made.trace_id
            await session_gates.write(tx, actor, given.session_id, given.job_id, looked, [fact])


@verb(Permission.JOB_READ)
async def get_resolution(db: Database, actor: Actor, id: UUID) -> Resolution:
    """As it was given: for whoever asked, and for those who see the whole org."""
    kept = await _kept(db, actor, id, None if actor.sees is None else actor.identity)
    answer = require_found(kept.answer, "resolution")
    return in_full(await atlas_book.at(db, actor.org_id, kept.atlases), answer) if kept.atlases else answer


async def _kept(db: Database, actor: Actor, id: UUID, asker: UUID | None) -> StoredResolution:
    async with db.transaction(actor.org_id) as tx:
        return require_found(await calls_store.get_resolution(tx, id, asker), "resolution")


@verb(Permission.JOB_SUBMIT)
async def execute_resolution(db: Database, actor: Actor, id: UUID, draft: CallDraft) -> ExternalCall:
    """Ask for a call that the resolution covers, and begin it where that is allowed: only then is anything used up."""
    kept = await _kept(db, actor, id, actor.identity)

    async def check(db: Database, given: CallContext, wanted: RequestedCall) -> None:
        if given.earlier is not None:
            await _require_own(db, actor, kept, given.earlier)
        else:
            await _require_covered(db, actor, kept, given, wanted)

    under = calls.ResolutionScope(kept.id, kept.expires_at, check)
    return await calls.authorize_in(db, actor, kept.session_id, replace(draft, dispatch=True), under)


async def _require_own(db: Database, actor: Actor, kept: StoredResolution, call_id: UUID) -> None:
    """A key that was used before goes on with its call under the same resolution, and under no other."""
    async with db.transaction(actor.org_id) as tx:
        under = await calls_store.list_resolved_calls(tx, call_id)
    if under != kept.id:
        raise Conflict(
            "This key stands for a call that was not executed under this resolution.",
            code="call_key_reused",
            hint="Send a new key with a new call, or go on with the call that the key stands for.",
        )


async def _require_covered(
    db: Database, actor: Actor, kept: StoredResolution, given: CallContext, wanted: RequestedCall
) -> None:
    if given.at >= kept.expires_at:
        raise calls.expired()
    now = given.bound["atlases"] if given.bound is not None else []
    if {pin["digest"] for pin in now} != {pin["digest"] for pin in kept.atlases}:
        raise Conflict(
            "The session is bound to other atlases than when this was resolved.",
            code="resolution_outdated",
            hint="Resolve again, and execute under the new one.",
        )
    why = _not_covered(kept, wanted)
    if why is None:
        return
    async with db.transaction(actor.org_id) as tx:
        fact = Fact.of(
            actor, "resolution_refused", resolution=str(kept.id), trace_id=str(kept.trace_id), tool=wanted.tool,
            input_hash=wanted.input_hash, reason=why,
        )  # fmt: skip
        await proof_store.append_to_session(tx, kept.session_id, [fact])
    raise Conflict(
        f"The resolution does not allow `{wanted.tool}`: {why}.",
        code="action_not_resolved",
        hint="Resolve again for this action with its arguments, or go another way.",
    )


def _not_covered(kept: StoredResolution, wanted: RequestedCall) -> str | None:
    if kept.answer is None:
        return "it was forgotten"
    if any(each.action == wanted.tool for each in kept.answer.allowed_actions):
        if kept.request["action"] is not None and kept.request["input_hash"] != wanted.input_hash:
            return "it was asked about with other arguments"
        return None
    denied = [each.reason for each in kept.answer.denied_actions if each.action == wanted.tool]
    return denied[0] or "it was denied" if denied else "it was not asked about"


@verb(Permission.JOB_SUBMIT)
async def report_resolution(db: Database, actor: Actor, id: UUID, draft: ReportDraft) -> OutcomeReceipt:
    """What became of a call that was executed under it. That counts also after it expired: it happened."""
    kept = await _kept(db, actor, id, actor.identity)
    async with db.transaction(actor.org_id) as tx:
        under = await calls_store.list_resolved_calls(tx, draft.call)
    if under != kept.id:
        raise NotFound(
            "There is no such call under this resolution.",
            code="call_not_found",
            hint="Report calls that were executed under it; for others there is `POST /v1/calls/{id}/outcome`.",
        )
    return await outcomes.settle_call(db, actor, draft.call, draft.outcome)


async def forget_resolutions(db: Database) -> None:
    """Those under which nothing was executed; of the others, what they said."""
    while (
        await calls_store.forget_resolutions(db, UNUSED_KEPT, USED_KEPT, FORGOTTEN_AT_ONCE)
        >= FORGOTTEN_AT_ONCE
    ):
        pass
