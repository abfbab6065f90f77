"""Channel connections, and the codes that link a person's channels."""

from __future__ import annotations

from dataclasses import asdict
from uuid import UUID

from cortex_plane.db.database import Database, Transaction
from cortex_plane.kernel.addresses import Allowed
from cortex_plane.kernel.errors import Conflict, InvalidInput, TooMany
from cortex_plane.kernel.ids import IdempotencyKey, new_id
from cortex_plane.kernel.pages import Page, Position
from cortex_plane.notify import store as notify_store
from cortex_plane.notify.model import GRACE, Secrets
from cortex_plane.proof import store as proof_store
from cortex_plane.proof.model import Fact
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.model.identities import (
    CHANNEL,
    LINK_LIFE,
    MAX_WRONG,
    WRONG_LIFE,
    Claim,
    Connection,
    ConnectionChange,
    ConnectionDraft,
    LinkCode,
    LinkDraft,
    Mapping,
    MappingDraft,
    NewConnection,
    NewSecret,
    Purpose,
    check_address,
    displaced,
    normal_address,
    own,
    read_code,
    sender_digest,
    shown_code,
)
from cortex_plane.tenancy.store import identities as identities_store
from cortex_plane.tenancy.store import orgs as orgs_store
from cortex_plane.tenancy.store.identities import SealedConnection
from cortex_plane.tenancy.verbs.access import forgery_refusal, new_sender_code, new_webhook_secret, sponsors_by
from cortex_plane.tenancy.verbs.frame import once_only, require_found, require_revision, verb
from cortex_plane.tenancy.verbs.invitations import person_of, require_room

NOTHING_LISTED = Allowed()


