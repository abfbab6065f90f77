"""API keys: who is asking, and the keys of an org."""

from __future__ import annotations

from uuid import UUID

from cortex_plane.db.database import Database, Transaction
from cortex_plane.db.pool import Purpose
from cortex_plane.kernel.errors import Forbidden, InvalidInput, Unauthenticated
from cortex_plane.kernel.idempotency import IdempotencyKey, new_id
from cortex_plane.kernel.pages import Page, Position
from cortex_plane.proof.model.audit import Fact
from cortex_plane.proof.store import audit
from cortex_plane.tenancy.model.access import Actor, ActorKind, Permission, database_owner
from cortex_plane.tenancy.model.keys import (
    Key,
    KeyDraft,
    KeyKind,
    NewKey,
    OwnKeyDraft,
    digest,
    is_well_formed,
)
from cortex_plane.tenancy.rules.credential_keys import Forged
from cortex_plane.tenancy.store import browser_sessions, enrolments, keys, members
from cortex_plane.tenancy.verbs.forgeries import report
from cortex_plane.tenancy.verbs.orgs import first as first_org
from cortex_plane.tenancy.verbs.secrets import new_key_secret
from cortex_plane.tenancy.verbs.verbs import once_only, require_found, verb


async def authenticate(db: Database, secret: str, org_slug: str | None = None) -> Actor:
    """The actor behind a key. What is not even shaped like a key is not looked up."""
    try:
        actor = (
            await keys.authenticate(db.own(Purpose.AUTHENTICATION), digest(secret), org_slug)
            if is_well_formed(secret)
            else None
        )
    except Forged as forged:
        await report(db, forged)
        actor = None
    if actor is None:
        raise Unauthenticated("This key is not known.", code="key_unknown")
    return actor


@verb(Permission.KEY_WRITE)
async def create(db: Database, actor: Actor, draft: KeyDraft, once: IdempotencyKey | None = None) -> NewKey:
    """A key for a service, or for oneself. Nobody makes a key for another person: whoever holds it would be them."""
    if (draft.member_id is None) == (draft.roles is None):
        raise InvalidInput(
            "A key belongs to a member or to a service.",
            hint="Give `member_id` for a key of your own, or `roles` for a service key, and not both.",
        )
    if draft.permissions and (draft.roles is None or actor.kind is ActorKind.SERVICE):
        raise Forbidden(
            "Permissions are granted to a service, by an admin.",
            code="grants_nothing",
            hint="A person has the permissions of their roles, and a program passes none on.",
        )
    if draft.member_id is not None:
        if draft.member_id != actor.user_account_id:
            raise Forbidden(
                "Only they themselves can make a key for a person.",
                code="not_your_key",
                hint="Let them make it: `cortex key create NAME`, logged in as themselves.",
            )
        own = OwnKeyDraft(name=draft.name, expires_in_days=draft.expires_in_days)
        return await create_own(db, actor, own, once)
    secret = new_key_secret()
    async with db.transaction(actor.org_id) as tx:

        async def make() -> UUID:
            id, roles, granted = new_id(), [*(draft.roles or [])], sorted(set(draft.permissions))
            await keys.insert(
                tx, id, draft.name, KeyKind.SERVICE, None, roles, secret, draft.expires_in_days,
                made_with=await _own_key(tx, actor), permissions=granted,
                made_by=actor.identity,
            )  # fmt: skip
            await audit.append_to_org(
                tx,
                Fact.of(
                    actor, "key_created", key_id=str(id), name=draft.name, kind=KeyKind.SERVICE, roles=roles,
                    permissions=granted, member=None, expires_in_days=draft.expires_in_days,
                ),
            )  # fmt: skip
            return id

        id, replayed = await once_only(tx, actor, "keys.create", once, make)
        key = require_found(await keys.get(tx, id), "key")
    return NewKey(key=key, secret=None if replayed else secret)


# A person's own -------------------------------------------------------------------------------------------------------


