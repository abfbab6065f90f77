"""Keys, browser sessions, enrolment codes and model keys in SQL. Of a secret only its lookup and its last characters are written."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from cortex_plane.db.database import NOBODY, Database, Queries, Row, Transaction, after, ids, one, page
from cortex_plane.db.vault import Vault
from cortex_plane.kernel.fields import parse
from cortex_plane.kernel.pages import Page, Position
from cortex_plane.tenancy.model.access import (
    Actor,
    ActorKind,
    BrowserSession,
    Enrolment,
    Key,
    KeyKind,
    ModelKey,
    Permission,
    Provider,
    actor_kind,
    key_digest,
)
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.tenancy.rules import MacKind

queries = Queries("tenancy")

BATCH = 500


async def database_time(tx: Transaction) -> datetime:
    at: datetime = await tx.value(queries.database_time)
    return at


async def ends_after(tx: Transaction, life: timedelta) -> datetime:
    """When something ends that lives for so long from now. The MAC covers it, so it is known before the row is written."""
    return await database_time(tx) + life


# The key --------------------------------------------------------------------------------------------------------------


async def is_converted(db: Database) -> bool:
    """Whether rows from before the credential key have their MACs. False where there is no key yet."""
    async with db.transaction(NOBODY) as tx:
        return bool(await tx.value(queries.is_converted))


async def set_converted(db: Database) -> None:
    """From now on a row without a MAC is worth nothing. Nothing takes this back."""
    async with db.transaction(NOBODY) as tx:
        await tx.rows(queries.set_converted)


async def sealed_credential_key(tx: Transaction) -> bytes | None:
    sealed: bytes | None = await tx.value(queries.sealed_credential_key)
    return sealed


async def reseal_credential_key(tx: Transaction, sealed: bytes) -> None:
    await tx.rows(queries.reseal_credential_key, sealed)


@dataclass(frozen=True, slots=True)
class SealedValue:
    """A secret of an org, in whatever table."""

    kind: str
    id: str
    purpose: str
    sealed: bytes


async def list_sealed_values(tx: Transaction) -> list[SealedValue]:
    """Every secret of the org that is sealed with the master key."""
    return [parse(SealedValue, row) for row in await tx.rows(queries.list_sealed_values)]


async def reseal_values(tx: Transaction, values: Sequence[SealedValue]) -> None:
    await tx.rows(
        queries.reseal_values,
        [value.kind for value in values],
        [value.id for value in values],
        [value.sealed for value in values],
    )


# Rows with a MAC ------------------------------------------------------------------------------------------------------
# `live` says whether a row is in use: not revoked, used or removed.

CREDENTIALS: Final[Mapping[MacKind, tuple[str, str, str]]] = {
    MacKind.KEY: (queries.stream_api_keys, "api_key", "secret_hash"),
    MacKind.BROWSER_SESSION: (queries.stream_browser_sessions, "browser_session", "secret_hash"),
    MacKind.LOGIN_LINK: (queries.stream_login_links, "login_link", "secret_hash"),
    MacKind.ENROLMENT_CODE: (queries.stream_enrolment_codes, "enrolment_code", "code_hash"),
    MacKind.APPROVAL_TOKEN: (queries.stream_approval_tokens, "approval_token", "token_hash"),
    MacKind.IDENTITY_CODE: (queries.stream_identity_codes, "identity_code", "code_hash"),
}
"""The query for the rows of each kind of credential, their table, and the column that they are found by."""

_QUERIES: Final[Mapping[MacKind, str]] = {
    **{kind: query for kind, (query, _, _) in CREDENTIALS.items()},
    MacKind.MAPPING: queries.stream_mappings,
    MacKind.ATLAS_VERSION: queries.stream_atlas_versions,
}

PEOPLE: Final = (*CREDENTIALS, MacKind.MAPPING)
"""The kinds of rows that lead to a person."""


def stream_rows(
    tx: Transaction, kind: MacKind, *, without_mac: bool = False, limit: int | None = None
) -> AsyncIterator[Row]:
    """The rows of a kind; with ``without_mac`` only those that have no MAC."""
    return tx.stream(_QUERIES[kind], without_mac, limit)


# Conversion -----------------------------------------------------------------------------------------------------------


async def convert_some(tx: Transaction) -> int:
    """Gives some rows of the org their lookups and MACs, but for policies; how many. 0 where none is left."""
    count = 0
    for kind in CREDENTIALS:
        count += await _convert_credentials(tx, kind)
    for convert in (convert_mappings, _convert_atlases):
        count += await convert(tx)
    return count


async def _convert_credentials(tx: Transaction, kind: MacKind) -> int:
    _, table, column = CREDENTIALS[kind]
    key, rows = tx.credential_key, [row async for row in stream_rows(tx, kind, without_mac=True, limit=BATCH)]
    if not rows:
        return 0
    lookups = [key.lookup(row[column]) for row in rows]
    macs = [key.mac(kind, {**row, column: lookup}) for row, lookup in zip(rows, lookups, strict=True)]
    await tx.call("convert_credentials", tx.org, table, [row["id"] for row in rows], lookups, macs)
    return len(rows)


async def convert_mappings(tx: Transaction) -> int:
    rows = [row async for row in stream_rows(tx, MacKind.MAPPING, without_mac=True, limit=BATCH)]
    macs = [tx.credential_key.mac(MacKind.MAPPING, row) for row in rows]
    await sign_mappings(tx, [row["id"] for row in rows], macs)
    return len(rows)


async def sign_mappings(tx: Transaction, ids: Sequence[UUID], macs: Sequence[bytes]) -> None:
    await tx.rows(queries.sign_mappings, ids, macs)


async def unsigned_policies(tx: Transaction) -> list[int]:
    return [row["version"] for row in await tx.rows(queries.unsigned_policies)]


async def unsigned_policy_version(tx: Transaction) -> int | None:
    """The version in force, where nothing says who put it there."""
    version: int | None = await tx.value(queries.unsigned_policy_version, tx.org)
    return version


async def _convert_atlases(tx: Transaction) -> int:
    rows = [row async for row in stream_rows(tx, MacKind.ATLAS_VERSION, without_mac=True, limit=BATCH)]
    macs = [tx.credential_key.mac(MacKind.ATLAS_VERSION, row) for row in rows]
    await sign_atlases(tx, rows, macs)
    return len(rows)


async def sign_atlases(tx: Transaction, rows: Sequence[Row], macs: Sequence[bytes]) -> None:
    ids, versions = [row["atlas_id"] for row in rows], [row["version"] for row in rows]
    await tx.rows(queries.sign_atlases, ids, versions, macs)


async def authenticate_key(db: Database, secret_hash: bytes, org_slug: str | None) -> Actor | None:
    """Who holds this key. Revoked and expired keys raise with the reason; raises ``Forged`` where its row is not the plane's."""
    key = db.credential_key
    lookup = key.lookup(secret_hash)
    rows = await db.call("authenticate", None, lookup, org_slug)
    if not rows:
        return None
    (row,) = rows
    written = {
        "org_id": row["home_id"],
        "id": row["key_id"],
        "user_account_id": row["holder_id"],
        "kind": row["kind"],
        "roles": row["own_roles"],
        "permissions": row["permissions"],
        "platform": row["own_platform"],
        "expires_at": row["expires_at"],
        "secret_hash": lookup,
    }
    key.require(MacKind.KEY, written, row["mac"])
    return Actor(
        org_id=row["org_id"],
        key_id=row["key_id"],
        kind=actor_kind(KeyKind(row["kind"]), acts_elsewhere=row["acts_elsewhere"]),
        name=row["name"],
        roles=frozenset(Role(role) for role in row["roles"]),
        user_account_id=row["user_account_id"],
        clearance=row["clearance"],
        platform=row["platform"],
        granted=frozenset(Permission(name) for name in row["permissions"]),
    )


