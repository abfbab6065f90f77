"""API keys, keys of model providers, and the key that signs every credential."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import structlog

from cortex_plane.db.database import NOBODY, Database, Transaction, ids
from cortex_plane.db.vault import Vault
from cortex_plane.kernel.errors import Conflict, Forbidden, InvalidInput, Unauthenticated
from cortex_plane.kernel.ids import IdempotencyKey, new_id
from cortex_plane.kernel.pages import After, Page
from cortex_plane.policies import store as policies_store
from cortex_plane.tenancy import store as tenancy_store
from cortex_plane.tenancy.model import access as access_model
from cortex_plane.tenancy.model.access import Actor, Key, KeyDraft, KeyKind, NewKey, OwnKeyDraft, Permission
from cortex_plane.tenancy.model.orgs import Org
from cortex_plane.tenancy.store import queries
from cortex_plane.tenancy.verbs import frame
from cortex_plane.tenancy.verbs.access import new_secret, require_member
from cortex_plane.tenancy.verbs.frame import record, require_found

ONLY_MEMBERS = "Only a member has keys of their own."


@frame.transaction_verb(Permission.KEY_WRITE)
async def create_key(tx: Transaction, actor: Actor, draft: KeyDraft, once: IdempotencyKey | None = None) -> NewKey:
    """A key for a service, for a worker, or for oneself. Nobody makes a key for another person: its holder would be that person."""
    if [draft.member_id, draft.roles, draft.apps].count(None) != 2:
        raise InvalidInput(
            "A key belongs to a member, to a service or to a worker.",
            hint="Give one of `member_id` for a key of your own, `roles` for a service key, and `apps` for a worker key.",
        )
    if draft.permissions and (draft.roles is None or actor.kind is access_model.ActorKind.SERVICE):
        raise Forbidden(
            "Permissions are granted to a service, by an admin.",
            code="grants_nothing",
            hint="A person has the permissions of their roles, and a program passes none on.",
        )
    if draft.member_id is None:
        return await _create_key(tx, actor, draft, once)
    if draft.member_id != actor.user_account_id:
        raise Forbidden(
            "Only they themselves can make a key for a person.",
            code="not_your_key",
            hint="Let them make it: `cortex key create NAME`, logged in as themselves.",
        )
    actor.require(Permission.KEY_OWN)
    return await _create_key(tx, actor, OwnKeyDraft(name=draft.name, expires_in_days=draft.expires_in_days), once)


@frame.transaction_verb(Permission.KEY_OWN)
async def create_own_key(
    tx: Transaction, actor: Actor, draft: OwnKeyDraft, once: IdempotencyKey | None = None
) -> NewKey:
    """A key for the caller. It ends with the key that it was made with."""
    return await _create_key(tx, actor, draft, once)


async def _create_key(
    tx: Transaction, actor: Actor, draft: KeyDraft | OwnKeyDraft, once: IdempotencyKey | None
) -> NewKey:
    """A ``KeyDraft`` is for a service or a worker, an ``OwnKeyDraft`` for the actor. A worker key that a platform key makes may replace
    tools that other workers publish."""
    secret = new_secret(access_model.SecretKind.KEY)
    is_platform = False
    if isinstance(draft, KeyDraft) and draft.apps is not None:
        kind, member_id, maker = KeyKind.WORKER, None, actor.identity
        roles, permissions = [], access_model.app_permissions(draft.apps)
        is_platform = actor.platform
    elif isinstance(draft, KeyDraft):
        kind, member_id, maker = KeyKind.SERVICE, None, actor.identity
        roles, permissions = draft.roles or [], sorted(set(draft.permissions))
    else:
        kind, member_id, maker = KeyKind.PERSON, require_member(actor, ONLY_MEMBERS), None
        roles, permissions = [], []

    async def make() -> UUID:
        id = new_id()
        made_with = await hold_origin(tx, actor) if member_id else await _own_key(tx, actor)
        await tenancy_store.insert_key(
            tx, id, draft.name, kind, member_id, roles, secret, draft.expires_in_days,
            made_with=made_with, permissions=permissions, made_by=maker, platform=is_platform,
        )  # fmt: skip
        more = {"made_with": made_with} if member_id else {"permissions": permissions}
        await record(
            tx, actor, "key_created", key_id=id, name=draft.name, kind=kind, roles=roles, member=member_id,
            expires_in_days=draft.expires_in_days, **more,
        )  # fmt: skip
        return id

    id, is_replay = await frame.once_only(tx, actor, "keys.create", once, make)
    return NewKey(key=require_found(await tenancy_store.get_key(tx, id), "key"), secret=None if is_replay else secret)


async def _own_key(tx: Transaction, actor: Actor) -> UUID | None:
    """The key of a member of this org that the actor came with, if it is one: they answer for what they make."""
    origin = await tenancy_store.key_origin(tx, actor.key_id) if actor.user_account_id is not None else None
    return origin[0] if origin else None


async def hold_origin(tx: Transaction, actor: Actor) -> UUID | None:
    """The key that the actor came with, or that their browser session came from. Until this transaction ends nobody ends it."""
    await tx.rows(queries.hold_access, require_member(actor, ONLY_MEMBERS))
    origin = await tenancy_store.key_origin(tx, actor.key_id)
    if origin is None or not origin[1]:
        raise Unauthenticated("Your key or session was ended meanwhile.", code="key_revoked")
    return origin[0]


@frame.transaction_verb(Permission.KEY_OWN)
async def list_own_keys(tx: Transaction, actor: Actor, position: After, limit: int) -> Page[Key]:
    return await tenancy_store.list_keys(tx, position, limit, require_member(actor, ONLY_MEMBERS))


@frame.transaction_verb(Permission.KEY_OWN)
async def revoke_own_key(tx: Transaction, actor: Actor, id: UUID) -> Key:
    """A key of one's own, also the one that is in use."""
    key = require_found(await tenancy_store.get_key(tx, id), "key")
    if key.member_id != require_member(actor, ONLY_MEMBERS):
        require_found(None, "key")
    return await _end_key(tx, actor, key)


