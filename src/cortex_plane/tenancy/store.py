"""Orgs, people, their credentials and channels in SQL. Of a secret only its lookup and its last characters are written.

Statements that return nothing to map are run by their verbs, with ``queries``."""

from __future__ import annotations

import collections.abc
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import orjson

from cortex_plane.db.database import Database, Queries, Row, Transaction, after, many, one, page
from cortex_plane.db.vault import Vault
from cortex_plane.kernel.fields import parse, split_ref
from cortex_plane.kernel.ids import IdempotencyKey
from cortex_plane.kernel.pages import After, Page
from cortex_plane.notify.model.channels import ConnectionIdentity
from cortex_plane.tenancy.model import access
from cortex_plane.tenancy.model.access import Actor, CredentialKey, Key, MacKind, ModelKey
from cortex_plane.tenancy.model.identities import (
    ACCOUNT_LINK_LIFE,
    CLAIM_LIFE,
    AccountLink,
    AddressVerification,
    Claim,
    Connection,
    LinkClaim,
    Mapping,
    Purpose,
    state_digest,
)
from cortex_plane.tenancy.model.orgs import Absence, Member, Org, Role, Team

queries = Queries("tenancy")


async def insert_org(tx: Transaction, id: UUID, slug: str, name: str, settings: dict[str, Any]) -> Org:
    (row,) = await tx.rows(queries.insert_org, id, slug, name, settings, in_force_mac(tx, 0))
    return parse(Org, row)


async def get_org(tx: Transaction) -> Org | None:
    """The org of the transaction: the only one that it can see."""
    return one(Org, await tx.row(queries.get_org))


async def list_orgs(db: Database, position: After, limit: int) -> Page[Org]:
    """Across orgs, for platform keys: the one list that no transaction of an org can give."""
    return page(Org, await db.call("list_orgs", None, *after(position), limit + 1), limit)


def in_force_mac(tx: Transaction, version: int) -> bytes:
    return tx.credential_key.mac(MacKind.POLICY_IN_FORCE, {"org_id": tx.org, "policy_version": version})


async def insert_team(tx: Transaction, id: UUID, slug: str, name: str, parent_id: UUID | None) -> Team:
    (row,) = await tx.rows(queries.insert_team, tx.org, id, slug, name, parent_id)
    return parse(Team, row)


async def get_team(tx: Transaction, ref: str) -> Team | None:
    return one(Team, await tx.row(queries.get_team, *split_ref(ref)))


async def find_teams(tx: Transaction, refs: list[str]) -> dict[str, UUID]:
    """The ids of the teams that exist, by the reference they were asked with."""
    ids = [id for id, _ in map(split_ref, refs) if id is not None]
    slugs = [slug for _, slug in map(split_ref, refs) if slug is not None]
    team_ids: dict[str, UUID] = {}
    for row in await tx.rows(queries.find_teams, ids, slugs):
        team_ids[str(row["id"])] = row["id"]
        team_ids[row["slug"]] = row["id"]
    return team_ids


async def list_teams(tx: Transaction, position: After, limit: int) -> Page[Team]:
    return page(Team, await tx.rows(queries.list_teams, *after(position), limit + 1), limit)


async def get_member(tx: Transaction, id: UUID) -> Member | None:
    return one(Member, await tx.row(queries.get_member, id))


async def list_members(tx: Transaction, position: After, limit: int, role: Role | None = None) -> Page[Member]:
    return page(Member, await tx.rows(queries.list_members, *after(position), limit + 1, role), limit)


async def set_teams(tx: Transaction, id: UUID, team_ids: list[UUID]) -> None:
    await tx.rows(queries.leave_teams, id)
    await tx.rows(queries.join_teams, tx.org, id, team_ids)


async def get_absence(tx: Transaction, id: UUID, member_id: UUID | None = None) -> Absence | None:
    """With a ``member_id``, only theirs."""
    return one(Absence, await tx.row(queries.get_absence, id, member_id))