async def insert_key(
    tx: Transaction,
    id: UUID,
    name: str,
    kind: KeyKind,
    member_id: UUID | None,
    roles: Sequence[str],
    secret: str,
    expires_in_days: int | None,
    *,
    made_by: UUID | None = None,
    platform: bool = False,
    made_with: UUID | None = None,
    permissions: Sequence[str] = (),
) -> Key:
    """``made_by``: the identity that makes it. Whoever is behind it owns the key."""
    expires_at = None if expires_in_days is None else await ends_after(tx, timedelta(days=expires_in_days))
    lookup = tx.credential_key.lookup(key_digest(secret))
    written = {
        "org_id": tx.org, "id": id, "user_account_id": member_id, "kind": kind, "roles": list(roles),
        "permissions": list(permissions), "platform": platform, "expires_at": expires_at, "secret_hash": lookup,
    }  # fmt: skip
    (row,) = await tx.rows(
        queries.insert_key, tx.org, id, name, kind, member_id, roles, platform, lookup, secret[-4:],
        expires_at, made_with, list(permissions), made_by, tx.credential_key.mac(MacKind.KEY, written),
    )  # fmt: skip
    return parse(Key, row)


async def get_key(tx: Transaction, id: UUID) -> Key | None:
    return one(Key, await tx.row(queries.get_key, id))


