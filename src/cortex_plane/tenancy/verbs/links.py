"""Other channels: a code that a member reads in one place and types in another makes its sender theirs."""

from __future__ import annotations

from uuid import UUID

from cortex_plane.db.database import Database, Transaction
from cortex_plane.kernel.errors import Conflict, InvalidInput, TooMany
from cortex_plane.kernel.idempotency import new_id
from cortex_plane.kernel.pages import Page, Position
from cortex_plane.notify.store import notifications
from cortex_plane.proof.model.audit import Fact
from cortex_plane.proof.store import audit
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.model.connections import Mapping
from cortex_plane.tenancy.model.identities import (
    LINK_LIFE,
    MAX_WRONG,
    WRONG_LIFE,
    LinkCode,
    LinkDraft,
    Purpose,
    displaced,
    normal_address,
    own,
    read_code,
    sender_digest,
    shown_code,
)
from cortex_plane.tenancy.store import connections, identities
from cortex_plane.tenancy.verbs.forgeries import refused_as
from cortex_plane.tenancy.verbs.invitations import person_of, require_room
from cortex_plane.tenancy.verbs.secrets import new_sender_code
from cortex_plane.tenancy.verbs.verbs import require_found, verb


@verb(Permission.IDENTITY_LINK)
async def issue_code(db: Database, actor: Actor) -> LinkCode:
    """A code to type on another channel. An earlier one that nobody typed stops working."""
    member_id = person_of(actor)
    code, id = new_sender_code(), new_id()
    async with db.transaction(actor.org_id) as tx:
        await require_room(tx, member_id)
        await identities.forget_codes(tx, member_id)
        await identities.void_sender_codes(tx, member_id)
        hashed = sender_digest(actor.org_id, code)
        expires_at = await identities.insert_code(
            tx, id, member_id, None, hashed, Purpose.SENDER, actor.name, LINK_LIFE
        )
        await audit.append_to_org(tx, Fact.of(actor, "link_code_created", code=str(id)))
    return LinkCode(code=shown_code(code), expires_at=expires_at)


@verb(Permission.IDENTITY_LINK)
async def list_own(db: Database, actor: Actor, position: Position | None, limit: int) -> Page[Mapping]:
    """Where whoever asks can be reached."""
    async with db.transaction(actor.org_id) as tx:
        return await connections.mappings(tx, person_of(actor), position, limit)


@verb(Permission.IDENTITY_LINK)
async def unlink(db: Database, actor: Actor, mapping_id: UUID) -> None:
    """Give up a channel or an address of one's own. Whoever writes from it afterwards is a stranger."""
    async with db.transaction(actor.org_id) as tx:
        mapping = await identities.get_mapping(tx, mapping_id)
        await _give_up(tx, actor, mapping, person_of(actor))


@verb(Permission.MEMBER_WRITE)
async def unlink_member(db: Database, actor: Actor, member_id: UUID, mapping_id: UUID) -> None:
    """The same for any member: a lost phone, or an invitation to the wrong address."""
    async with db.transaction(actor.org_id) as tx:
        mapping = await identities.get_mapping(tx, mapping_id)
        await _give_up(tx, actor, mapping, member_id)


async def _give_up(tx: Transaction, actor: Actor, mapping: Mapping | None, member_id: UUID) -> None:
    mine = require_found(mapping if mapping and mapping.user_account_id == member_id else None, "mapping")
    await identities.claim_one(tx, mine.connection_id, mine.channel_user_id)
    if not await identities.remove(tx, mine.id):
        require_found(None, "mapping")
    await identities.use_codes(tx, mine.id)
    await audit.append_to_org(
        tx,
        Fact.of(
            actor, "identity_unlinked", member=str(member_id), mapping=str(mine.id),
            channel_type=mine.channel_type, address=mine.channel_user_id,
        ),
    )  # fmt: skip


@verb(Permission.MESSAGE_INGEST)
async def redeem(db: Database, actor: Actor, connection_id: UUID, draft: LinkDraft) -> Mapping:
    """What a channel's program calls when somebody types a code: that sender is the code's member from now on."""
    async with refused_as(db, _invalid_code), db.transaction(actor.org_id) as tx:
        connection = require_found(await connections.get(tx, connection_id), "connection")
        if connection.disabled_at is not None:
            raise Conflict(
                "This connection is disabled.",
                code="connection_disabled",
                hint="Enable it with `cortex connection enable`.",
            )
        sender = _sender(connection.channel_type, draft.external_user_id)
        await identities.claim_one(tx, connection_id, sender)
        if await identities.wrong_guesses(tx, connection_id, sender) >= MAX_WRONG:
            raise TooMany(
                f"This sender typed {MAX_WRONG} wrong codes in a row.",
                code="too_many_codes",
                hint="They can try again in ten minutes, with a new code: `cortex user link`.",
            )
        linked = await _link(tx, actor, connection_id, sender, draft.code)
        if linked is None:
            # Kept, although the answer is an error: it is what is counted.
            await identities.guessed_wrong(tx, connection_id, sender, WRONG_LIFE)
    if linked is None:
        raise _invalid_code()
    return linked


def _invalid_code() -> InvalidInput:
    return InvalidInput(
        "This code does not work: it was used already, is older than ten minutes, or was never one.",
        code="link_code_invalid",
        hint="Get a new one with `cortex user link`, and type it on this channel.",
    )


def _sender(channel_type: str, given: str) -> str:
    try:
        return normal_address(given) if channel_type == "email" else given
    except ValueError as error:
        raise InvalidInput(f"`external_user_id` {error}.", field="external_user_id") from None


async def _link(
    tx: Transaction, actor: Actor, connection_id: UUID, sender: str, typed: str
) -> Mapping | None:
    """The member's mapping; None where the code is not one."""
    code = read_code(typed)
    used = await identities.use_sender_code(tx, sender_digest(tx.org, code)) if code else None
    if used is None:
        return None
    member_id: UUID = used["user_account_id"]
    claims = await identities.claims(tx, connection_id, sender)
    guest, mine = displaced(claims, member_id), own(claims, member_id)
    if guest is not None:
        await identities.remove(tx, guest.id)
    mapping_id = mine.id if mine else new_id()
    if mine is None:
        await require_room(tx, member_id)
        await identities.insert_mapping(tx, mapping_id, connection_id, member_id, sender, Purpose.SENDER)
    else:
        await identities.verify(tx, mapping_id, connection_id, member_id, sender)
        await identities.use_codes(tx, mapping_id)
    await notifications.tell_there(tx, mapping_id)
    await audit.append_to_org(
        tx,
        Fact.of(
            actor, "identity_linked", member=str(member_id), mapping=str(mapping_id), code=str(used["id"]),
            connection=str(connection_id), address=sender, instead_of=str(guest.id) if guest else None,
        ),
    )  # fmt: skip
    return require_found(await identities.get_mapping(tx, mapping_id), "mapping")