async def claim_idempotency_key(
    tx: Transaction, caller: UUID, verb: str, once: IdempotencyKey
) -> dict[str, Any] | None:
    """None when the key is new; the earlier result when it was used for the same request."""
    earlier: dict[str, Any] | None = await tx.value(
        queries.claim_idempotency_key, tx.org, caller, verb, once.key, once.fingerprint
    )
    return earlier


async def settle_idempotency_key(
    tx: Transaction, caller: UUID, verb: str, once: IdempotencyKey, result: dict[str, Any]
) -> None:
    await tx.rows(queries.settle_idempotency_key, tx.org, caller, verb, once.key, result)


async def take_requests(
    db: Database, org_id: UUID, subjects: Sequence[UUID], want: int, per_second: float, burst: float
) -> tuple[int, float]:
    """How many were taken, at most ``want``; and where there are none, after how many seconds there is one."""
    (row,) = await db.call("take_requests", org_id, list(subjects), want, per_second, burst)
    return row["granted"], row["wait_seconds"]


def _mac(tx: Transaction, kind: MacKind, /, **columns: Any) -> bytes:
    return tx.credential_key.mac(kind, {"org_id": tx.org, **columns})


async def _verified_row(tx: Transaction, kind: MacKind, query: str, *args: Any) -> Row | None:
    """The row of a query. Raises ``Forged`` if the plane did not write it as it stands."""
    row = await tx.row(query, *args)
    if row is not None:
        tx.credential_key.require(kind, row, row["mac"])
    return row


async def ends_after(tx: Transaction, life: timedelta) -> datetime:
    """When something ends that lives for so long from now. The MAC covers it, so it is known before the row is written."""
    now: datetime = await tx.value(queries.database_time)
    return now + life


CREDENTIALS: Final[collections.abc.Mapping[MacKind, tuple[str, str, str]]] = {
    MacKind.KEY: (queries.stream_api_keys, "api_key", "secret_hash"),
    MacKind.BROWSER_SESSION: (queries.stream_browser_sessions, "browser_session", "secret_hash"),
    MacKind.LOGIN_LINK: (queries.stream_login_links, "login_link", "secret_hash"),
    MacKind.ENROLMENT_CODE: (queries.stream_enrolment_codes, "enrolment_code", "code_hash"),
    MacKind.APPROVAL_TOKEN: (queries.stream_approval_tokens, "approval_token", "token_hash"),
    MacKind.IDENTITY_CODE: (queries.stream_identity_codes, "identity_code", "code_hash"),
}
"""The query for the rows of each kind of credential, their table, and the column that they are found by."""

_QUERIES: Final[collections.abc.Mapping[MacKind, str]] = {
    **{kind: query for kind, (query, _, _) in CREDENTIALS.items()},
    MacKind.MAPPING: queries.stream_mappings,
    MacKind.ATLAS_VERSION: queries.stream_atlas_versions,
}

PEOPLE: Final = (*CREDENTIALS, MacKind.MAPPING)
"""The kinds of rows that lead to a person."""


def stream_rows(
    tx: Transaction, kind: MacKind, *, without_mac: bool = False, limit: int | None = None
) -> AsyncIterator[Row]:
    """The rows of a kind; with ``without_mac`` only those that have no MAC. Their column `live` says whether a row is in use:
    not revoked, used or removed."""
    return tx.stream(_QUERIES[kind], without_mac, limit)


CONVERTED_AT_ONCE = 500


