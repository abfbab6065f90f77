"""The state of a run elsewhere, kept with its session: another process goes on with nothing but the session's outside id."""

from __future__ import annotations

from uuid import UUID

from cortex_plane.db.database import Database
from cortex_plane.kernel.errors import Conflict, Forbidden
from cortex_plane.sessions import store as sessions_store
from cortex_plane.sessions.model.sessions import SessionKind, SessionState, SessionStateDraft, SessionStatus
from cortex_plane.sessions.store import queries
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs.access import forgery_refusal
from cortex_plane.tenancy.verbs.frame import require_found, verb


@verb(Permission.SESSION_READ)
async def get_session_state(db: Database, actor: Actor, session_id: UUID) -> SessionState:
    """What was saved last; version 0 where nothing was. Refused where somebody changed it in the database."""
    async with forgery_refusal(db, _forged), db.transaction(actor.org_id) as tx:
        require_found(await sessions_store.get_session(tx, session_id, actor.sees), "session")
        return await sessions_store.read_state(tx, session_id)


@verb(Permission.JOB_SUBMIT)
async def save_session_state(db: Database, actor: Actor, session_id: UUID, draft: SessionStateDraft) -> SessionState:
    """Replace the version that the caller read. Only for whoever opened the session."""
    async with db.transaction(actor.org_id) as tx:
        row = await tx.row(queries.lock_external_session, session_id, actor.sees, actor.identity, actor.key_id)
        session = require_found(row, "session")
        if session["kind"] != SessionKind.EXTERNAL:
            raise Conflict(
                "The agent of this session does not run elsewhere: the plane keeps its state itself.",
                code="not_external",
                hint="Open one with `kind: external`.",
            )
        if not session["is_opener"]:
            raise Forbidden(
                "Only whoever opened this session saves the state of its runs.",
                code="not_opener",
                hint="Open a session of your own.",
            )
        if session["status"] == SessionStatus.TERMINATED:
            raise Conflict("This session has ended.", code="session_terminated", hint="Open a new session.")
        saved = await sessions_store.save_state(tx, session_id, draft)
        if saved is None:
            raise Conflict(
                f"Version {draft.replaces} of the state is not the current one: another process went on with this run.",
                code="state_changed",
                hint="Read the state again, and go on from there.",
            )
        return saved


def _forged() -> Conflict:
    return Conflict(
        "The saved state was not written by the plane.",
        code="state_forged",
        hint="Begin a new run, and find out who writes to the database.",
    )
