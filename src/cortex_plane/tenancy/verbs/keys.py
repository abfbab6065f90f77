"""API keys, keys of model providers, and the key that signs every credential."""

from __future__ import annotations

from uuid import UUID

import structlog

from cortex_plane.db.database import Database, Transaction
from cortex_plane.db.pool import PoolPurpose
from cortex_plane.db.vault import Vault
from cortex_plane.kernel.errors import Conflict, Forbidden, InvalidInput, Unauthenticated
from cortex_plane.kernel.ids import IdempotencyKey, new_id
from cortex_plane.kernel.pages import Page, Position
from cortex_plane.policies import store as policies_store
from cortex_plane.proof import store as proof_store
from cortex_plane.proof.model import Fact
from cortex_plane.tenancy.model.access import (
    Actor,
    ActorKind,
    Key,
    KeyDraft,
    KeyKind,
    ModelKey,
    ModelKeyDraft,
    NewKey,
    OwnKeyDraft,
    Permission,
    Provider,
    database_owner,
    is_well_formed,
    key_digest,
    scheduler_actor,
)
from cortex_plane.tenancy.model.orgs import Org
from cortex_plane.tenancy.rules import Forged
from cortex_plane.tenancy.store import credentials as credentials_store
from cortex_plane.tenancy.store import orgs as orgs_store
from cortex_plane.tenancy.verbs.access import new_key_secret, report_forgery
from cortex_plane.tenancy.verbs.frame import every_org, once_only, require_found, verb


async def authenticate_key(db: Database, secret: str, org_slug: str | None = None) -> Actor:
    """The actor behind a key. What is not even shaped like a key is not looked up."""
    try:
        actor = (
            await credentials_store.authenticate_key(db.own(PoolPurpose.AUTHENTICATION), key_digest(secret), org_slug)
            if is_well_formed(secret)
            else None
        )
    except Forged as forgery:
        await report_forgery(db, forgery)
        actor = None
    if actor is None:
        raise Unauthenticated("This key is not known.", code="key_unknown")
    return actor


@verb(Permission.KEY_WRITE)
async def create_key(db: Database, actor: Actor, draft: KeyDraft, once: IdempotencyKey | None = None) -> NewKey:
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
        return await create_own_key(db, actor, own, once)
    secret = new_key_secret()
    async with db.transaction(actor.org_id) as tx:

        async def make() -> UUID:
            id, roles, permissions = new_id(), [*(draft.roles or [])], sorted(set(draft.permissions))
            await credentials_store.insert_key(
                tx, id, draft.name, KeyKind.SERVICE, None, roles, secret, draft.expires_in_days,
                made_with=await _own_key(tx, actor), permissions=permissions,
                made_by=actor.identity,
            )  # fmt: skip
            await proof_store.append_to_org(
                tx,
                Fact.of(
                    actor, "key_created", key_id=str(id), name=draft.name, kind=KeyKind.SERVICE, roles=roles,
                    permissions=permissions, member=None, expires_in_days=draft.expires_in_days,
                ),
            )  # fmt: skip
            return id

        id, is_replay = await once_only(tx, actor, "keys.create", once, make)
        key = require_found(await credentials_store.get_key(tx, id), "key")
    return NewKey(key=key, secret=None if is_replay else secret)


# A person's own -------------------------------------------------------------------------------------------------------


@verb(Permission.KEY_OWN)
async def create_own_key(db: Database, actor: Actor, draft: OwnKeyDraft, once: IdempotencyKey | None = None) -> NewKey:
    """A key for whoever asks. It ends with the key that it was made with."""
    member_id = _key_person(actor)
    secret = new_key_secret()
    async with db.transaction(actor.org_id) as tx:

        async def make() -> UUID:
            id, made_with = new_id(), await hold_origin(tx, actor)
            await credentials_store.insert_key(
                tx, id, draft.name, KeyKind.PERSON, member_id, [], secret, draft.expires_in_days,
                made_with=made_with,
            )  # fmt: skip
            await proof_store.append_to_org(
                tx,
                Fact.of(
                    actor, "key_created", key_id=str(id), name=draft.name, kind=KeyKind.PERSON, roles=[],
                    member=str(member_id), made_with=str(made_with) if made_with else None,
                    expires_in_days=draft.expires_in_days,
                ),
            )  # fmt: skip
            return id

        id, is_replay = await once_only(tx, actor, "keys.create", once, make)
        key = require_found(await credentials_store.get_key(tx, id), "key")
    return NewKey(key=key, secret=None if is_replay else secret)