async def list_keys(tx: Transaction, position: Position | None, limit: int, member_id: UUID | None = None) -> Page[Key]:
    rows = await tx.rows(queries.list_keys, *after(position), limit + 1, member_id)
    return page(Key, rows, limit)


async def revoke_key(tx: Transaction, id: UUID) -> list[UUID]:
    """Which keys ended: it, and those that were made with it."""
    return [row["id"] for row in await tx.rows(queries.revoke_key, id)]


async def revoke_keys(tx: Transaction, member_id: UUID) -> list[UUID]:
    return [row["id"] for row in await tx.rows(queries.revoke_keys, member_id)]


async def key_maker(tx: Transaction, id: UUID) -> UUID | None:
    """The member who made a service's key."""
    member_id: UUID | None = await tx.value(queries.key_maker, id)
    return member_id


async def key_origin(tx: Transaction, credential_id: UUID) -> tuple[UUID | None, bool] | None:
    """The key behind a key or a browser session, and whether it works; None where there is no such credential."""
    row = await tx.row(queries.key_origin, credential_id)
    return None if row is None else (row["key_id"], row["works"])


async def resolve_link(db: Database, secret_hash: bytes) -> tuple[UUID, UUID] | None:
    """The org and the id of a link."""
    rows = await db.call("resolve_login_link", None, db.credential_key.lookup(secret_hash))
    return (rows[0]["org_id"], rows[0]["id"]) if rows else None


async def authenticate_session(db: Database, secret_hash: bytes, idle: timedelta, touch: bool) -> Actor | None:
    """Raises ``Forged`` where the row of the session is not the plane's."""
    key = db.credential_key
    rows = await db.call("authenticate_browser", None, key.lookup(secret_hash), idle, touch)
    if not rows:
        return None
    (row,) = rows
    key.require(MacKind.BROWSER_SESSION, row, row["mac"])
    return session_person(row["org_id"], row["id"], row["user_account_id"], row["name"], row)


def session_person(org_id: UUID, session_id: UUID, account: UUID, name: str, row: Row) -> Actor:
    return Actor(
        org_id=org_id,
        key_id=session_id,
        kind=ActorKind.PERSON,
        name=name,
        roles=frozenset(Role(role) for role in row["roles"]),
        user_account_id=account,
        clearance=row["clearance"],
    )


async def insert_link(
    tx: Transaction, id: UUID, member_id: UUID, secret_hash: bytes, life: timedelta, issued_by: str, key_id: UUID | None
) -> datetime:
    expires_at = await ends_after(tx, life)
    lookup = tx.credential_key.lookup(secret_hash)
    mac = _link_mac(tx, MacKind.LOGIN_LINK, id, member_id, key_id, expires_at, lookup)
    await tx.rows(queries.insert_link, tx.org, id, member_id, lookup, expires_at, issued_by, key_id, mac)
    return expires_at