get_key = frame.get_verb(Permission.KEY_READ, tenancy_store.get_key, "key")
list_keys = frame.read_verb(Permission.KEY_READ, tenancy_store.list_keys)


@frame.transaction_verb(Permission.KEY_WRITE)
async def revoke_key(tx: Transaction, actor: Actor, id: UUID) -> Key:
    """At once and for good, with all that came from it. Revoking a revoked key changes nothing."""
    return await _end_key(tx, actor, require_found(await tenancy_store.get_key(tx, id), "key"))


async def _end_key(tx: Transaction, actor: Actor, key: Key) -> Key:
    """Ends the key, the keys that were made with it, and the browser sessions, login links and enrolment codes from any of them."""
    if key.member_id is not None:
        await tx.rows(queries.hold_access, key.member_id)
    key_ids = ids(await tx.rows(queries.revoke_key, key.id))
    if key_ids:
        await tx.rows(queries.end_links_of_keys, key_ids)
        sessions = await tx.rows(queries.end_sessions_of_keys, key_ids)
        codes = await tx.rows(queries.end_enrolment_codes_of_keys, key_ids)
        await record(
            tx, actor, "key_revoked", key_id=key.id, also=[id for id in key_ids if id != key.id],
            browser_sessions=len(sessions), credentials_ended=ids(codes),
        )  # fmt: skip
    return require_found(await tenancy_store.get_key(tx, key.id), "key")


async def issue_key_for_owner(db: Database) -> str | None:
    """A new platform key for the first admin of the first org, for an owner of the database who lost theirs. None when
    there is no org yet."""
    first: Org | None = None
    async for org in frame.every_org(db):
        first = org  # the last one is the oldest: the one that was set up with the plane
    if first is None:
        return None
    secret, id = new_secret(access_model.SecretKind.KEY), new_id()
    async with db.transaction(first.id) as tx:
        admin: UUID = require_found(await tx.value(queries.first_admin), "member")
        await tenancy_store.insert_key(tx, id, "command line", KeyKind.PERSON, admin, [], secret, None, platform=True)
        await record(tx, access_model.database_owner(first.id), "key_created", key_id=id, member=admin, platform=True)
    return secret


