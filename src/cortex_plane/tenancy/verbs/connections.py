"""Channel connections: the bots, workspaces, mailboxes and webhooks of an org, and whose name there is whose."""

from __future__ import annotations

from dataclasses import asdict
from uuid import UUID

from cortex_plane.db.database import Database, Transaction
from cortex_plane.kernel.addresses import Allowed
from cortex_plane.kernel.errors import Conflict
from cortex_plane.kernel.idempotency import IdempotencyKey, new_id
from cortex_plane.kernel.pages import Page, Position
from cortex_plane.notify.model.webhooks import GRACE, Secrets
from cortex_plane.notify.store import notifications
from cortex_plane.proof.model.audit import Fact
from cortex_plane.proof.store import audit
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.model.connections import (
    CHANNEL,
    Connection,
    ConnectionChange,
    ConnectionDraft,
    Mapping,
    MappingDraft,
    NewConnection,
    NewSecret,
    check_address,
)
from cortex_plane.tenancy.model.identities import Claim, Purpose, displaced, own
from cortex_plane.tenancy.store import connections, identities, members
from cortex_plane.tenancy.store.connections import Sealed
from cortex_plane.tenancy.verbs.people import sponsors_by
from cortex_plane.tenancy.verbs.secrets import new_webhook_secret
from cortex_plane.tenancy.verbs.verbs import once_only, require_found, require_revision, verb

NOTHING_LISTED = Allowed()


@verb(Permission.CONNECTION_WRITE)
async def create(
    db: Database,
    actor: Actor,
    draft: ConnectionDraft,
    once: IdempotencyKey | None = None,
    *,
    allowed: Allowed = NOTHING_LISTED,
) -> NewConnection:
    """A webhook gets a secret, which is told this once. ``allowed`` is what the operator lists besides https."""
    check_address(draft.channel_type, draft.url, allowed)
    secret = new_webhook_secret() if draft.channel_type == CHANNEL else None
    async with db.transaction(actor.org_id) as tx:

        async def make() -> UUID:
            id = new_id()
            await _insert(db, tx, id, draft, secret)
            await note_set_up(tx, actor, id)
            await audit.append_to_org(
                tx,
                Fact.of(
                    actor, "connection_created", connection=str(id), channel_type=draft.channel_type,
                    name=draft.name, url=draft.url,
                ),
            )  # fmt: skip
            return id

        id, replayed = await once_only(tx, actor, "connections.create", once, make)
        made = require_found(await connections.get(tx, id), "connection")
    return NewConnection(**asdict(made), secret=None if replayed else secret)


async def _insert(
    db: Database, tx: Transaction, id: UUID, draft: ConnectionDraft, secret: str | None
) -> None:
    config = {} if draft.url is None else {"url": draft.url}
    sealed = connections.seal(db.vault, tx.org, id, Secrets(secret=secret).kept()) if secret else None
    await connections.insert(tx, id, draft.channel_type, draft.name, config, sealed)


@verb(Permission.CONNECTION_READ)
async def get(db: Database, actor: Actor, id: UUID) -> Connection:
    async with db.transaction(actor.org_id) as tx:
        return require_found(await connections.get(tx, id), "connection")


@verb(Permission.CONNECTION_READ)
async def list_page(db: Database, actor: Actor, position: Position | None, limit: int) -> Page[Connection]:
    async with db.transaction(actor.org_id) as tx:
        return await connections.list_page(tx, position, limit)


@verb(Permission.CONNECTION_WRITE)
async def update(
    db: Database,
    actor: Actor,
    id: UUID,
    change: ConnectionChange,
    revision: int | None,
    *,
    allowed: Allowed = NOTHING_LISTED,
) -> Connection:
    """Enabling one that the plane disabled lets it be tried anew."""
    async with db.transaction(actor.org_id) as tx:
        if change.url is not None:
            check_address(
                require_found(await connections.get(tx, id), "connection").channel_type, change.url, allowed
            )
        changed = await connections.update(tx, id, change.name, change.enabled, revision, change.url)
        if changed is None:
            require_revision(require_found(await connections.get(tx, id), "connection").revision, revision)
        if change.enabled:
            await notifications.hasten(tx, id)
        await audit.append_to_org(
            tx,
            Fact.of(
                actor, "connection_changed", connection=str(id), name=change.name, enabled=change.enabled,
                url=change.url,
            ),
        )  # fmt: skip
        return require_found(changed, "connection")


