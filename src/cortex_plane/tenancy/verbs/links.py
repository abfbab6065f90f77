"""Codes that link a channel to a member, and links that wait for their member.

A code that is typed where others read it can be copied, and then somebody else is the first to use it. So on the plane's own
channels a code alone links nothing: the member, logged in, sees the name that the channel shows for whoever typed it, and
confirms it or not.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from uuid import UUID

from cortex_plane.db.database import Database, Row, Transaction, many
from cortex_plane.kernel.errors import Conflict, InvalidInput, NotFound, TooMany
from cortex_plane.kernel.ids import new_id
from cortex_plane.tenancy import store as tenancy_store
from cortex_plane.tenancy.model import identities
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.model.identities import ClaimDraft, LinkClaim, Mapping, displaced, own
from cortex_plane.tenancy.store import queries
from cortex_plane.tenancy.verbs import access
from cortex_plane.tenancy.verbs.connections import ONLY_MEMBERS, prove_mapping, require_room
from cortex_plane.tenancy.verbs.frame import record, require_found, transaction_verb, verb


@transaction_verb(Permission.IDENTITY_LINK)
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
    await record(tx, actor, "link_code_created", code=id)
    return identities.LinkCode(code=identities.shown_code(code), expires_at=expires_at)


@verb(Permission.MESSAGE_INGEST)
async def redeem_link_code(db: Database, actor: Actor, connection_id: UUID, draft: identities.LinkDraft) -> Mapping:
    """A program of the org calls it when somebody types a code: that sender is the code's member from now on."""
    mapping = None
    async with code_transaction(db, actor, connection_id, draft.external_user_id) as (tx, sender):
        await _require_program(tx, connection_id)
        code_row = await use_code(tx, connection_id, sender, draft.code)
        if code_row is not None:
            mapping = await _link(tx, actor, connection_id, sender, code_row)
    if mapping is None:
        raise invalid_code()
    return mapping


async def _require_program(tx: Transaction, connection_id: UUID) -> None:
    """Where the plane itself speaks with the vendor, a code links nothing before its member confirms who typed it."""
    connection = require_found(await tenancy_store.get_connection(tx, connection_id), "connection")
    if connection.account is not None:
        raise Conflict(
            "The plane itself serves this connection: codes are typed there, and their members confirm who typed them.",
            code="connection_served",
            hint="Let the person send `/link CODE` to it in a private chat.",
        )


@contextlib.asynccontextmanager
async def code_transaction(
    db: Database, actor: Actor, connection_id: UUID, external_user_id: str
) -> AsyncIterator[tuple[Transaction, str]]:
    """A transaction in which a sender uses a code. It commits although the code was wrong: wrong codes are counted."""
    async with access.forgery_refusal(db, invalid_code), db.transaction(actor.org_id) as tx:
        connection = require_found(await tenancy_store.get_connection(tx, connection_id), "connection")
        if connection.disabled_at is not None:
            raise Conflict(
                "This connection is disabled.",
                code="connection_disabled",
                hint="Enable it with `cortex connection enable`.",
            )
        sender = _sender(connection.channel_type, external_user_id)
        await tx.rows(queries.claim_one, connection_id, sender)
        if (await tx.value(queries.wrong_guesses, tx.org, connection_id, sender) or 0) >= identities.MAX_WRONG:
            raise TooMany(
                f"This sender typed {identities.MAX_WRONG} wrong codes in a row.",
                code="too_many_codes",
                hint="They can try again in ten minutes, with a new code: `cortex user link`.",
            )
        yield tx, sender


async def use_code(tx: Transaction, connection_id: UUID, sender: str, typed: str) -> Row | None:
    """The row of a code, which is used up; None where it is none, which is counted."""
    code = identities.read_code(typed)
    code_row = await tenancy_store.use_sender_code(tx, identities.sender_digest(tx.org, code)) if code else None
    if code_row is None:
        await tx.rows(queries.forget_guesses, tx.org, connection_id)
        await tx.rows(queries.guessed_wrong, tx.org, connection_id, sender, identities.WRONG_LIFE)
    return code_row


def invalid_code() -> InvalidInput:
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


async def _link(tx: Transaction, actor: Actor, connection_id: UUID, sender: str, code_row: Row) -> Mapping:
    """The member's mapping."""
    member_id: UUID = code_row["user_account_id"]
    claims = await tenancy_store.claims(tx, connection_id, sender)
    guest, mine = identities.displaced(claims, member_id), identities.own(claims, member_id)
    if mine is None:
        await require_room(tx, member_id)
    mapping_id = await prove_mapping(tx, connection_id, member_id, sender, mine.id if mine else None, guest)
    await tx.rows(queries.use_codes, mapping_id)
    await record(
        tx, actor, "identity_linked", member=member_id, mapping=mapping_id, code=code_row["id"],
        connection=connection_id, address=sender, instead_of=guest.id if guest else None,
    )  # fmt: skip
    return require_found(await tenancy_store.get_mapping(tx, mapping_id), "mapping")