def _link_mac(
    tx: Transaction, kind: MacKind, id: UUID, member_id: UUID, key_id: UUID | None, expires_at: datetime, lookup: bytes
) -> bytes:  # fmt: skip
    written = {
        "org_id": tx.org, "id": id, "user_account_id": member_id, "key_id": key_id, "expires_at": expires_at,
        "secret_hash": lookup,
    }  # fmt: skip
    return tx.credential_key.mac(kind, written)


async def link_member(tx: Transaction, id: UUID) -> UUID | None:
    """Raises ``Forged`` where the row of the link is not the plane's."""
    row = await tx.row(queries.link_member, id)
    if row is None:
        return None
    tx.credential_key.require(MacKind.LOGIN_LINK, row, row["mac"])
    member_id: UUID = row["user_account_id"]
    return member_id


async def link_holder(tx: Transaction, id: UUID) -> str | None:
    """As ``link_member``, by name, while the link works."""
    row = await tx.row(queries.link_holder, id)
    if row is None:
        return None
    tx.credential_key.require(MacKind.LOGIN_LINK, row, row["mac"])
    name: str = row["display_name"]
    return name


@dataclass(frozen=True, kw_only=True, slots=True)
class UsedLink:
    """Whom a link logs in, who made it, and with which key."""

    actor: Actor
    issued_by: str
    key_id: UUID | None


async def use_link(tx: Transaction, id: UUID, session_id: UUID) -> UsedLink | None:
    """None where it was used, is too old, its key was revoked or has expired, or its person is deactivated."""
    row = await tx.row(queries.use_link, id)
    if row is None:
        return None
    actor = session_person(tx.org, session_id, row["id"], row["display_name"], row)
    return UsedLink(actor=actor, issued_by=row["issued_by"], key_id=row["key_id"])


async def insert_session(
    tx: Transaction, id: UUID, member_id: UUID, secret_hash: bytes, life: timedelta, key_id: UUID | None = None
) -> None:
    """``key_id``: the key that it came from, and with which it ends."""
    expires_at = await ends_after(tx, life)
    lookup = tx.credential_key.lookup(secret_hash)
    mac = _link_mac(tx, MacKind.BROWSER_SESSION, id, member_id, key_id, expires_at, lookup)
    await tx.rows(queries.insert_session, tx.org, id, member_id, lookup, expires_at, key_id, mac)


async def list_sessions(
    tx: Transaction, member_id: UUID, position: Position | None, limit: int, idle: timedelta
) -> Page[BrowserSession]:
    rows = await tx.rows(queries.list_sessions, *after(position), limit + 1, member_id, idle)
    return page(BrowserSession, rows, limit)


async def end_session(tx: Transaction, id: UUID, member_id: UUID) -> bool:
    return await tx.value(queries.end_session, id, member_id) is not None


async def end_sessions_of_keys(tx: Transaction, key_ids: Sequence[UUID]) -> int:
    """Every session and every unused link that came from these keys; returns how many sessions."""
    await end_links_of_keys(tx, key_ids)
    return len(await tx.rows(queries.end_sessions_of_keys, key_ids))


async def end_links_of_keys(tx: Transaction, key_ids: Sequence[UUID]) -> None:
    await tx.rows(queries.end_links_of_keys, key_ids)


async def delete_session(tx: Transaction, id: UUID) -> bool:
    return await tx.value(queries.delete_session, id) is not None


async def forget_ended_logins(tx: Transaction, member_id: UUID, idle: timedelta) -> None:
    """Drop what is over anyway."""
    await forget_links(tx, member_id)
    await forget_sessions(tx, member_id, idle)


async def forget_links(tx: Transaction, member_id: UUID) -> None:
    await tx.rows(queries.forget_links, member_id)