async def _own_key(tx: Transaction, actor: Actor) -> UUID | None:
    """The key of a member of this org that the actor came with, if it is one: they answer for what they make."""
    origin = await credentials_store.key_origin(tx, actor.key_id) if actor.user_account_id is not None else None
    return origin[0] if origin else None


async def hold_origin(tx: Transaction, actor: Actor) -> UUID | None:
    """The key that the actor came with, or that their browser session came from. Until this transaction ends nobody ends it."""
    await orgs_store.hold_access(tx, _key_person(actor))
    origin = await credentials_store.key_origin(tx, actor.key_id)
    if origin is None or not origin[1]:
        raise Unauthenticated("Your key or session was ended meanwhile.", code="key_revoked")
    return origin[0]


@verb(Permission.KEY_OWN)
async def list_own_keys(db: Database, actor: Actor, position: Position | None, limit: int) -> Page[Key]:
    async with db.transaction(actor.org_id) as tx:
        return await credentials_store.list_keys(tx, position, limit, _key_person(actor))


@verb(Permission.KEY_OWN)
async def revoke_own_key(db: Database, actor: Actor, id: UUID) -> Key:
    """A key of one's own, also the one that is in use."""
    async with db.transaction(actor.org_id) as tx:
        key = require_found(await credentials_store.get_key(tx, id), "key")
        if key.member_id != _key_person(actor):
            require_found(None, "key")
        return await _end_key(tx, actor, key)


def _key_person(actor: Actor) -> UUID:
    if actor.user_account_id is None:
        raise Forbidden("Only a member has keys of their own.", hint="Use the key of a member.")
    return actor.user_account_id


# Everybody's ----------------------------------------------------------------------------------------------------------


@verb(Permission.KEY_READ)
async def get_key(db: Database, actor: Actor, id: UUID) -> Key:
    async with db.transaction(actor.org_id) as tx:
        return require_found(await credentials_store.get_key(tx, id), "key")


@verb(Permission.KEY_READ)
async def list_keys(db: Database, actor: Actor, position: Position | None, limit: int) -> Page[Key]:
    async with db.transaction(actor.org_id) as tx:
        return await credentials_store.list_keys(tx, position, limit)


@verb(Permission.KEY_WRITE)
async def revoke_key(db: Database, actor: Actor, id: UUID) -> Key:
    """At once and for good, with all that came from it. Revoking a revoked key changes nothing."""
    async with db.transaction(actor.org_id) as tx:
        return await _end_key(tx, actor, require_found(await credentials_store.get_key(tx, id), "key"))


async def _end_key(tx: Transaction, actor: Actor, key: Key) -> Key:
    """Ends the key, the keys that were made with it, and the browser sessions and login links that came from any of them."""
    if key.member_id is not None:
        await orgs_store.hold_access(tx, key.member_id)
    ended = await credentials_store.revoke_key(tx, key.id)
    if ended:
        sessions = await credentials_store.end_sessions_of_keys(tx, ended)
        codes = await credentials_store.end_enrolment_codes_of_keys(tx, ended)
        also = [str(id) for id in ended if id != key.id]
        fact = Fact.of(
            actor,
            "key_revoked",
            key_id=str(key.id),
            also=also,
            browser_sessions=sessions,
            credentials_ended=[str(id) for id in codes],
        )
        await proof_store.append_to_org(tx, fact)
    return require_found(await credentials_store.get_key(tx, key.id), "key")


async def key_works(db: Database, secret: str) -> bool:
    try:
        await authenticate_key(db, secret)
    except Unauthenticated:
        return False
    return True


