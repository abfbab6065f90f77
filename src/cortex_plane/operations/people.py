"""The person behind a credential that is no key and no cookie: a token, a signed link, a sender on a channel."""

from __future__ import annotations

from uuid import UUID

from cortex_plane.domain.access import Actor, ActorKind
from cortex_plane.domain.members import Role
from cortex_plane.storage import keys, members
from cortex_plane.storage.database import Transaction


async def acting(tx: Transaction, user_account_id: UUID, credential_id: UUID) -> Actor | None:
    """Them, with the roles and the clearance of this moment; None where there is nobody, or they are deactivated."""
    member = await members.get(tx, user_account_id)
    if member is None or member.deactivated_at is not None:
        return None
    return Actor(
        org_id=tx.org,
        key_id=credential_id,
        kind=ActorKind.PERSON,
        name=member.display_name,
        roles=frozenset(Role(role) for role in member.roles),
        user_account_id=member.id,
        clearance=member.clearance,
    )


async def sponsors_by(tx: Transaction, actor: Actor) -> list[UUID]:
    """Who answers for what the actor does to people and their channels: they themselves, and for a program whoever made its key."""
    if actor.kind is not ActorKind.SERVICE:
        return [actor.identity]
    maker = await keys.maker(tx, actor.key_id)
    return [actor.identity, *([maker] if maker else [])]
