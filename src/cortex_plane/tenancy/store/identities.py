"""Channel connections, mappings of senders to people, and the codes that prove them, in SQL."""

from __future__ import annotations

from collections.abc import Mapping as Dict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import orjson

from cortex_plane.db.database import Database, Queries, Row, Transaction, after, ids, one, page
from cortex_plane.db.vault import Vault
from cortex_plane.kernel.fields import parse
from cortex_plane.kernel.pages import Page, Position
from cortex_plane.tenancy.model.identities import AddressVerification, Claim, Connection, Mapping, Purpose
from cortex_plane.tenancy.rules import CredentialKey, MacKind
from cortex_plane.tenancy.store.credentials import ends_after

queries = Queries("tenancy")


@dataclass(frozen=True, kw_only=True, slots=True)
class SealedConnection:
    """A connection with what opens its messages, as of a moment."""

    id: UUID
    channel_type: str
    name: str
    config: dict[str, Any]
    sealed: bytes | None
    disabled_at: datetime | None
    now: datetime


async def seal_secret(tx: Transaction, db: Database, id: UUID, secrets: Dict[str, str]) -> bytes:
    return await db.seal(tx, f"connection/{id}", orjson.dumps(dict(secrets)))


def open_secret(vault: Vault, org_id: UUID, id: UUID, sealed: bytes | None) -> dict[str, str]:
    """The secrets of a connection; none where it has none."""
    if sealed is None:
        return {}
    secrets: dict[str, str] = orjson.loads(vault.open(org_id, f"connection/{id}", sealed))
    return secrets


async def insert_connection(
    tx: Transaction,
    id: UUID,
    channel_type: str,
    name: str,
    config: dict[str, Any] | None = None,
    sealed: bytes | None = None,
) -> Connection:
    (row,) = await tx.rows(queries.insert_connection, tx.org, id, channel_type, name, config or {}, sealed)
    return parse(Connection, row)


async def get_connection(tx: Transaction, id: UUID) -> Connection | None:
    return one(Connection, await tx.row(queries.get_connection, id))


async def list_connections(tx: Transaction, position: Position | None, limit: int) -> Page[Connection]:
    return page(Connection, await tx.rows(queries.list_connections, *after(position), limit + 1), limit)


async def update_connection(
    tx: Transaction, id: UUID, name: str | None, enabled: bool | None, revision: int | None, url: str | None = None
) -> Connection | None:
    return one(Connection, await tx.row(queries.update_connection, id, name, enabled, revision, url))


async def sealed_connection(tx: Transaction, id: UUID) -> SealedConnection | None:
    return one(SealedConnection, await tx.row(queries.sealed_connection, id))


async def get_connection_name(tx: Transaction, name: str) -> SealedConnection | None:
    """By its name or its id; where several have the name, the webhook."""
    return one(SealedConnection, await tx.row(queries.get_connection_name, name))


async def lock_connection(tx: Transaction, id: UUID) -> SealedConnection | None:
    """As ``sealed``, for whoever is about to change it."""
    return one(SealedConnection, await tx.row(queries.lock_connection, id))


async def add_set_up(tx: Transaction, id: UUID, by: UUID) -> None:
    """They set its secret, or said whose a name behind it is: votes through it count with theirs as one."""
    await tx.rows(queries.add_set_up, id, by)


async def reseal_connection(tx: Transaction, id: UUID, sealed: bytes) -> None:
    await tx.rows(queries.reseal_connection, id, sealed)


async def list_mappings(tx: Transaction, user_account_id: UUID, position: Position | None, limit: int) -> Page[Mapping]:
    rows = await tx.rows(queries.list_mappings, *after(position), limit + 1, user_account_id)
    return page(Mapping, rows, limit)


async def verified_mapping(tx: Transaction, connection_id: UUID, channel_user_id: str) -> Mapping | None:
    """Whose this name is on this connection. Raises ``Forged`` where the row that says so is not the plane's."""
    row = await tx.row(queries.verified_mapping, connection_id, channel_user_id)
    if row is not None:
        tx.credential_key.require(MacKind.MAPPING, row, row["mac"])
    return one(Mapping, row)


async def find_failing_connections(
    db: Database, channel_type: str, longer: timedelta, limit: int
) -> list[tuple[UUID, UUID]]:
    """Org and id of connections in any org to which nothing has got through for so long."""
    rows = await db.call("find_failing_connections", None, channel_type, longer, limit)
    return [(row["org_id"], row["id"]) for row in rows]


async def give_up_connection(tx: Transaction, id: UUID, reason: str, longer: timedelta) -> Row | None:
    """Disable it, unless something has got through or somebody disabled it meanwhile."""
    return await tx.row(queries.give_up_connection, id, reason, longer)


async def resolve_code(db: Database, code_hash: bytes) -> tuple[UUID, UUID] | None:
    """The org and the id of a link."""
    rows = await db.call("resolve_identity_code", None, db.credential_key.lookup(code_hash))
    return (rows[0]["org_id"], rows[0]["id"]) if rows else None


async def email_connection(tx: Transaction) -> Row | None:
    return await tx.row(queries.email_connection)


async def ensure_email_connection(tx: Transaction, id: UUID) -> bool:
    """Whether it was made now."""
    return await tx.value(queries.ensure_email_connection, tx.org, id) is not None


async def claim_one(tx: Transaction, connection_id: UUID, sender: str) -> None:
    """Whoever settles the same sender takes turns, first messages included; nobody else waits."""
    await tx.rows(queries.claim_one, connection_id, sender)


