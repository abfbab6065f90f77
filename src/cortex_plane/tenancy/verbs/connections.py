"""Channel connections, and the codes that link a person's channels."""

from __future__ import annotations

import secrets
from dataclasses import asdict
from uuid import UUID

from cortex_plane.db.database import Database, Transaction, one
from cortex_plane.kernel.addresses import Allowed
from cortex_plane.kernel.errors import Conflict, InvalidInput, TooMany
from cortex_plane.kernel.ids import IdempotencyKey, new_id
from cortex_plane.kernel.pages import After, Page
from cortex_plane.notify import store as notify_store
from cortex_plane.notify.model import GRACE, SECRET_BYTES, Secrets, secret_of
from cortex_plane.tenancy import store as tenancy_store
from cortex_plane.tenancy.model import identities
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.model.identities import Mapping
from cortex_plane.tenancy.store import SealedConnection, queries
from cortex_plane.tenancy.verbs import access, frame
from cortex_plane.tenancy.verbs.invitations import ONLY_MEMBERS, prove_mapping, require_room

NOTHING_LISTED = Allowed()


def new_webhook_secret() -> str:
    return secret_of(secrets.token_bytes(SECRET_BYTES))


@frame.verb(Permission.CONNECTION_WRITE)
async def create_connection(
    db: Database,
    actor: Actor,
    draft: identities.ConnectionDraft,
    once: IdempotencyKey | None = None,
    *,
    allowed: Allowed = NOTHING_LISTED,
) -> identities.NewConnection:
    """A webhook gets a secret, which is shown this once. ``allowed`` is what the operator lists besides https."""
    identities.check_address(draft.channel_type, draft.url, allowed)
    secret = new_webhook_secret() if draft.channel_type == identities.CHANNEL else None
    async with db.transaction(actor.org_id) as tx:

        async def make() -> UUID:
            id = new_id()
            sealed = await tenancy_store.seal_secret(tx, db, id, Secrets(secret=secret).kept()) if secret else None
            await tenancy_store.insert_connection(tx, id, draft.channel_type, draft.name, draft.url, sealed)
            await note_set_up(tx, actor, id)
            details = {"channel_type": draft.channel_type, "name": draft.name, "url": draft.url}
            await frame.record(tx, actor, "connection_created", connection=id, **details)
            return id

        id, is_replay = await frame.once_only(tx, actor, "connections.create", once, make)
        connection = frame.require_found(await tenancy_store.get_connection(tx, id), "connection")
    return identities.NewConnection(**asdict(connection), secret=None if is_replay else secret)


get_connection = frame.get_verb(Permission.CONNECTION_READ, tenancy_store.get_connection, "connection")
list_connections = frame.read_verb(Permission.CONNECTION_READ, tenancy_store.list_connections)


@frame.transaction_verb(Permission.CONNECTION_WRITE)
async def update_connection(
    tx: Transaction,
    actor: Actor,
    id: UUID,
    change: identities.ConnectionChange,
    revision: int | None,
    *,
    allowed: Allowed = NOTHING_LISTED,
) -> identities.Connection:
    """Enabling one that the plane disabled lets it be tried anew."""
    before = frame.require_found(await tenancy_store.get_connection(tx, id), "connection")
    if change.url is not None:
        identities.check_address(before.channel_type, change.url, allowed)
    row = await tx.row(queries.update_connection, id, change.name, change.enabled, revision, change.url)
    if row is None:
        frame.require_revision(
            frame.require_found(await tenancy_store.get_connection(tx, id), "connection").revision, revision
        )
    if change.enabled:
        await tx.rows(notify_store.queries.hasten_delivery, tx.org, id)
    await frame.record(
        tx, actor, "connection_changed", connection=id, name=change.name, enabled=change.enabled, url=change.url
    )
    return frame.require_found(one(identities.Connection, row), "connection")


