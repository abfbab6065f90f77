"""Calls about something that a vendor holds until the plane says whether it may go on: the plane asks, and the plane acts.

Each has a session of its own, in which nothing else happens. What is done here may be repeated by whoever died halfway.
"""

from __future__ import annotations

import contextlib
from uuid import UUID

from cortex_plane.calls import store as calls_store
from cortex_plane.calls.model import CallDraft, Ending, ExternalCall, IntentDraft, OutcomeDraft, OutcomeStatus
from cortex_plane.calls.verbs import external, intents, outcomes
from cortex_plane.calls.verbs.calls import authorize_in
from cortex_plane.db.database import Database
from cortex_plane.gates.verbs import session_lifecycle
from cortex_plane.jobs.model.effects import CallStatus
from cortex_plane.jobs.model.jobs import TERMINAL
from cortex_plane.kernel.errors import Conflict, CortexError
from cortex_plane.kernel.ids import IdempotencyKey
from cortex_plane.sessions.model.sessions import SessionDraft, SessionKind
from cortex_plane.tenancy.model.access import Actor

_SENDER = "plane"
_MAY_BEGIN = frozenset({CallStatus.ALLOWED, CallStatus.APPROVED, CallStatus.CLEARED, CallStatus.UNCERTAIN})


async def ask(
    db: Database, actor: Actor, agent: str, draft: CallDraft, once: IdempotencyKey, *, connection_id: UUID
) -> ExternalCall:
    """``connection_id``: of the vendor, which is told of decisions. The same again is answered with the same call."""
    title = f"{draft.tool} for a vendor that waits"
    session_draft = SessionDraft(agent=agent, kind=SessionKind.EXTERNAL, title=title)
    session = await session_lifecycle.create(db, actor, session_draft, once)
    return await authorize_in(db, actor, session.id, draft, callback_id=connection_id)


async def read(db: Database, actor: Actor, id: UUID) -> ExternalCall:
    return external.shown_call(await external.read_call(db, actor, id), _SENDER)


async def list_asking(db: Database, actor: Actor, key: str, *, connection_id: UUID) -> list[UUID]:
    """The sessions of the calls of this connection and key that people are still asked about."""
    async with db.transaction(actor.org_id) as tx:
        rows = await tx.rows(calls_store.queries.list_asking_sessions, connection_id, key)
    return [row["session_id"] for row in rows]


async def withdraw(db: Database, actor: Actor, session_id: UUID, reason: str) -> None:
    """The vendor holds it no longer, so nobody is asked any more."""
    with contextlib.suppress(Conflict):  # It was decided, or ended, meanwhile.
        await external.fail(db, actor, session_id, Ending(error=reason))


async def carry_out(db: Database, actor: Actor, call: ExternalCall) -> ExternalCall:
    """Begin what was allowed, which policies and gates look at for the last time, and end it: that the vendor is told is all that it
    does. Raises ``Conflict`` where it cannot begin now."""
    if call.job_status in TERMINAL:
        return call
    if call.status in _MAY_BEGIN:
        call = await intents.begin(db, actor, call.id, IntentDraft(input_hash=call.input_hash, sender=_SENDER))
    if call.status is CallStatus.INTENDED:
        outcome = OutcomeDraft(status=OutcomeStatus.COMPLETED, result={"is_allowed": True})
        await outcomes.settle_call(db, actor, call.id, outcome)
        call = await read(db, actor, call.id)
    return call


async def finish(db: Database, actor: Actor, call: ExternalCall, refusal: str | None) -> None:
    """Its session is over. ``refusal``: why it could not begin."""
    if call.job_status in TERMINAL:
        return
    if refusal is None:
        is_allowed = call.status is CallStatus.COMPLETED
        await external.complete(db, actor, call.session_id, Ending(result={"is_allowed": is_allowed}))
    else:
        # What somebody holds, they also end.
        with contextlib.suppress(CortexError):
            await external.fail(db, actor, call.session_id, Ending(error=refusal))