async def forget_sessions(tx: Transaction, member_id: UUID, idle: timedelta) -> None:
    await tx.rows(queries.forget_sessions, member_id, idle)


async def end_sessions(tx: Transaction, member_id: UUID, but: UUID | None = None) -> list[UUID]:
    """All of a member's, but the one that they are in; which ones."""
    return ids(await tx.rows(queries.end_sessions, member_id, but))


async def end_links(tx: Transaction, member_id: UUID) -> list[UUID]:
    return ids(await tx.rows(queries.end_links, member_id))


async def resolve_enrolment_code(db: Database, code_hash: bytes) -> tuple[UUID, UUID] | None:
    """The org and the id of a code."""
    rows = await db.call("resolve_enrolment_code", None, db.credential_key.lookup(code_hash))
    return (rows[0]["org_id"], rows[0]["id"]) if rows else None


async def insert_enrolment_code(
    tx: Transaction, id: UUID, member_id: UUID, code_hash: bytes, issuer: Actor, life: timedelta
) -> datetime:
    expires_at = await ends_after(tx, life)
    written = {
        "org_id": tx.org, "id": id, "user_account_id": member_id, "issuer_id": issuer.identity,
        "key_id": issuer.key_id, "expires_at": expires_at, "code_hash": tx.credential_key.lookup(code_hash),
    }  # fmt: skip
    await tx.rows(
        queries.insert_enrolment_code, tx.org, id, member_id, written["code_hash"], issuer.identity, issuer.name,
        issuer.key_id, expires_at, tx.credential_key.mac(MacKind.ENROLMENT_CODE, written),
    )  # fmt: skip
    return expires_at


async def void_enrolment_codes(tx: Transaction, member_id: UUID) -> list[UUID]:
    """Every code that this member has not redeemed; which ones."""
    return ids(await tx.rows(queries.void_enrolment_codes, member_id))


async def end_enrolment_codes_of_keys(tx: Transaction, key_ids: Sequence[UUID]) -> list[UUID]:
    """Every code that was made with these keys and that nobody has redeemed; which ones."""
    return ids(await tx.rows(queries.end_enrolment_codes_of_keys, key_ids))


async def show_enrolment_code(tx: Transaction, id: UUID) -> Enrolment | None:
    """Raises ``Forged`` where the row of the code is not the plane's."""
    row = await tx.row(queries.show_enrolment_code, id)
    if row is not None:
        tx.credential_key.require(MacKind.ENROLMENT_CODE, row, row["mac"])
    return one(Enrolment, row)


async def use_enrolment_code(tx: Transaction, id: UUID) -> UUID | None:
    """Whoever handed it over; None where it was used, or is too old."""
    issuer_id: UUID | None = await tx.value(queries.use_enrolment_code, id)
    return issuer_id


def _model_key_purpose(provider: Provider) -> str:
    """What a key is sealed for: it opens for nothing else."""
    return f"model key {provider.value}"


async def list_model_keys(tx: Transaction) -> list[ModelKey]:
    return [parse(ModelKey, row) for row in await tx.rows(queries.list_model_keys)]


async def get_model_key(tx: Transaction, provider: Provider) -> ModelKey | None:
    return one(ModelKey, await tx.row(queries.get_model_key, provider))


async def put_model_key(tx: Transaction, db: Database, provider: Provider, key: str, set_by: str) -> ModelKey:
    sealed = await db.seal(tx, _model_key_purpose(provider), key.encode())
    (row,) = await tx.rows(queries.put_model_key, tx.org, provider, sealed, key[-4:], set_by)
    return parse(ModelKey, row)


async def remove_model_key(tx: Transaction, provider: Provider) -> bool:
    return await tx.value(queries.remove_model_key, provider) is not None


async def open_model_key(tx: Transaction, vault: Vault, provider: Provider) -> str | None:
    """The key itself."""
    sealed: bytes | None = await tx.value(queries.open_model_key, provider)
    return None if sealed is None else vault.open(tx.org, _model_key_purpose(provider), sealed).decode()