@verb(Permission.MESSAGE_INGEST)
async def claim_link(db: Database, actor: Actor, connection_id: UUID, draft: ClaimDraft) -> Mapping:
    """A channel calls it for a code that was typed in a private chat. The mapping is verified once its member has confirmed it, or
    where it was before. The same sender with the same code gets the same mapping."""
    mapping = None
    async with code_transaction(db, actor, connection_id, draft.external_user_id) as (tx, sender):
        if (earlier_id := await _find_claim(tx, connection_id, sender, draft.code)) is not None:
            return require_found(await tenancy_store.get_mapping(tx, earlier_id), "mapping")
        code_row = await use_code(tx, connection_id, sender, draft.code)
        if code_row is not None:
            member_id: UUID = code_row["user_account_id"]
            claims = await tenancy_store.claims(tx, connection_id, sender)
            displaced(claims, member_id)
            mine = own(claims, member_id)
            mapping_id = mine.id if mine else new_id()
            if mine is None:
                await require_room(tx, member_id)
                await tenancy_store.insert_claim(tx, mapping_id, connection_id, member_id, sender, draft.metadata)
            else:
                await tx.rows(queries.renew_claim, mapping_id, draft.metadata)
            await record(
                tx, actor, "identity_claimed", member=member_id, mapping=mapping_id, code=code_row["id"],
                connection=connection_id, address=sender, name=draft.display_name,
            )  # fmt: skip
            mapping = require_found(await tenancy_store.get_mapping(tx, mapping_id), "mapping")
    if mapping is None:
        raise invalid_code()
    return mapping


async def _find_claim(tx: Transaction, connection_id: UUID, sender: str, typed: str) -> UUID | None:
    code = identities.read_code(typed)
    if code is None:
        return None
    lookup = tx.credential_key.lookup(identities.sender_digest(tx.org, code))
    mapping_id: UUID | None = await tx.value(queries.find_claim_of_code, tx.org, lookup, connection_id, sender)
    return mapping_id


@verb(Permission.MESSAGE_INGEST)
async def unlink_reassigned(db: Database, actor: Actor, connection_id: UUID, sender: str, owner: str) -> None:
    """A channel calls it where a sender's id, such as a phone number, has passed to somebody else: what the one before could do is not
    theirs."""
    async with db.transaction(actor.org_id) as tx:
        await tx.rows(queries.claim_one, connection_id, sender)
        mapping = await tenancy_store.verified_mapping(tx, connection_id, sender)
        if mapping is None or mapping.metadata.get("owner") in (None, owner):
            return
        await tx.rows(queries.remove_mapping, mapping.id)
        await tx.rows(queries.use_codes, mapping.id)
        await record(
            tx, actor, "identity_unlinked", member=mapping.user_account_id, mapping=mapping.id,
            channel_type=mapping.channel_type, address=mapping.channel_user_id, reason="the channel names another owner",
        )  # fmt: skip


@transaction_verb(Permission.IDENTITY_LINK)
async def list_own_claims(tx: Transaction, actor: Actor) -> list[LinkClaim]:
    """Who asked to be linked to the caller, newest first."""
    return await tenancy_store.list_claims(tx, access.require_member(actor, ONLY_MEMBERS))


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkableConnection:
    """A connection over which a member can send a code."""

    id: UUID
    channel_type: str
    name: str
    account: str | None


@transaction_verb(Permission.IDENTITY_LINK)
async def list_linkable(tx: Transaction, actor: Actor) -> list[LinkableConnection]:
    """The connections of the plane's own channels to which a member can send a code in private."""
    access.require_member(actor, ONLY_MEMBERS)
    return many(LinkableConnection, await tx.rows(queries.list_linkable))


@transaction_verb(Permission.IDENTITY_LINK)
async def confirm_link(tx: Transaction, actor: Actor, mapping_id: UUID) -> Mapping:
    """It was the caller who typed the code: what comes from there is theirs from now on, and what came from there before."""
    claim = await _waiting(tx, actor, mapping_id)
    member_id = access.require_member(actor, ONLY_MEMBERS)
    await tx.rows(queries.claim_one, claim.connection_id, claim.channel_user_id)
    claims = await tenancy_store.claims(tx, claim.connection_id, claim.channel_user_id)
    guest, mine = displaced(claims, member_id), own(claims, member_id)
    if mine is None or mine.id != mapping_id:
        raise _no_claim()
    await prove_mapping(tx, claim.connection_id, member_id, claim.channel_user_id, mapping_id, guest)
    await record(
        tx, actor, "identity_linked", member=member_id, mapping=mapping_id, connection=claim.connection_id,
        address=claim.channel_user_id, name=claim.name, instead_of=guest.id if guest else None,
    )  # fmt: skip
    return require_found(await tenancy_store.get_mapping(tx, mapping_id), "mapping")


@transaction_verb(Permission.IDENTITY_LINK)
async def refuse_link(tx: Transaction, actor: Actor, mapping_id: UUID) -> None:
    """It was somebody else who typed the code. Nothing is linked."""
    claim = await _waiting(tx, actor, mapping_id)
    member_id = access.require_member(actor, ONLY_MEMBERS)
    if await tx.value(queries.end_claim, mapping_id, member_id) is None:
        raise _no_claim()
    await record(
        tx, actor, "identity_refused", member=member_id, mapping=mapping_id, connection=claim.connection_id,
        address=claim.channel_user_id, name=claim.name,
    )  # fmt: skip


async def _waiting(tx: Transaction, actor: Actor, mapping_id: UUID) -> LinkClaim:
    own_claims = await tenancy_store.list_claims(tx, access.require_member(actor, ONLY_MEMBERS))
    claim = next((claim for claim in own_claims if claim.id == mapping_id), None)
    if claim is None:
        raise _no_claim()
    return claim


def _no_claim() -> NotFound:
    return NotFound(
        "Nobody who typed your code waits under this id.",
        code="link_claim_not_found",
        hint="See who does with `cortex user link`; a claim waits for an hour.",
    )