@verb(Permission.CONNECTION_WRITE)
async def rotate_secret(db: Database, actor: Actor, id: UUID) -> NewSecret:
    """A new secret, told this once. The one before it counts for a day: messages are signed with both."""
    secret = new_webhook_secret()
    async with db.transaction(actor.org_id) as tx:
        connection = require_webhook(await connections.lock(tx, id))
        kept = Secrets.of(connections.opened(db.vault, tx.org, id, connection.sealed))
        rotated = kept.rotated(secret, connection.now)
        await connections.reseal(tx, id, connections.seal(db.vault, tx.org, id, rotated.kept()))
        await note_set_up(tx, actor, id)
        await audit.append_to_org(tx, Fact.of(actor, "connection_secret_rotated", connection=str(id)))
    return NewSecret(connection_id=id, secret=secret, previous_valid_until=connection.now + GRACE)


@verb(Permission.CONNECTION_WRITE)
async def map_member(db: Database, actor: Actor, id: UUID, draft: MappingDraft) -> Mapping:
    """An admin vouches that this name in the other system is this member's. Only where the system signs what it says and
    belongs to the org; elsewhere people prove it themselves. Doing it twice changes nothing."""
    async with db.transaction(actor.org_id) as tx:
        connection = require_webhook(await connections.lock(tx, id))
        member = require_found(await members.get(tx, draft.member_id), "member")
        if member.deactivated_at is not None:
            raise Conflict(
                f"{member.display_name} is deactivated.",
                code="member_deactivated",
                hint="Reactivate them first: `cortex member update --activate`.",
            )
        await identities.claim_one(tx, id, draft.external_user)
        claims = await identities.claims(tx, id, draft.external_user)
        guest, mine = displaced(claims, member.id), own(claims, member.id)
        mapping_id = mine.id if mine else new_id()
        if mine is None or mine.verified_at is None:
            await _vouch(tx, connection, draft, mapping_id, guest, known=mine is not None)
            await note_set_up(tx, actor, id)
            await notifications.tell_there(tx, mapping_id)
            await audit.append_to_org(
                tx,
                Fact.of(
                    actor, "mapping_vouched", connection=str(id), mapping=str(mapping_id), member=str(member.id),
                    address=draft.external_user, instead_of=str(guest.id) if guest else None,
                ),
            )  # fmt: skip
        return require_found(await identities.get_mapping(tx, mapping_id), "mapping")


async def note_set_up(tx: Transaction, actor: Actor, id: UUID) -> None:
    """Whoever knows the secret could sign as anybody: their vote and one that comes through it count as one human's."""
    for each in await sponsors_by(tx, actor):
        await connections.add_set_up(tx, id, each)


async def _vouch(
    tx: Transaction,
    connection: Sealed,
    draft: MappingDraft,
    mapping_id: UUID,
    guest: Claim | None,
    *,
    known: bool,
) -> None:
    if guest is not None:
        await identities.remove(tx, guest.id)
    if known:
        await identities.verify(tx, mapping_id, connection.id, draft.member_id, draft.external_user)
    else:
        await identities.insert_mapping(
            tx, mapping_id, connection.id, draft.member_id, draft.external_user, Purpose.SENDER
        )


def require_webhook(given: Sealed | None) -> Sealed:
    connection = require_found(given, "connection")
    if connection.channel_type != CHANNEL or connection.sealed is None:
        raise Conflict(
            "This connection is not a webhook.",
            code="not_a_webhook",
            hint="Create one: `cortex connection create NAME --channel webhook --url https://…`.",
        )
    return connection