list_model_keys = frame.read_verb(Permission.KEY_READ, tenancy_store.list_model_keys)
get_model_key = frame.get_verb(Permission.KEY_READ, tenancy_store.get_model_key, "model_key")


@frame.verb(Permission.KEY_WRITE)
async def put_model_key(
    db: Database, actor: Actor, provider: access_model.Provider, draft: access_model.ModelKeyDraft
) -> access_model.ModelKey:
    """Set it, in the place of the one before. Workers use it within seconds."""
    async with db.transaction(actor.org_id) as tx:
        model_key = await tenancy_store.put_model_key(tx, db, provider, draft.key, actor.name)
        await record(tx, actor, "model_key_set", provider=provider, last_characters=model_key.last_characters)
        return model_key


@frame.transaction_verb(Permission.KEY_WRITE)
async def remove_model_key(tx: Transaction, actor: Actor, provider: access_model.Provider) -> None:
    """Workers stop using it within seconds."""
    model_key = require_found(await tenancy_store.get_model_key(tx, provider), "model_key")
    if await tx.value(queries.remove_model_key, provider) is not None:
        await record(tx, actor, "model_key_removed", provider=provider, last_characters=model_key.last_characters)


async def open_model_key(db: Database, org_id: UUID, provider: access_model.Provider, vault: Vault) -> str | None:
    """The key itself, for the worker that asks the provider; None where the org has none."""
    async with db.transaction(org_id) as tx:
        return await tenancy_store.open_model_key(tx, vault, provider)


BUDGET_LIFETIME = timedelta(days=1)
"""How long a budget that nobody uses keeps its row: it was full again after seconds."""
BUDGETS_AT_ONCE = 10_000


async def forget_request_budgets(db: Database) -> None:
    """Delete the rows of budgets that have long been full again: a budget without a row is full."""
    count = BUDGETS_AT_ONCE
    while count >= BUDGETS_AT_ONCE:
        (row,) = await db.call("forget_request_budgets", None, BUDGET_LIFETIME, BUDGETS_AT_ONCE)
        count = row["forget_request_budgets"]


log = structlog.get_logger()


async def convert_credentials(db: Database) -> int:
    """Give every row from before the credential key its lookup and MAC, org by org; how many. Only once in the life of a plane:
    what has none afterwards is worth nothing. Several processes may start at the same moment."""
    _ = db.credential_key  # without it nothing can be converted, and nobody can log in
    async with db.transaction(NOBODY) as tx:
        if await tx.value(queries.is_converted):
            return 0
    count = sum([await _convert_org(db, org.id) async for org in frame.every_org(db)])
    async with db.transaction(NOBODY) as tx:
        await tx.rows(queries.set_converted)  # nothing takes this back
    log.info("credentials converted", rows=count)
    return count


async def _convert_org(db: Database, org_id: UUID) -> int:
    total = 0
    while True:
        try:
            async with db.transaction(org_id) as tx:
                count = await tenancy_store.convert_some(tx) + await _convert_policies(tx)
                if not count:
                    return total
                plane = access_model.scheduler_actor(org_id, UUID(int=0), "plane")
                await record(tx, plane, "credentials_converted", rows=count)
        except Conflict as error:
            # Another process was faster, with all of them.
            if error.code == "credentials_converted":
                return total
            raise
        total += count


async def _convert_policies(tx: Transaction) -> int:
    rows = await tx.rows(queries.unsigned_policies)
    for row in rows:
        await policies_store.sign_policy_version(tx, row["version"])
    version_in_force = await tx.value(queries.unsigned_policy_version, tx.org)
    if version_in_force is not None:
        await policies_store.set_policy_version(tx, version_in_force)
    return len(rows) + (version_in_force is not None)