@verb(Permission.CONNECTION_WRITE)
async def create_connection(
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
            await proof_store.append_to_org(
                tx,
                Fact.of(
                    actor, "connection_created", connection=str(id), channel_type=draft.channel_type,
                    name=draft.name, url=draft.url,
                ),
            )  # fmt: skip
            return id

        id, is_replay = await once_only(tx, actor, "connections.create", once, make)
        connection = require_found(await identities_store.get_connection(tx, id), "connection")
    return NewConnection(**asdict(connection), secret=None if is_replay else secret)


async def _insert(db: Database, tx: Transaction, id: UUID, draft: ConnectionDraft, secret: str | None) -> None:
    config = {} if draft.url is None else {"url": draft.url}
    sealed = await identities_store.seal_secret(tx, db, id, Secrets(secret=secret).kept()) if secret else None
    await identities_store.insert_connection(tx, id, draft.channel_type, draft.name, config, sealed)


@verb(Permission.CONNECTION_READ)
async def get_connection(db: Database, actor: Actor, id: UUID) -> Connection:
    async with db.transaction(actor.org_id) as tx:
        return require_found(await identities_store.get_connection(tx, id), "connection")


@verb(Permission.CONNECTION_READ)
async def list_connections(db: Database, actor: Actor, position: Position | None, limit: int) -> Page[Connection]:
    async with db.transaction(actor.org_id) as tx:
        return await identities_store.list_connections(tx, position, limit)


@verb(Permission.CONNECTION_WRITE)
async def update_connection(
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
                require_found(await identities_store.get_connection(tx, id), "connection").channel_type,
                change.url,
                allowed,
            )
        connection = await identities_store.update_connection(tx, id, change.name, change.enabled, revision, change.url)
        if connection is None:
            require_revision(
                require_found(await identities_store.get_connection(tx, id), "connection").revision, revision
            )
        if change.enabled:
            await notify_store.hasten_delivery(tx, id)
        await proof_store.append_to_org(
            tx,
            Fact.of(
                actor, "connection_changed", connection=str(id), name=change.name, enabled=change.enabled,
                url=change.url,
            ),
        )  # fmt: skip
        return require_found(connection, "connection")


@verb(Permission.CONNECTION_WRITE)
async def rotate_secret(db: Database, actor: Actor, id: UUID) -> NewSecret:
    """A new secret, told this once. The one before it counts for a day: messages are signed with both."""
    secret = new_webhook_secret()
    async with db.transaction(actor.org_id) as tx:
        connection = require_webhook(await identities_store.lock_connection(tx, id))
        secrets = Secrets.of(identities_store.open_secret(db.vault, tx.org, id, connection.sealed))
        new_secrets = secrets.rotated(secret, connection.now)
        sealed = await identities_store.seal_secret(tx, db, id, new_secrets.kept())
        await identities_store.reseal_connection(tx, id, sealed)
        await note_set_up(tx, actor, id)
        await proof_store.append_to_org(tx, Fact.of(actor, "connection_secret_rotated", connection=str(id)))
    return NewSecret(connection_id=id, secret=secret, previous_valid_until=connection.now + GRACE)


@verb(Permission.CONNECTION_WRITE)
async def map_member(db: Database, actor: Actor, id: UUID, draft: MappingDraft) -> Mapping:
    """An admin vouches that this name in the other system is this member's. Only where the system signs what it says and
    belongs to the org; elsewhere people prove it themselves. Doing it twice changes nothing."""
    async with db.transaction(actor.org_id) as tx:
        connection = require_webhook(await identities_store.lock_connection(tx, id))
        member = require_found(await orgs_store.get_member(tx, draft.member_id), "member")
        if member.deactivated_at is not None:
            raise Conflict(
                f"{member.display_name} is deactivated.",
                code="member_deactivated",
                hint="Reactivate them first: `cortex member update --activate`.",
            )
        await identities_store.claim_one(tx, id, draft.external_user)
        claims = await identities_store.claims(tx, id, draft.external_user)
        guest, mine = displaced(claims, member.id), own(claims, member.id)
        mapping_id = mine.id if mine else new_id()
        if mine is None or mine.verified_at is None:
            await _vouch(tx, connection, draft, mapping_id, guest, exists=mine is not None)
            await note_set_up(tx, actor, id)
            await notify_store.add_connection_notice(tx, mapping_id)
            await proof_store.append_to_org(
                tx,
                Fact.of(
                    actor, "mapping_vouched", connection=str(id), mapping=str(mapping_id), member=str(member.id),
                    address=draft.external_user, instead_of=str(guest.id) if guest else None,
                ),
            )  # fmt: skip
        return require_found(await identities_store.get_mapping(tx, mapping_id), "mapping")


async def note_set_up(tx: Transaction, actor: Actor, id: UUID) -> None:
    """Whoever knows the secret could sign as anybody: their vote and one that comes through it count as one human's."""
    for each in await sponsors_by(tx, actor):
        await identities_store.add_set_up(tx, id, each)


async def _vouch(
    tx: Transaction,
    connection: SealedConnection,
    draft: MappingDraft,
    mapping_id: UUID,
    guest: Claim | None,
    *,
    exists: bool,
) -> None:
    if guest is not None:
        await identities_store.remove_mapping(tx, guest.id)
    if exists:
        await identities_store.verify_mapping(tx, mapping_id, connection.id, draft.member_id, draft.external_user)
    else:
        await identities_store.insert_mapping(
            tx, mapping_id, connection.id, draft.member_id, draft.external_user, Purpose.SENDER
        )


def require_webhook(given: SealedConnection | None) -> SealedConnection:
    connection = require_found(given, "connection")
    if connection.channel_type != CHANNEL or connection.sealed is None:
        raise Conflict(
            "This connection is not a webhook.",
            code="not_a_webhook",
            hint="Create one: `cortex connection create NAME --channel webhook --url https://…`.",
        )
    return connection


@verb(Permission.IDENTITY_LINK)
async def issue_link_code(db: Database, actor: Actor) -> LinkCode:
    """A code to type on another channel. An earlier one that nobody typed stops working."""
    member_id = person_of(actor)
    code, id = new_sender_code(), new_id()
    async with db.transaction(actor.org_id) as tx:
        await require_room(tx, member_id)
        await identities_store.forget_codes(tx, member_id)
        await identities_store.void_sender_codes(tx, member_id)
        code_digest = sender_digest(actor.org_id, code)
        expires_at = await identities_store.insert_code(
            tx, id, member_id, None, code_digest, Purpose.SENDER, actor.name, LINK_LIFE
        )
        await proof_store.append_to_org(tx, Fact.of(actor, "link_code_created", code=str(id)))
    return LinkCode(code=shown_code(code), expires_at=expires_at)


@verb(Permission.IDENTITY_LINK)
async def list_own_mappings(db: Database, actor: Actor, position: Position | None, limit: int) -> Page[Mapping]:
    """Where whoever asks can be reached."""
    async with db.transaction(actor.org_id) as tx:
        return await identities_store.list_mappings(tx, person_of(actor), position, limit)


@verb(Permission.IDENTITY_LINK)
async def unlink_own(db: Database, actor: Actor, mapping_id: UUID) -> None:
    """Give up a channel or an address of one's own. Whoever writes from it afterwards is a stranger."""
    async with db.transaction(actor.org_id) as tx:
        mapping = await identities_store.get_mapping(tx, mapping_id)
        await _give_up(tx, actor, mapping, person_of(actor))


@verb(Permission.MEMBER_WRITE)
async def unlink_member(db: Database, actor: Actor, member_id: UUID, mapping_id: UUID) -> None:
    """The same for any member: a lost phone, or an invitation to the wrong address."""
    async with db.transaction(actor.org_id) as tx:
        mapping = await identities_store.get_mapping(tx, mapping_id)
        await _give_up(tx, actor, mapping, member_id)


async def _give_up(tx: Transaction, actor: Actor, mapping: Mapping | None, member_id: UUID) -> None:
    mine = require_found(mapping if mapping and mapping.user_account_id == member_id else None, "mapping")
    await identities_store.claim_one(tx, mine.connection_id, mine.channel_user_id)
    if not await identities_store.remove_mapping(tx, mine.id):
        require_found(None, "mapping")
    await identities_store.use_codes(tx, mine.id)
    await proof_store.append_to_org(
        tx,
        Fact.of(
            actor, "identity_unlinked", member=str(member_id), mapping=str(mine.id),
            channel_type=mine.channel_type, address=mine.channel_user_id,
        ),
    )  # fmt: skip


@verb(Permission.MESSAGE_INGEST)
async def redeem_link_code(db: Database, actor: Actor, connection_id: UUID, draft: LinkDraft) -> Mapping:
    """What a channel's program calls when somebody types a code: that sender is the code's member from now on."""
    async with forgery_refusal(db, _invalid_code), db.transaction(actor.org_id) as tx:
        connection = require_found(await identities_store.get_connection(tx, connection_id), "connection")
        if connection.disabled_at is not None:
            raise Conflict(
                "This connection is disabled.",
                code="connection_disabled",
                hint="Enable it with `cortex connection enable`.",
            )
        sender = _sender(connection.channel_type, draft.external_user_id)
        await identities_store.claim_one(tx, connection_id, sender)
        if await identities_store.wrong_guesses(tx, connection_id, sender) >= MAX_WRONG:
            raise TooMany(
                f"This sender typed {MAX_WRONG} wrong codes in a row.",
                code="too_many_codes",
                hint="They can try again in ten minutes, with a new code: `cortex user link`.",
            )
        mapping = await _link(tx, actor, connection_id, sender, draft.code)
        if mapping is None:
            # Kept, although the answer is an error: it is what is counted.
            await identities_store.guessed_wrong(tx, connection_id, sender, WRONG_LIFE)
    if mapping is None:
        raise _invalid_code()
    return mapping


def _invalid_code() -> InvalidInput:
    return InvalidInput(
        "This code does not work: it was used already, is older than ten minutes, or was never one.",
        code="link_code_invalid",
        hint="Get a new one with `cortex user link`, and type it on this channel.",
    )


def _sender(channel_type: str, sender: str) -> str:
    try:
        return normal_address(sender) if channel_type == "email" else sender
    except ValueError as error:
        raise InvalidInput(f"`external_user_id` {error}.", field="external_user_id") from None


async def _link(tx: Transaction, actor: Actor, connection_id: UUID, sender: str, typed: str) -> Mapping | None:
    """The member's mapping; None where the code is not one."""
    code = read_code(typed)
    code_row = await identities_store.use_sender_code(tx, sender_digest(tx.org, code)) if code else None
    if code_row is None:
        return None
    member_id: UUID = code_row["user_account_id"]
    claims = await identities_store.claims(tx, connection_id, sender)
    guest, mine = displaced(claims, member_id), own(claims, member_id)
    if guest is not None:
        await identities_store.remove_mapping(tx, guest.id)
    mapping_id = mine.id if mine else new_id()
    if mine is None:
        await require_room(tx, member_id)
        await identities_store.insert_mapping(tx, mapping_id, connection_id, member_id, sender, Purpose.SENDER)
    else:
        await identities_store.verify_mapping(tx, mapping_id, connection_id, member_id, sender)
        await identities_store.use_codes(tx, mapping_id)
    await notify_store.add_connection_notice(tx, mapping_id)
    await proof_store.append_to_org(
        tx,
        Fact.of(
            actor, "identity_linked", member=str(member_id), mapping=str(mapping_id), code=str(code_row["id"]),
            connection=str(connection_id), address=sender, instead_of=str(guest.id) if guest else None,
        ),
    )  # fmt: skip
    return require_found(await identities_store.get_mapping(tx, mapping_id), "mapping")