@verb(Permission.KEY_OWN)
async def create_own(
    db: Database, actor: Actor, draft: OwnKeyDraft, once: IdempotencyKey | None = None
) -> NewKey:
    """A key for whoever asks. It ends with the key that it was made with."""
    member_id = _person(actor)
    secret = new_key_secret()
    async with db.transaction(actor.org_id) as tx:

        async def make() -> UUID:
            id, made_with = new_id(), await hold_origin(tx, actor)
            await keys.insert(
                tx, id, draft.name, KeyKind.PERSON, member_id, [], secret, draft.expires_in_days,
                made_with=made_with,
            )  # fmt: skip
            await audit.append_to_org(
                tx,
                Fact.of(
                    actor, "key_created", key_id=str(id), name=draft.name, kind=KeyKind.PERSON, roles=[],
                    member=str(member_id), made_with=str(made_with) if made_with else None,
                    expires_in_days=draft.expires_in_days,
                ),
            )  # fmt: skip
            return id

        id, replayed = await once_only(tx, actor, "keys.create", once, make)
        key = require_found(await keys.get(tx, id), "key")
    return NewKey(key=key, secret=None if replayed else secret)


async def _own_key(tx: Transaction, actor: Actor) -> UUID | None:
    """The key of a member of this org that the actor came with, if it is one: they answer for what they make."""
    origin = await keys.origin(tx, actor.key_id) if actor.user_account_id is not None else None
    return origin[0] if origin else None


async def hold_origin(tx: Transaction, actor: Actor) -> UUID | None:
    """The key that the actor came with, or that their browser session came from. Until this transaction ends nobody ends it."""
    await members.hold_access(tx, _person(actor))
    origin = await keys.origin(tx, actor.key_id)
    if origin is None or not origin[1]:
        raise Unauthenticated("Your key or session was ended meanwhile.", code="key_revoked")
    return origin[0]


@verb(Permission.KEY_OWN)
async def list_own(db: Database, actor: Actor, position: Position | None, limit: int) -> Page[Key]:
    async with db.transaction(actor.org_id) as tx:
        return await keys.list_page(tx, position, limit, _person(actor))


@verb(Permission.KEY_OWN)
async def revoke_own(db: Database, actor: Actor, id: UUID) -> Key:
    """A key of one's own, also the one that is in use."""
    async with db.transaction(actor.org_id) as tx:
        key = require_found(await keys.get(tx, id), "key")
        if key.member_id != _person(actor):
            require_found(None, "key")
        return await _end(tx, actor, key)


def _person(actor: Actor) -> UUID:
    if actor.user_account_id is None:
        raise Forbidden("Only a member has keys of their own.", hint="Use the key of a member.")
    return actor.user_account_id


# Everybody's ----------------------------------------------------------------------------------------------------------


@verb(Permission.KEY_READ)
async def get(db: Database, actor: Actor, id: UUID) -> Key:
    async with db.transaction(actor.org_id) as tx:
        return require_found(await keys.get(tx, id), "key")


@verb(Permission.KEY_READ)
async def list_page(db: Database, actor: Actor, position: Position | None, limit: int) -> Page[Key]:
    async with db.transaction(actor.org_id) as tx:
        return await keys.list_page(tx, position, limit)


@verb(Permission.KEY_WRITE)
async def revoke(db: Database, actor: Actor, id: UUID) -> Key:
    """At once and for good, with all that came from it. Revoking a revoked key changes nothing."""
    async with db.transaction(actor.org_id) as tx:
        return await _end(tx, actor, require_found(await keys.get(tx, id), "key"))


async def _end(tx: Transaction, actor: Actor, key: Key) -> Key:
    """Ends the key, the keys that were made with it, and the browser sessions and login links that came from any of them."""
    if key.member_id is not None:
        await members.hold_access(tx, key.member_id)
    ended = await keys.revoke(tx, key.id)
    if ended:
        sessions = await browser_sessions.end_of_keys(tx, ended)
        codes = await enrolments.end_of_keys(tx, ended)
        also = [str(id) for id in ended if id != key.id]
        fact = Fact.of(
            actor,
            "key_revoked",
            key_id=str(key.id),
            also=also,
            browser_sessions=sessions,
            credentials_ended=[str(id) for id in codes],
        )
        await audit.append_to_org(tx, fact)
    return require_found(await keys.get(tx, key.id), "key")


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
        admin = require_found(await members.first_admin(tx), "member")
        id = new_id()
        await keys.insert(tx, id, "command line", KeyKind.PERSON, admin, [], secret, None, platform=True)
        await audit.append_to_org(
            tx,
            Fact.of(
                database_owner(first.id), "key_created", key_id=str(id), member=str(admin), platform=True
            ),
        )
    return secret
