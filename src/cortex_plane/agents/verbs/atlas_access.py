"""Who may work under which atlases, and which atlases a session is bound to.

A steward may keep guests out (`access.type: authenticated`) and name the keys that may be used (`access.api_keys`: globs over
the names of the org's keys). Both are asked about whoever opens a session, submits a job, posts a message or lets an agent
act that runs elsewhere. Who comes in a browser or over a channel has no key.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from cortex_plane.db.database import Transaction
from cortex_plane.gates.store import atlases
from cortex_plane.kernel.errors import Conflict, Forbidden
from cortex_plane.kernel.fields import MAX_ATLASES
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs.verbs import require_found


async def require(tx: Transaction, actor: Actor, session_id: UUID) -> None:
    """Refuse an actor whom one of the session's atlases keeps out. After whatever binds the session, before the commit.

    Raises ``Forbidden`` (`atlas_access_refused`) with the reason. The deciding facts are the key's name as it is now, and
    whether the person, or the program, is a guest.
    """
    await atlases.require_access(tx, session_id, actor.key_id, actor.user_account_id)


async def require_holding(tx: Transaction, atlas_ids: Sequence[str]) -> None:
    """Refuse atlases of which no version holds."""
    missing = await atlases.without_holder(tx, atlas_ids) if atlas_ids else []
    if missing:
        raise Conflict(
            f"No version of the atlas {missing[0]} holds.",
            code="atlas_missing",
            hint="Publish one with `cortex atlas publish`, or leave the atlas out.",
        )


async def bind(
    tx: Transaction, actor: Actor, session_id: UUID, own: Sequence[str], named: Sequence[str]
) -> None:
    """Bind a session to what its agent has (``own``) and to what its caller names besides.

    Whoever puts an atlas around a session that has none only tightens it. Another one beside those that are there may allow
    what they leave out, so that is for those who write atlases. In the other order it is the same: where an agent names atlases
    later, its next job in a session that a caller put another one around is refused (`job_binds`).
    """
    there = {*own, *await atlases.bound_ids(tx, session_id)} if named else set(own)
    added = [each for each in named if each not in there]
    writes = actor.may(Permission.ATLAS_WRITE)
    if added and there and not writes:
        raise Forbidden(
            f"This session is governed already, and only stewards and admins add an atlas ({added[0]}) to it.",
            code="atlas_addition_refused",
            hint="Leave `atlases` out, or ask a steward to add it to the agent's `atlases`.",
        )
    if len(there | set(added)) > MAX_ATLASES:
        raise Conflict(
            f"A session is bound to at most {MAX_ATLASES} atlases.",
            code="too_many_atlases",
            hint="Merge some of them into one atlas.",
        )
    for each in added:
        require_found(await atlases.get(tx, each), "atlas")
    if own:
        await atlases.bind(tx, session_id, own, by_caller=False)
    if added:
        await atlases.bind(tx, session_id, added, by_caller=not writes)