async def issue_key_for_owner(db: Database) -> str | None:
    """A new platform key for the first admin of the first org, for whoever holds the database and lost theirs.

    None when there is no org yet.
    """
    first: Org | None = None
    async for org in every_org(db):
        first = org  # the last one is the oldest: the one that was set up with the plane
    if first is None:
        return None
    secret = new_key_secret()
    async with db.transaction(first.id) as tx:
        admin = require_found(await orgs_store.first_admin(tx), "member")
        id = new_id()
        await credentials_store.insert_key(
            tx, id, "command line", KeyKind.PERSON, admin, [], secret, None, platform=True
        )
        await proof_store.append_to_org(
            tx, Fact.of(database_owner(first.id), "key_created", key_id=str(id), member=str(admin), platform=True)
        )
    return secret


@verb(Permission.KEY_READ)
async def list_model_keys(db: Database, actor: Actor) -> list[ModelKey]:
    async with db.transaction(actor.org_id) as tx:
        return await credentials_store.list_model_keys(tx)


@verb(Permission.KEY_READ)
async def get_model_key(db: Database, actor: Actor, provider: Provider) -> ModelKey:
    async with db.transaction(actor.org_id) as tx:
        return require_found(await credentials_store.get_model_key(tx, provider), "model_key")


@verb(Permission.KEY_WRITE)
async def put_model_key(db: Database, actor: Actor, provider: Provider, draft: ModelKeyDraft) -> ModelKey:
    """Set it, in the place of the one before. Workers use it within seconds."""
    async with db.transaction(actor.org_id) as tx:
        model_key = await credentials_store.put_model_key(tx, db, provider, draft.key, actor.name)
        await proof_store.append_to_org(
            tx, Fact.of(actor, "model_key_set", provider=provider, last_characters=model_key.last_characters)
        )
        return model_key


@verb(Permission.KEY_WRITE)
async def remove_model_key(db: Database, actor: Actor, provider: Provider) -> None:
    """Workers stop using it within seconds."""
    async with db.transaction(actor.org_id) as tx:
        model_key = require_found(await credentials_store.get_model_key(tx, provider), "model_key")
        if await credentials_store.remove_model_key(tx, provider):
            fact = Fact.of(actor, "model_key_removed", provider=provider, last_characters=model_key.last_characters)
            await proof_store.append_to_org(tx, fact)


async def open_model_key(db: Database, org_id: UUID, provider: Provider, vault: Vault) -> str | None:
    """The key itself, for the worker that asks the provider; None where the org has none."""
    async with db.transaction(org_id) as tx:
        return await credentials_store.open_model_key(tx, vault, provider)


log = structlog.get_logger()


async def convert_credentials(db: Database) -> int:
    """Give every row from before the credential key its lookup and MAC, org by org; how many. Only once in the life of a plane:
    what has none afterwards is worth nothing. Several processes may start at the same moment."""
    _ = db.credential_key  # without it nothing can be converted, and nobody can log in
    if await credentials_store.is_converted(db):
        return 0
    count = sum([await _convert_org(db, org.id) async for org in every_org(db)])
    await credentials_store.set_converted(db)
    log.info("credentials converted", rows=count)
    return count


async def _convert_org(db: Database, org_id: UUID) -> int:
    total = 0
    while True:
        try:
            async with db.transaction(org_id) as tx:
                count = await credentials_store.convert_some(tx) + await _convert_policies(tx)
                if not count:
                    return total
                plane = scheduler_actor(org_id, UUID(int=0), "plane")
                await proof_store.append_to_org(tx, Fact.of(plane, "credentials_converted", rows=count))
        except Conflict as error:
            # Another process was faster, with all of them.
            if error.code == "credentials_converted":
                return total
            raise
        total += count


async def _convert_policies(tx: Transaction) -> int:
    versions = await credentials_store.unsigned_policies(tx)
    for version in versions:
        await policies_store.sign_policy_version(tx, version)
    version_in_force = await credentials_store.unsigned_policy_version(tx)
    if version_in_force is not None:
        await policies_store.set_policy_version(tx, version_in_force)
    return len(versions) + (version_in_force is not None)