async def claims(tx: Transaction, connection_id: UUID, sender: str) -> Sequence[Claim]:
    return [parse(Claim, row) for row in await tx.rows(queries.claims, tx.org, connection_id, sender)]


async def insert_mapping(
    tx: Transaction, id: UUID, connection_id: UUID, member_id: UUID, sender: str, purpose: Purpose
) -> None:
    """A sender who typed a code has proven it with that; an address is only claimed."""
    verified = purpose is Purpose.SENDER
    mac = mapping_mac(tx.credential_key, tx.org, id, connection_id, member_id, sender, verified=verified)
    await tx.rows(
        queries.insert_mapping, tx.org, id, connection_id, member_id, sender, {"purpose": purpose}, verified, mac
    )


def mapping_mac(
    key: CredentialKey, org_id: UUID, id: UUID, connection_id: UUID, member_id: UUID, sender: str, *, verified: bool = True
) -> bytes:  # fmt: skip
    written = {
        "org_id": org_id, "id": id, "connection_id": connection_id, "channel_user_id": sender,
        "user_account_id": member_id, "verified": verified,
    }  # fmt: skip
    return key.mac(MacKind.MAPPING, written)


async def get_mapping(tx: Transaction, id: UUID) -> Mapping | None:
    return one(Mapping, await tx.row(queries.get_mapping, id))


async def verify_mapping(tx: Transaction, id: UUID, connection_id: UUID, member_id: UUID, sender: str) -> None:
    """The claim of this member is proven."""
    mac = mapping_mac(tx.credential_key, tx.org, id, connection_id, member_id, sender)
    await tx.rows(queries.verify_mapping, id, connection_id, member_id, sender, mac)


async def allow_mail(tx: Transaction, mapping_id: UUID) -> None:
    await tx.rows(queries.allow_mail, mapping_id)


async def mapping_refusal(tx: Transaction, connection_id: UUID, sender: str, member_id: UUID) -> str | None:
    """Why nothing is sent to this address of theirs any more."""
    reason: str | None = await tx.value(queries.mapping_refusal, tx.org, connection_id, sender, member_id)
    return reason


async def is_mailed(tx: Transaction, mapping_id: UUID, pause: timedelta) -> bool:
    mailed_before: bool = await tx.value(queries.is_mailed, tx.org, mapping_id, pause)
    return mailed_before


async def count_mails(tx: Transaction, by: dict[str, Any]) -> int:
    """Links that were mailed within the last hour, by the marks that ``_send`` left on them."""
    count: int = await tx.value(queries.count_mails, tx.org, by)
    return count


async def remove_mapping(tx: Transaction, mapping_id: UUID) -> bool:
    return await tx.value(queries.remove_mapping, mapping_id) is not None


async def count_mappings(tx: Transaction, member_id: UUID) -> int:
    count: int = await tx.value(queries.count_mappings, member_id)
    return count


async def insert_code(
    tx: Transaction,
    id: UUID,
    member_id: UUID,
    mapping_id: UUID | None,
    code_hash: bytes,
    purpose: Purpose,
    issued_by: str,
    life: timedelta,
) -> datetime:
    expires_at = await ends_after(tx, life)
    lookup = tx.credential_key.lookup(code_hash)
    written = {
        "org_id": tx.org, "id": id, "user_account_id": member_id, "mapping_id": mapping_id, "purpose": purpose,
        "expires_at": expires_at, "code_hash": lookup,
    }  # fmt: skip
    mac = tx.credential_key.mac(MacKind.IDENTITY_CODE, written)
    await tx.rows(queries.insert_code, tx.org, id, member_id, mapping_id, lookup, purpose, issued_by, expires_at, mac)
    return expires_at


async def forget_codes(tx: Transaction, member_id: UUID) -> None:
    await tx.rows(queries.forget_codes, member_id)


async def show_code(tx: Transaction, id: UUID) -> AddressVerification | None:
    """Raises ``Forged`` where the row of the code is not the plane's."""
    row = await tx.row(queries.show_code, id)
    if row is not None:
        tx.credential_key.require(MacKind.IDENTITY_CODE, row, row["mac"])
    return one(AddressVerification, row)


async def use_codes(tx: Transaction, mapping_id: UUID) -> None:
    await tx.rows(queries.use_codes, mapping_id)


async def void_sender_codes(tx: Transaction, member_id: UUID) -> None:
    await tx.rows(queries.void_sender_codes, member_id)


async def void_codes(tx: Transaction, member_id: UUID) -> list[UUID]:
    """Every code and every link in a mail that this member has not used; which ones."""
    return ids(await tx.rows(queries.void_codes, member_id))


async def use_sender_code(tx: Transaction, code_hash: bytes) -> Row | None:
    """The code's id, and whose it is. Raises ``Forged`` where its row is not the plane's."""
    row = await tx.row(queries.use_sender_code, tx.org, tx.credential_key.lookup(code_hash))
    if row is not None:
        tx.credential_key.require(MacKind.IDENTITY_CODE, row, row["mac"])
    return row


async def wrong_guesses(tx: Transaction, connection_id: UUID, sender: str) -> int:
    wrong: int | None = await tx.value(queries.wrong_guesses, tx.org, connection_id, sender)
    return wrong or 0


async def forget_guesses(tx: Transaction, connection_id: UUID) -> None:
    await tx.rows(queries.forget_guesses, tx.org, connection_id)


async def guessed_wrong(tx: Transaction, connection_id: UUID, sender: str, life: timedelta) -> int:
    await forget_guesses(tx, connection_id)
    wrong: int = await tx.value(queries.guessed_wrong, tx.org, connection_id, sender, life)
    return wrong