async def convert_some(tx: Transaction) -> int:
    """Gives some rows of the org their lookups and MACs, but for policies; how many. 0 where none is left."""
    count = await convert_mappings(tx)
    for kind, (_, table, column) in CREDENTIALS.items():
        rows = await _rows_without_mac(tx, kind)
        if rows:
            lookups = [tx.credential_key.lookup(row[column]) for row in rows]
            new_rows = [{**row, column: lookup} for row, lookup in zip(rows, lookups, strict=True)]
            ids, macs = [row["id"] for row in rows], [tx.credential_key.mac(kind, row) for row in new_rows]
            await tx.call("convert_credentials", tx.org, table, ids, lookups, macs)
        count += len(rows)
    rows = await _rows_without_mac(tx, MacKind.ATLAS_VERSION)
    macs = [tx.credential_key.mac(MacKind.ATLAS_VERSION, row) for row in rows]
    await tx.rows(queries.sign_atlases, [row["atlas_id"] for row in rows], [row["version"] for row in rows], macs)
    return count + len(rows)


async def convert_mappings(tx: Transaction) -> int:
    rows = await _rows_without_mac(tx, MacKind.MAPPING)
    macs = [tx.credential_key.mac(MacKind.MAPPING, row) for row in rows]
    await tx.rows(queries.sign_mappings, [row["id"] for row in rows], macs)
    return len(rows)


async def _rows_without_mac(tx: Transaction, kind: MacKind) -> list[Row]:
    return [row async for row in stream_rows(tx, kind, without_mac=True, limit=CONVERTED_AT_ONCE)]


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


async def insert_key(
    tx: Transaction,
    id: UUID,
    name: str,
    kind: access.KeyKind,
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
    lookup = tx.credential_key.lookup(access.secret_digest(secret))
    mac = _mac(
        tx, MacKind.KEY, id=id, user_account_id=member_id, kind=kind, roles=list(roles),
        permissions=list(permissions), platform=platform, expires_at=expires_at, secret_hash=lookup,
    )  # fmt: skip
    (row,) = await tx.rows(
        queries.insert_key, tx.org, id, name, kind, member_id, roles, platform, lookup, secret[-4:], expires_at,
        made_with, list(permissions), made_by, mac,
    )  # fmt: skip
    return parse(Key, row)


async def get_key(tx: Transaction, id: UUID) -> Key | None:
    return one(Key, await tx.row(queries.get_key, id))


async def list_keys(tx: Transaction, position: After, limit: int, member_id: UUID | None = None) -> Page[Key]:
    return page(Key, await tx.rows(queries.list_keys, *after(position), limit + 1, member_id), limit)


async def key_origin(tx: Transaction, credential_id: UUID) -> tuple[UUID | None, bool] | None:
    """The key behind a key or a browser session, and whether it works; None where there is no such credential."""
    row = await tx.row(queries.key_origin, credential_id)
    return None if row is None else (row["key_id"], row["works"])


_RESOLVERS: Final = {
    access.SecretKind.LOGIN_LINK: "resolve_login_link",
    access.SecretKind.ENROLMENT_CODE: "resolve_enrolment_code",
    access.SecretKind.ADDRESS_CODE: "resolve_identity_code",
}


async def resolve_secret(db: Database, kind: access.SecretKind, secret: str) -> tuple[UUID, UUID] | None:
    """The org and the id of a link or code. What is not even shaped like one is not looked up."""
    if not kind.matches(secret):
        return None
    rows = await db.call(_RESOLVERS[kind], None, db.credential_key.lookup(access.secret_digest(secret)))
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
        kind=access.ActorKind.PERSON,
        name=name,
        roles=frozenset(Role(role) for role in row["roles"]),
        user_account_id=account,
        clearance=row["clearance"],
    )


async def insert_link(
    tx: Transaction, id: UUID, member_id: UUID, secret: str, life: timedelta, issued_by: str, key_id: UUID | None
) -> datetime:
    expires_at, lookup = await ends_after(tx, life), tx.credential_key.lookup(access.secret_digest(secret))
    mac = _mac(
        tx, MacKind.LOGIN_LINK, id=id, user_account_id=member_id, key_id=key_id, expires_at=expires_at, secret_hash=lookup
    )  # fmt: skip
    await tx.rows(queries.insert_link, tx.org, id, member_id, lookup, expires_at, issued_by, key_id, mac)
    return expires_at