@frame.verb(Permission.CONNECTION_WRITE)
async def rotate_secret(db: Database, actor: Actor, id: UUID) -> identities.NewSecret:
    """A new secret, shown this once. The one before it counts for a day: messages are signed with both."""
    secret = new_webhook_secret()
    async with db.transaction(actor.org_id) as tx:
        connection = require_webhook(await tenancy_store.lock_connection(tx, id))
        before = Secrets.of(tenancy_store.open_secret(db.vault, tx.org, id, connection.sealed))
        sealed = await tenancy_store.seal_secret(tx, db, id, before.rotated(secret, connection.now).kept())
        await tx.rows(queries.reseal_connection, id, sealed)
        await note_set_up(tx, actor, id)
        await frame.record(tx, actor, "connection_secret_rotated", connection=id)
    return identities.NewSecret(connection_id=id, secret=secret, previous_valid_until=connection.now + GRACE)


@frame.transaction_verb(Permission.CONNECTION_WRITE)
async def map_member(tx: Transaction, actor: Actor, id: UUID, draft: identities.MappingDraft) -> Mapping:
    """An admin vouches that this name in the other system is this member's. Only where the system signs what it says and
    belongs to the org; elsewhere people prove it themselves. Doing it twice changes nothing."""
    require_webhook(await tenancy_store.lock_connection(tx, id))
    member = await access.require_active(tx, draft.member_id)
    await tx.rows(queries.claim_one, id, draft.external_user)
    claims = await tenancy_store.claims(tx, id, draft.external_user)
    guest, mine = identities.displaced(claims, member.id), identities.own(claims, member.id)
    if mine is not None and mine.verified_at is not None:
        mapping_id = mine.id
    else:
        await note_set_up(tx, actor, id)
        mapping_id = await prove_mapping(tx, id, member.id, draft.external_user, mine.id if mine else None, guest)
        await frame.record(
            tx, actor, "mapping_vouched", connection=id, mapping=mapping_id, member=member.id,
            address=draft.external_user, instead_of=guest.id if guest else None,
        )  # fmt: skip
    return frame.require_found(await tenancy_store.get_mapping(tx, mapping_id), "mapping")


async def note_set_up(tx: Transaction, actor: Actor, id: UUID) -> None:
    """They know the secret, or said whose a name is, and could sign as anybody: their vote and one through this connection
    count as one human's."""
    for sponsor in await access.sponsors_by(tx, actor):
        await tx.rows(queries.add_set_up, id, sponsor)


def require_webhook(row: SealedConnection | None) -> SealedConnection:
    connection = frame.require_found(row, "connection")
    if connection.channel_type != identities.CHANNEL or connection.sealed is None:
        raise Conflict(
            "This connection is not a webhook.",
            code="not_a_webhook",
            hint="Create one: `cortex connection create NAME --channel webhook --url https://…`.",
        )
    return connection


@frame.transaction_verb(Permission.IDENTITY_LINK)
async def issue_link_code(tx: Transaction, actor: Actor) -> identities.LinkCode:
    """A code to type on another channel. An earlier one that nobody typed stops working."""
    member_id = access.require_member(actor, ONLY_MEMBERS)
    code, id = "".join(secrets.choice(identities.ALPHABET) for _ in range(identities.CODE_LENGTH)), new_id()
    await require_room(tx, member_id)
    await tx.rows(queries.forget_codes, member_id)
    await tx.rows(queries.void_sender_codes, member_id)
    digest = identities.sender_digest(actor.org_id, code)
    expires_at = await tenancy_store.insert_code(
        tx, id, member_id, None, digest, identities.Purpose.SENDER, actor.name, identities.LINK_LIFE
    )
    await frame.record(tx, actor, "link_code_created", code=id)
    return identities.LinkCode(code=identities.shown_code(code), expires_at=expires_at)


@frame.transaction_verb(Permission.IDENTITY_LINK)
async def list_own_mappings(tx: Transaction, actor: Actor, position: After, limit: int) -> Page[Mapping]:
    """Where the caller can be reached."""
    return await tenancy_store.list_mappings(tx, access.require_member(actor, ONLY_MEMBERS), position, limit)


