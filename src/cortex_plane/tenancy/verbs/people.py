"""The person behind a credential that is no key and no cookie: a token, a signed link, a sender on a channel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from cortex_plane.approvals.store import credentials
from cortex_plane.db.database import Transaction
from cortex_plane.tenancy.model.access import Actor, ActorKind
from cortex_plane.tenancy.model.members import Role
from cortex_plane.tenancy.store import browser_sessions, enrolments, identities, keys, members


async def actor_for_member(tx: Transaction, user_account_id: UUID, credential_id: UUID) -> Actor | None:
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


@dataclass(frozen=True, slots=True)
class EndedAccess:
    """What ended with the access of a member."""

    keys: Sequence[UUID] = ()
    browser_sessions: Sequence[UUID] = ()
    others: Sequence[UUID] = ()
    """Links, codes and tokens."""

    def as_audit(self, *others: UUID) -> dict[str, object]:
        credentials = [*self.browser_sessions, *self.others, *others]
        return {
            "keys_ended": [str(id) for id in self.keys],
            "browser_sessions_ended": len(self.browser_sessions),
            "credentials_ended": [str(id) for id in credentials],
        }


async def end_access(tx: Transaction, member_id: UUID) -> EndedAccess:
    """Ends every credential of a member for good, and what came from it. Whoever calls this holds their access."""
    ended = await keys.revoke_all(tx, member_id)
    return EndedAccess(
        keys=ended,
        browser_sessions=await browser_sessions.end_sessions(tx, member_id),
        others=[
            *await enrolments.end_of_keys(tx, ended),
            *await enrolments.void(tx, member_id),
            *await browser_sessions.end_links(tx, member_id),
            *await identities.void_codes(tx, member_id),
            *await credentials.void_tokens(tx, member_id),
        ],
    )
