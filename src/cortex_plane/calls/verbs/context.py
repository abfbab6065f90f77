"""The context of a call that runs elsewhere: its session and its locks."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar
from uuid import UUID
from weakref import WeakValueDictionary

from cortex_plane.calls import store as calls_store
from cortex_plane.calls.model import CallDraft, ExternalCall, advised
from cortex_plane.calls.store import CallContext, StoredCall, queries
from cortex_plane.db.database import Database, NestedDatabase, NotAtHand, Row, Transaction
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import AlreadyExists, Conflict, CortexError
from cortex_plane.kernel.fields import UNDECLARED
from cortex_plane.sessions import store as sessions_store
from cortex_plane.sessions.model.sessions import Session
from cortex_plane.tenancy.model.access import Actor, ActorKind
from cortex_plane.tenancy.verbs.frame import require_found


def not_external() -> Conflict:
    return Conflict(
        "The agent of this session does not run elsewhere.", code="not_external", hint="Open one with `kind: external`."
    )


T = TypeVar("T")
OVERTAKEN = frozenset({"policy_changed", "grant_refused", "gates_changed", "call_changed"})
"""What was decided by does not hold any more: it is decided again."""
RETRY = "retry"
TRIES = 5
"""Under the locks of the session: what still changes there, such as policies, changes seldom."""
_turns: WeakValueDictionary[UUID, asyncio.Lock] = WeakValueDictionary()
"""Of those who wait for the same session in this process one has a connection meanwhile, so that others have some too."""


async def retry_under_session_lock(
    db: Database, actor: Actor, act: Callable[[Database], Awaitable[T]], *, session: UUID | None = None,
    call: UUID | None = None,
) -> T:  # fmt: skip
    """Without a lock at first. Who was overtaken acts under the locks of the session, where nobody overtakes: of any number of
    requests at once each gets its answer. ``session`` or one of its calls says which."""
    try:
        return await _once(act, db)
    except Conflict as error:
        if error.code != RETRY:
            raise
    if session is None:
        session = (await read_call(db, actor, require_found(call, "call"))).call.session_id
    async with _turns.setdefault(session, asyncio.Lock()):
        for tries in range(TRIES):
            try:
                return await _under_locks(db, actor, session, act)
            except NotAtHand as missing:
                await missing.load(db)
            except Conflict as error:
                if error.code != RETRY or tries == TRIES - 1:
                    raise
    raise Conflict("What governs this session does not stay loaded.", code=RETRY, hint="Send it again.")


async def _once(act: Callable[[Database], Awaitable[T]], db: Database) -> T:
    try:
        return await act(db)
    except AlreadyExists as error:
        # The same key, or the same question, at the same moment: with the next try it is there.
        raise Conflict("Another request asks the same.", code=RETRY) from error
    except Conflict as error:
        if error.code in OVERTAKEN:
            raise Conflict(error.message, code=RETRY, hint="Send it again.") from error
        raise


async def _under_locks(db: Database, actor: Actor, session: UUID, act: Callable[[Database], Awaitable[T]]) -> T:
    async with db.transaction(actor.org_id) as tx:
        await lock_session(tx, actor, session)
        try:
            return await _once(act, NestedDatabase(db, tx))
        except CortexError as error:
            # What it wrote before it was refused stays, as it does without locks.
            refusal = error
    raise refusal


async def lock_session(tx: Transaction, actor: Actor, id: UUID) -> Row:
    """The session's one job. Both are locked, the session before its job as everywhere: what is decided here may end it."""
    require_found(await sessions_store.lock_session(tx, id, call_sight(actor)), "session")
    job = await tx.row(queries.list_session_calls, id)
    if job is None:
        raise not_external()
    await calls_store.lock_asking(tx, job["id"], is_open=False)
    return require_found(await tx.row(queries.list_session_calls, id), "job")


async def read_session(tx: Transaction, id: UUID) -> Session:
    return require_found(await sessions_store.get_session(tx, id, None), "session")


def call_sight(actor: Actor) -> UUID | None:
    """The plane's own scheduler sees every call, and asks for no permission."""
    return None if actor.kind is ActorKind.SCHEDULER else actor.sees


async def read_call(db: Database, actor: Actor, id: UUID) -> StoredCall:
    return require_found(await calls_store.read_call(db, actor.org_id, id, call_sight(actor)), "call")


def shown_call(stored_call: StoredCall, sender: str | None) -> ExternalCall:
    return advised(stored_call.call, is_sender=sender is not None and stored_call.sender == sender)


def tool_digest(draft: CallDraft) -> str:
    """Names what was declared: a standing approval, a grant and an edit are for exactly this."""
    declaration = {
        "name": draft.tool, "parameters": draft.parameters, "read_only": draft.read_only, "risk": draft.risk or UNDECLARED,
        "on_uncertain": draft.on_uncertain, "timeout_seconds": draft.timeout_seconds,
    }  # fmt: skip
    return hashlib.sha256(canonical(declaration)).hexdigest()


async def call_context(
    db: Database, actor: Actor, session_id: UUID, key: str | None, tool: str, input_hash: str,
    *, asked_by: UUID | None = None, acts: bool = False,
) -> CallContext:  # fmt: skip
    """``asked_by``: the identity that asked for the call before, if that was another one. ``acts``: refused where an atlas of the session
    keeps the actor out."""
    acts_as = (actor.key_id, actor.user_account_id) if acts else None
    try:
        sees = call_sight(actor)
        context = await calls_store.call_context(db, actor.org_id, session_id, sees, key, tool, input_hash, acts_as)
    except LookupError as error:
        raise not_external() from error
    return replace(require_found(context, "session"), askers=sorted({actor.identity, asked_by or actor.identity}))