@frame.transaction_verb(Permission.IDENTITY_LINK)
async def unlink_own(tx: Transaction, actor: Actor, mapping_id: UUID) -> None:
    """Give up a channel or an address of one's own. Messages from it are a stranger's afterwards."""
    await _unlink(tx, actor, mapping_id, access.require_member(actor, ONLY_MEMBERS))


@frame.transaction_verb(Permission.MEMBER_WRITE)
async def unlink_member(tx: Transaction, actor: Actor, member_id: UUID, mapping_id: UUID) -> None:
    """The same for any member: a lost phone, or an invitation to the wrong address."""
    await _unlink(tx, actor, mapping_id, member_id)


async def _unlink(tx: Transaction, actor: Actor, mapping_id: UUID, member_id: UUID) -> None:
    mapping = await tenancy_store.get_mapping(tx, mapping_id)
    mine = frame.require_found(mapping if mapping and mapping.user_account_id == member_id else None, "mapping")
    await tx.rows(queries.claim_one, mine.connection_id, mine.channel_user_id)
    frame.require_found(await tx.value(queries.remove_mapping, mine.id), "mapping")
    await tx.rows(queries.use_codes, mine.id)
    channel_type, address = mine.channel_type, mine.channel_user_id
    await frame.record(
        tx, actor, "identity_unlinked", member=member_id, mapping=mine.id, channel_type=channel_type, address=address
    )


@frame.verb(Permission.MESSAGE_INGEST)
async def redeem_link_code(db: Database, actor: Actor, connection_id: UUID, draft: identities.LinkDraft) -> Mapping:
    """A channel's program calls it when somebody types a code: that sender is the code's member from now on."""
    async with access.forgery_refusal(db, _invalid_code), db.transaction(actor.org_id) as tx:
        connection = frame.require_found(await tenancy_store.get_connection(tx, connection_id), "connection")
        if connection.disabled_at is not None:
            raise Conflict(
                "This connection is disabled.",
                code="connection_disabled",
                hint="Enable it with `cortex connection enable`.",
            )
        sender = _sender(connection.channel_type, draft.external_user_id)
        await tx.rows(queries.claim_one, connection_id, sender)
        if (await tx.value(queries.wrong_guesses, tx.org, connection_id, sender) or 0) >= identities.MAX_WRONG:
            raise TooMany(
                f"This sender typed {identities.MAX_WRONG} wrong codes in a row.",
                code="too_many_codes",
                hint="They can try again in ten minutes, with a new code: `cortex user link`.",
            )
        mapping = await _link(tx, actor, connection_id, sender, draft.code)
        if mapping is None:
            # Committed, although the answer is an error: wrong codes are counted.
            await tx.rows(queries.forget_guesses, tx.org, connection_id)
            await tx.rows(queries.guessed_wrong, tx.org, connection_id, sender, identities.WRONG_LIFE)
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
        return identities.normal_address(sender) if channel_type == "email" else sender
    except ValueError as error:
        raise InvalidInput(f"`external_user_id` {error}.", field="external_user_id") from None


async def _link(tx: Transaction, actor: Actor, connection_id: UUID, sender: str, typed: str) -> Mapping | None:
    """The member's mapping; None where the code is not one."""
    code = identities.read_code(typed)
    code_row = await tenancy_store.use_sender_code(tx, identities.sender_digest(tx.org, code)) if code else None
    if code_row is None:
        return None
    member_id: UUID = code_row["user_account_id"]
    claims = await tenancy_store.claims(tx, connection_id, sender)
    guest, mine = identities.displaced(claims, member_id), identities.own(claims, member_id)
    if mine is None:
        await require_room(tx, member_id)
    mapping_id = await prove_mapping(tx, connection_id, member_id, sender, mine.id if mine else None, guest)
    await tx.rows(queries.use_codes, mapping_id)
    await frame.record(
        tx, actor, "identity_linked", member=member_id, mapping=mapping_id, code=code_row["id"],
        connection=connection_id, address=sender, instead_of=guest.id if guest else None,
    )  # fmt: skip
    return frame.require_found(await tenancy_store.get_mapping(tx, mapping_id), "mapping")
