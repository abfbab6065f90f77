"""Orgs, teams, members and absences in SQL; idempotency keys and request budgets."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from cortex_plane.db.database import Database, Queries, Row, Transaction, after, one, page
from cortex_plane.kernel.fields import parse, split_ref
from cortex_plane.kernel.ids import IdempotencyKey
from cortex_plane.kernel.pages import Page, Position
from cortex_plane.tenancy.model.orgs import Absence, Member, Org, Span, Team
from cortex_plane.tenancy.rules import MacKind

queries = Queries("tenancy")


async def insert_org(tx: Transaction, id: UUID, slug: str, name: str, settings: dict[str, Any]) -> Org:
    (row,) = await tx.rows(queries.insert_org, id, slug, name, settings, in_force_mac(tx, 0))
    return parse(Org, row)


async def get_org(tx: Transaction) -> Org | None:
    """The org of the transaction: the only one that it can see."""
    return one(Org, await tx.row(queries.get_org))


async def update_org(
    tx: Transaction, revision: int | None, name: str | None, settings: dict[str, Any] | None
) -> Org | None:
    return one(Org, await tx.row(queries.update_org, revision, name, settings))


async def list_orgs(db: Database, position: Position | None, limit: int) -> Page[Org]:
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


async def list_teams(tx: Transaction, position: Position | None, limit: int) -> Page[Team]:
    return page(Team, await tx.rows(queries.list_teams, *after(position), limit + 1), limit)


async def update_team(tx: Transaction, id: UUID, revision: int | None, name: str) -> Team | None:
    return one(Team, await tx.row(queries.update_team, id, revision, name))


async def team_usage(tx: Transaction, id: UUID) -> dict[str, int]:
    (row,) = await tx.rows(queries.team_usage, id)
    return dict(row)


async def delete_team(tx: Transaction, id: UUID) -> bool:
    return await tx.value(queries.delete_team, id) is not None


async def insert_member(
    tx: Transaction, id: UUID, display_name: str, clearance: int, roles: Sequence[str], sponsors: Sequence[UUID] = ()
) -> None:
    """``sponsors``: whoever adds them. Until they have proven a channel of their own they count as one human with those."""
    await tx.rows(queries.insert_member, tx.org, id, display_name, clearance, roles, list(sponsors))


async def add_sponsor(tx: Transaction, id: UUID, sponsor: UUID) -> None:
    await tx.rows(queries.add_sponsor, id, sponsor)


async def has_proven_channel(tx: Transaction, id: UUID) -> bool:
    return bool(await tx.value(queries.has_proven_channel, tx.org, id))


async def get_member(tx: Transaction, id: UUID) -> Member | None:
    return one(Member, await tx.row(queries.get_member, id))


async def list_members(tx: Transaction, position: Position | None, limit: int, role: str | None) -> Page[Member]:
    return page(Member, await tx.rows(queries.list_members, *after(position), limit + 1, role), limit)


async def update_member(
    tx: Transaction,
    id: UUID,
    display_name: str | None,
    clearance: int | None,
    roles: Sequence[str] | None,
    active: bool | None,
) -> None:
    await tx.rows(queries.update_member, id, display_name, clearance, roles, active)


async def first_admin(tx: Transaction) -> UUID | None:
    id: UUID | None = await tx.value(queries.first_admin)
    return id


async def lock_with_admins(tx: Transaction, id: UUID) -> Sequence[Row]:
    return await tx.rows(queries.lock_with_admins, id)


async def hold_access(tx: Transaction, id: UUID) -> None:
    """Until this transaction ends nobody else makes or ends a credential of this member."""
    await tx.rows(queries.hold_access, id)


async def leave_teams(tx: Transaction, id: UUID) -> None:
    await tx.rows(queries.leave_teams, id)


async def join_teams(tx: Transaction, id: UUID, team_ids: list[UUID]) -> None:
    await tx.rows(queries.join_teams, tx.org, id, team_ids)


async def set_teams(tx: Transaction, id: UUID, team_ids: list[UUID]) -> None:
    await leave_teams(tx, id)
    await join_teams(tx, id, team_ids)


async def hold_people(tx: Transaction, ids: Sequence[UUID]) -> Sequence[Row]:
    return await tx.rows(queries.hold_people, list(ids))


async def lock_absences(tx: Transaction) -> None:
    await tx.rows(queries.lock_absences, tx.org)


async def count_overlapping_absences(tx: Transaction, span: Span) -> int:
    """How many absences the person has in that time already."""
    count: int = await tx.value(queries.count_overlapping_absences, span.member_id, span.starts_at, span.ends_at)
    return count


async def list_delegates_absent(tx: Transaction, span: Span) -> list[Span]:
    rows = await tx.rows(queries.list_delegates_absent, span.delegate_id, span.starts_at, span.ends_at)
    return [parse(Span, row) for row in rows]


async def insert_absence(tx: Transaction, id: UUID, span: Span, reason: str | None, created_by: str) -> None:
    await tx.rows(
        queries.insert_absence, tx.org, id, span.member_id, span.delegate_id, span.starts_at, span.ends_at, reason, created_by
    )  # fmt: skip


async def get_absence(tx: Transaction, id: UUID, member_id: UUID | None = None) -> Absence | None:
    """With a ``member_id``, only theirs."""
    return one(Absence, await tx.row(queries.get_absence, id, member_id))


async def list_absences(
    tx: Transaction, position: Position | None, limit: int, member_id: UUID | None, only_open: bool
) -> Page[Absence]:
    rows = await tx.rows(queries.list_absences, *after(position), limit + 1, member_id, only_open)
    return page(Absence, rows, limit)


async def cancel_absence(tx: Transaction, id: UUID) -> bool:
    return await tx.value(queries.cancel_absence, id) is not None


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


async def forget_request_budgets(db: Database, older: timedelta, limit: int) -> int:
    """Delete budgets that nobody took from for so long; returns how many, at most ``limit``."""
    (row,) = await db.call("forget_request_budgets", None, older, limit)
    forgotten: int = row["forget_request_budgets"]
    return forgotten