async def link_member(tx: Transaction, id: UUID) -> UUID | None:
    row = await _verified_row(tx, MacKind.LOGIN_LINK, queries.link_member, id)
    return None if row is None else row["user_account_id"]


async def link_holder(tx: Transaction, id: UUID) -> str | None:
    """As ``link_member``, by name, while the link works."""
    row = await _verified_row(tx, MacKind.LOGIN_LINK, queries.link_holder, id)
    return None if row is None else row["display_name"]


async def insert_session(
    tx: Transaction, id: UUID, member_id: UUID, secret: str, life: timedelta, key_id: UUID | None = None
) -> None:
    """``key_id``: the key that it came from, and with which it ends."""
    expires_at, lookup = await ends_after(tx, life), tx.credential_key.lookup(access.secret_digest(secret))
    mac = _mac(
        tx, MacKind.BROWSER_SESSION, id=id, user_account_id=member_id, key_id=key_id, expires_at=expires_at, secret_hash=lookup
    )  # fmt: skip
    await tx.rows(queries.insert_session, tx.org, id, member_id, lookup, expires_at, key_id, mac)


async def list_sessions(
    tx: Transaction, member_id: UUID, position: After, limit: int, idle: timedelta
) -> Page[access.BrowserSession]:
    rows = await tx.rows(queries.list_sessions, *after(position), limit + 1, member_id, idle)
    return page(access.BrowserSession, rows, limit)


async def forget_ended_logins(tx: Transaction, member_id: UUID, idle: timedelta) -> None:
    """Drop links and sessions that are over anyway."""
    await tx.rows(queries.forget_links, member_id)
    await tx.rows(queries.forget_sessions, member_id, idle)


async def insert_enrolment_code(
    tx: Transaction, id: UUID, member_id: UUID, code: str, issuer: Actor, life: timedelta
) -> datetime:
    expires_at, lookup = await ends_after(tx, life), tx.credential_key.lookup(access.secret_digest(code))
    mac = _mac(
        tx, MacKind.ENROLMENT_CODE, id=id, user_account_id=member_id, issuer_id=issuer.identity, key_id=issuer.key_id,
        expires_at=expires_at, code_hash=lookup,
    )  # fmt: skip
    await tx.rows(
        queries.insert_enrolment_code, tx.org, id, member_id, lookup, issuer.identity, issuer.name, issuer.key_id,
        expires_at, mac,
    )  # fmt: skip
    return expires_at


async def show_enrolment_code(tx: Transaction, id: UUID) -> access.Enrolment | None:
    return one(access.Enrolment, await _verified_row(tx, MacKind.ENROLMENT_CODE, queries.show_enrolment_code, id))


def _model_key_purpose(provider: access.Provider) -> str:
    """What a key is sealed for: it opens for nothing else."""
    return f"model key {provider.value}"


async def list_model_keys(tx: Transaction) -> list[ModelKey]:
    return [parse(ModelKey, row) for row in await tx.rows(queries.list_model_keys)]


async def get_model_key(tx: Transaction, provider: access.Provider) -> ModelKey | None:
    return one(ModelKey, await tx.row(queries.get_model_key, provider))


async def put_model_key(tx: Transaction, db: Database, provider: access.Provider, key: str, set_by: str) -> ModelKey:
    sealed = await db.seal(tx, _model_key_purpose(provider), key.encode())
    (row,) = await tx.rows(queries.put_model_key, tx.org, provider, sealed, key[-4:], set_by)
    return parse(ModelKey, row)


async def open_model_key(tx: Transaction, vault: Vault, provider: access.Provider) -> str | None:
    """The key itself."""
    sealed: bytes | None = await tx.value(queries.open_model_key, provider)
    return None if sealed is None else vault.open(tx.org, _model_key_purpose(provider), sealed).decode()


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


