"""API keys: who is asking, and the keys of an org."""

from __future__ import annotations

from uuid import UUID

from cortex_plane.domain.access import Actor, Permission, database_owner
from cortex_plane.domain.audit import Fact
from cortex_plane.domain.errors import InvalidInput, Unauthenticated
from cortex_plane.domain.idempotency import Once
from cortex_plane.domain.keys import Key, KeyDraft, KeyKind, NewKey, digest, is_well_formed
from cortex_plane.domain.pages import Page, Position
from cortex_plane.operations.orgs import first as first_org
from cortex_plane.operations.secrets import new_key_secret
from cortex_plane.operations.verbs import found, new_id, once_only, verb
from cortex_plane.storage import audit, keys, members
from cortex_plane.storage.database import Database


async def authenticate(db: Database, secret: str, org_slug: str | None = None) -> Actor:
    """The actor behind a key. What is not even shaped like a key is not looked up."""
    actor = await keys.authenticate(db, digest(secret), org_slug) if is_well_formed(secret) else None
    if actor is None:
        raise Unauthenticated("This key is not known.", code="key_unknown")
    return actor


@verb(Permission.KEY_WRITE)
async def create(db: Database, actor: Actor, draft: KeyDraft, once: Once | None = None) -> NewKey:
    if (draft.member_id is None) == (draft.roles is None):
        raise InvalidInput(
            "A key belongs to a member or to a service.",
            hint="Give `member_id` for a person's key, or `roles` for a service key, and not both.",
        )
    secret = new_key_secret()
    async with db.transaction(actor.org_id) as tx:

        async def make() -> UUID:
            id = new_id()
            if draft.member_id is not None:
                found(await members.get(tx, draft.member_id), "member")
            kind = KeyKind.PERSON if draft.member_id else KeyKind.SERVICE
            roles = [*(draft.roles or [])]
            await keys.insert(
                tx, id, draft.name, kind, draft.member_id, roles, secret, draft.expires_in_days,
                made_by=actor.identity,
            )  # fmt: skip
            await audit.append_to_org(
                tx,
                Fact.of(
                    actor, "key_created", key_id=str(id), name=draft.name, kind=kind, roles=roles,
                    member=str(draft.member_id) if draft.member_id else None,
                    expires_in_days=draft.expires_in_days,
                ),
            )  # fmt: skip
            return id

        id, replayed = await once_only(tx, actor, "keys.create", once, make)
        key = found(await keys.get(tx, id), "key")
    return NewKey(key=key, secret=None if replayed else secret)


@verb(Permission.KEY_READ)
async def get(db: Database, actor: Actor, id: UUID) -> Key:
    async with db.transaction(actor.org_id) as tx:
        return found(await keys.get(tx, id), "key")


@verb(Permission.KEY_READ)
async def list_page(db: Database, actor: Actor, position: Position | None, limit: int) -> Page[Key]:
    async with db.transaction(actor.org_id) as tx:
        return await keys.list_page(tx, position, limit)


@verb(Permission.KEY_WRITE)
async def revoke(db: Database, actor: Actor, id: UUID) -> Key:
    """At once and for good. Revoking a revoked key changes nothing."""
    async with db.transaction(actor.org_id) as tx:
        found(await keys.get(tx, id), "key")
        if await keys.revoke(tx, id):
            await audit.append_to_org(tx, Fact.of(actor, "key_revoked", key_id=str(id)))
        return found(await keys.get(tx, id), "key")


async def works(db: Database, secret: str) -> bool:
    try:
        await authenticate(db, secret)
    except Unauthenticated:
        return False
    return True


async def issue_for_owner(db: Database) -> str | None:
    """A new platform key for the first admin of the first org, for whoever holds the database and lost theirs.

    None when there is no org yet.
    """
    first = await first_org(db)
    if first is None:
        return None
    secret = new_key_secret()
    async with db.transaction(first.id) as tx:
        admin = found(await members.first_admin(tx), "member")
        id = new_id()
        await keys.insert(tx, id, "command line", KeyKind.PERSON, admin, [], secret, None, platform=True)
        await audit.append_to_org(
            tx,
            Fact.of(
                database_owner(first.id), "key_created", key_id=str(id), member=str(admin), platform=True
            ),
        )
    return secret