async def seal_secret(tx: Transaction, db: Database, id: UUID, secrets: dict[str, str]) -> bytes:
    return await db.seal(tx, f"connection/{id}", orjson.dumps(secrets))


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
    config: collections.abc.Mapping[str, str],
    sealed: bytes | None = None,
    agent_id: UUID | None = None,
    identity: ConnectionIdentity | None = None,
) -> None:
    await tx.rows(
        queries.insert_connection, tx.org, id, channel_type, name, dict(config), sealed, agent_id,
        identity.account if identity else None, identity.external_id if identity else None,
        list(identity.to_do) if identity else [],
    )  # fmt: skip


async def get_connection(tx: Transaction, id: UUID) -> Connection | None:
    row = await tx.row(queries.get_connection, id)
    return None if row is None else parse(Connection, _with_health(row, await _open_messages(tx)))


async def list_connections(tx: Transaction, position: After, limit: int) -> Page[Connection]:
    rows = await tx.rows(queries.list_connections, *after(position), limit + 1)
    messages = await _open_messages(tx) if rows else {}
    return page(Connection, [_with_health(row, messages) for row in rows], limit)


async def _open_messages(tx: Transaction) -> dict[UUID, Row]:
    """By connection: what has not arrived."""
    return {row["connection_id"]: row for row in await tx.rows(queries.connection_health, tx.org)}


_HEALTH: Final = ("last_inbound_at", "last_outbound_at", "paused_until", "pause_reason")


def _with_health(row: Row, messages: collections.abc.Mapping[UUID, Row]) -> Row:
    health = {name: row[name] for name in _HEALTH} | dict(messages.get(row["id"], {}))
    health.pop("connection_id", None)
    return {name: value for name, value in row.items() if name not in _HEALTH} | {"health": health}


async def sealed_connection(tx: Transaction, id: UUID) -> SealedConnection | None:
    return one(SealedConnection, await tx.row(queries.sealed_connection, id))


async def get_connection_name(tx: Transaction, name: str) -> SealedConnection | None:
    """By its name or its id; where several have the name, the webhook."""
    return one(SealedConnection, await tx.row(queries.get_connection_name, name))


async def lock_connection(tx: Transaction, id: UUID) -> SealedConnection | None:
    """As ``sealed_connection``, for a transaction that changes it."""
    return one(SealedConnection, await tx.row(queries.lock_connection, id))


async def claims(tx: Transaction, connection_id: UUID, sender: str) -> Sequence[Claim]:
    return [parse(Claim, row) for row in await tx.rows(queries.claims, tx.org, connection_id, sender)]


def mapping_mac(
    key: CredentialKey, org_id: UUID, id: UUID, connection_id: UUID, member_id: UUID, sender: str, *, verified: bool = True
) -> bytes:  # fmt: skip
    written = {
        "org_id": org_id, "id": id, "connection_id": connection_id, "channel_user_id": sender,
        "user_account_id": member_id, "verified": verified,
    }  # fmt: skip
    return key.mac(MacKind.MAPPING, written)


async def insert_mapping(
    tx: Transaction, id: UUID, connection_id: UUID, member_id: UUID, sender: str, purpose: Purpose
) -> None:
    """A sender who typed a code has proven it with that; an address is only claimed."""
    verified = purpose is Purpose.SENDER
    mac = mapping_mac(tx.credential_key, tx.org, id, connection_id, member_id, sender, verified=verified)
    await tx.rows(
        queries.insert_mapping, tx.org, id, connection_id, member_id, sender, {"purpose": purpose}, verified, mac
    )


async def insert_claim(
    tx: Transaction, id: UUID, connection_id: UUID, member_id: UUID, sender: str, metadata: dict[str, str]
) -> None:
    """A sender who had the member's code; nothing is theirs before the member confirms it."""
    mac = mapping_mac(tx.credential_key, tx.org, id, connection_id, member_id, sender, verified=False)
    values = (tx.org, id, connection_id, member_id, sender, {"purpose": Purpose.SENDER, **metadata}, mac)
    await tx.rows(queries.insert_claim, *values)


async def list_claims(tx: Transaction, member_id: UUID) -> list[LinkClaim]:
    return many(LinkClaim, await tx.rows(queries.list_claims, member_id, CLAIM_LIFE))


async def begin_account_link(
    tx: Transaction, connection_id: UUID, member_id: UUID, session_id: UUID, id: UUID, state: str
) -> None:
    expires_at, state_hash = await ends_after(tx, ACCOUNT_LINK_LIFE), tx.credential_key.lookup(state_digest(state))
    mac = _mac(
        tx, MacKind.ACCOUNT_LINK, id=id, connection_id=connection_id, user_account_id=member_id, session_id=session_id,
        state_hash=state_hash, account_id=None, login=None, expires_at=expires_at,
    )  # fmt: skip
    await tx.rows(queries.forget_account_links, member_id)
    await tx.rows(
        queries.begin_account_link, tx.org, id, connection_id, member_id, session_id, state_hash, expires_at, mac
    )


async def open_account_link(
    tx: Transaction, connection_id: UUID, session_id: UUID, member_id: UUID
) -> AccountLink | None:
    return one(
        AccountLink,
        await _verified_row(
            tx, MacKind.ACCOUNT_LINK, queries.open_account_link, connection_id, session_id, member_id
        ),
    )  # fmt: skip


async def name_account(tx: Transaction, link: AccountLink, account_id: str, login: str) -> bool:
    """The account that the vendor named; False where the link is over or has one."""
    mac = _mac(
        tx, MacKind.ACCOUNT_LINK, id=link.id, connection_id=link.connection_id, user_account_id=link.user_account_id,
        session_id=link.session_id, state_hash=link.state_hash, account_id=account_id, login=login, expires_at=link.expires_at,
    )  # fmt: skip
    return await tx.value(queries.name_account, link.id, account_id, login, mac) is not None


async def get_mapping(tx: Transaction, id: UUID) -> Mapping | None:
    return one(Mapping, await tx.row(queries.get_mapping, id))


async def list_mappings(tx: Transaction, user_account_id: UUID, position: After, limit: int) -> Page[Mapping]:
    rows = await tx.rows(queries.list_mappings, *after(position), limit + 1, user_account_id, CLAIM_LIFE)
    return page(Mapping, rows, limit)


async def verified_mapping(tx: Transaction, connection_id: UUID, channel_user_id: str) -> Mapping | None:
    """Whose this name is on this connection."""
    return one(
        Mapping, await _verified_row(tx, MacKind.MAPPING, queries.verified_mapping, connection_id, channel_user_id)
    )


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
    expires_at, lookup = await ends_after(tx, life), tx.credential_key.lookup(code_hash)
    mac = _mac(
        tx, MacKind.IDENTITY_CODE, id=id, user_account_id=member_id, mapping_id=mapping_id, purpose=purpose,
        expires_at=expires_at, code_hash=lookup,
    )  # fmt: skip
    await tx.rows(queries.insert_code, tx.org, id, member_id, mapping_id, lookup, purpose, issued_by, expires_at, mac)
    return expires_at


async def show_code(tx: Transaction, id: UUID) -> AddressVerification | None:
    return one(AddressVerification, await _verified_row(tx, MacKind.IDENTITY_CODE, queries.show_code, id))


async def use_sender_code(tx: Transaction, code_hash: bytes) -> Row | None:
    """The code's id, and whose it is."""
    lookup = tx.credential_key.lookup(code_hash)
    return await _verified_row(tx, MacKind.IDENTITY_CODE, queries.use_sender_code, tx.org, lookup)
