"""Orgs, teams, members and absences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any
from uuid import UUID

from cortex_plane.db.database import Database, Row, Transaction, after, one, page
from cortex_plane.kernel.errors import Conflict, Forbidden, InUse, InvalidInput, NotFound, Stale
from cortex_plane.kernel.fields import parse, split_ref
from cortex_plane.kernel.ids import IdempotencyKey, new_id
from cortex_plane.kernel.pages import After, Page
from cortex_plane.tenancy import store as tenancy_store
from cortex_plane.tenancy.model import access as access_model
from cortex_plane.tenancy.model import orgs
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.model.identities import Mapping
from cortex_plane.tenancy.model.orgs import Absence, Org, OrgDraft, Role, Team
from cortex_plane.tenancy.store import queries
from cortex_plane.tenancy.verbs import frame, logins
from cortex_plane.tenancy.verbs.access import NOTHING_ENDED, end_access, new_secret, sponsors_by


@frame.verb(Permission.ORG_CREATE)
async def create_org(db: Database, actor: Actor, draft: OrgDraft) -> access_model.NewOrg:
    """With a code for its first admin to redeem. On the new org's trail the platform made it: whoever holds the key is nobody
    there."""
    outsider = replace(actor, kind=access_model.ActorKind.PLATFORM, user_account_id=None)
    async with db.transaction(new_id()) as tx:
        org, admin_id = await _create_org(tx, outsider, draft, [outsider.key_id])
        code = await logins.make_enrolment_code(tx, outsider, admin_id)
    return access_model.NewOrg(org=org, enrolment=code)


async def bootstrap_plane(db: Database, draft: OrgDraft) -> access_model.FirstOrg:
    """The first org of a new plane, whose admin holds a platform key. For whoever holds the database, not for a door."""
    secret, key_id = new_secret(access_model.SecretKind.KEY), new_id()
    async with db.transaction(new_id()) as tx:
        org, admin_id = await _create_org(tx, access_model.database_owner(tx.org), draft, [], key=key_id)
        key = await tenancy_store.insert_key(
            tx, key_id, "first key", access_model.KeyKind.PERSON, admin_id, [], secret, None, platform=True
        )
    return access_model.FirstOrg(org=org, key=access_model.NewKey(key=key, secret=secret))


async def _create_org(
    tx: Transaction, actor: Actor, draft: OrgDraft, sponsors: Sequence[UUID], *, key: UUID | None = None
) -> tuple[Org, UUID]:
    """An org with a first team and an admin; ``key``: the platform key that the admin gets."""
    admin_id, team_id = new_id(), new_id()
    org = await tenancy_store.insert_org(tx, tx.org, draft.slug, draft.name, _stated(orgs.OrgSettings()))
    await tenancy_store.insert_team(tx, team_id, "main", "Main", None)
    await tx.rows(queries.insert_member, tx.org, admin_id, draft.admin_name, 0, [Role.ADMIN], sponsors)
    await tenancy_store.set_teams(tx, admin_id, [team_id])
    await frame.record(
        tx, actor, "org_created", org=tx.org, slug=draft.slug, admin=admin_id, key=key, platform=key is not None
    )
    return org, admin_id


get_org = frame.get_verb(Permission.ORG_READ, tenancy_store.get_org, "org")


@frame.verb(Permission.ORG_CREATE)
async def list_orgs(db: Database, actor: Actor, position: After, limit: int) -> Page[Org]:  # noqa: ARG001
    return await tenancy_store.list_orgs(db, position, limit)


@frame.transaction_verb(Permission.ORG_WRITE)
async def update_org(tx: Transaction, actor: Actor, change: orgs.OrgChange, revision: int | None) -> Org:
    settings = _stated(change.settings) if change.settings else None
    org = one(Org, await tx.row(queries.update_org, revision, change.name, settings))
    if org is None:
        raise Stale(f"The org has changed since revision {revision}.")
    await frame.record(tx, actor, "org_changed", name=change.name, settings=settings)
    return org


def _stated(settings: orgs.OrgSettings | orgs.OrgSettingsChange) -> dict[str, Any]:
    """Without what nobody said anything about."""
    return {name: value for name, value in asdict(settings).items() if value is not None}


@frame.transaction_verb(Permission.TEAM_WRITE)
async def create_team(tx: Transaction, actor: Actor, draft: orgs.TeamDraft, once: IdempotencyKey | None = None) -> Team:
    async def make() -> UUID:
        parent = None
        if draft.parent is not None:
            parent = frame.require_found(await tenancy_store.get_team(tx, draft.parent), "team")
            if parent.parent_id is not None:
                raise InvalidInput(
                    f"The team {parent.slug} has a parent itself.",
                    code="team_too_deep",
                    hint="Teams have one level of parents: choose a team without one.",
                )
        team = await tenancy_store.insert_team(tx, new_id(), draft.slug, draft.name, parent.id if parent else None)
        await frame.record(tx, actor, "team_created", team=team.id, slug=team.slug, parent=draft.parent)
        return team.id

    id, _ = await frame.once_only(tx, actor, "teams.create", once, make)
    return frame.require_found(await tenancy_store.get_team(tx, str(id)), "team")


get_team = frame.get_verb(Permission.TEAM_READ, tenancy_store.get_team, "team")
list_teams = frame.read_verb(Permission.TEAM_READ, tenancy_store.list_teams)


@frame.transaction_verb(Permission.TEAM_WRITE)
async def update_team(tx: Transaction, actor: Actor, ref: str, change: orgs.TeamChange, revision: int | None) -> Team:
    team = frame.require_found(await tenancy_store.get_team(tx, ref), "team")
    new_team = one(Team, await tx.row(queries.update_team, team.id, revision, change.name))
    if new_team is None:
        frame.require_revision(frame.require_found(await tenancy_store.get_team(tx, ref), "team").revision, revision)
    await frame.record(tx, actor, "team_changed", team=team.id, name=change.name)
    return frame.require_found(new_team, "team")


@frame.transaction_verb(Permission.TEAM_WRITE)
async def delete_team(tx: Transaction, actor: Actor, ref: str) -> None:
    team = frame.require_found(await tenancy_store.get_team(tx, ref), "team")
    (usage,) = await tx.rows(queries.team_usage, team.id)
    if any(usage.values()):
        raise InUse(
            f"The team {team.slug} is in use by {usage['agents']} agents and {usage['teams']} teams.",
            hint="Move or delete them first.",
            used_by=dict(usage),
        )
    frame.require_found(await tx.value(queries.delete_team, team.id), "team")
    await frame.record(tx, actor, "team_deleted", team=team.id, slug=team.slug)


async def resolve_teams(tx: Transaction, refs: list[str]) -> list[UUID]:
    """The ids of all the named teams, or an error that lists the unknown ones."""
    team_ids = await tenancy_store.find_teams(tx, refs)
    names = {ref: str(split_ref(ref)[0] or ref) for ref in refs}  # an id has several spellings
    unknown = [ref for ref, name in names.items() if name not in team_ids]
    if unknown:
        raise NotFound(f"There is no team {', '.join(unknown)}.", code="team_not_found")
    return sorted({team_ids[name] for name in names.values()})


async def add_member(
    tx: Transaction, actor: Actor, name: str, clearance: int, roles: Sequence[Role], teams: list[str]
) -> UUID:
    id = new_id()
    await tx.rows(queries.insert_member, tx.org, id, name, clearance, roles, await sponsors_by(tx, actor))
    await tenancy_store.set_teams(tx, id, await resolve_teams(tx, teams))
    await frame.record(tx, actor, "member_added", member=id, name=name, clearance=clearance, roles=roles, teams=teams)
    return id


@frame.transaction_verb(Permission.MEMBER_WRITE)
async def create_member(
    tx: Transaction, actor: Actor, draft: orgs.MemberDraft, once: IdempotencyKey | None = None
) -> orgs.Member:
    make = partial(add_member, tx, actor, draft.display_name, draft.clearance, draft.roles, draft.teams)
    id, _ = await frame.once_only(tx, actor, "members.create", once, make)
    return frame.require_found(await tenancy_store.get_member(tx, id), "member")


get_member = frame.get_verb(Permission.MEMBER_READ, tenancy_store.get_member, "member")
list_members = frame.read_verb(Permission.MEMBER_READ, tenancy_store.list_members)


@frame.transaction_verb(Permission.MEMBER_READ)
async def list_member_mappings(tx: Transaction, _: Actor, id: UUID, position: After, limit: int) -> Page[Mapping]:
    """Where this person can be reached."""
    frame.require_found(await tenancy_store.get_member(tx, id), "member")
    return await tenancy_store.list_mappings(tx, id, position, limit)


@frame.transaction_verb(Permission.MEMBER_WRITE)
async def update_member(
    tx: Transaction, actor: Actor, id: UUID, change: orgs.MemberChange, revision: int | None
) -> orgs.Member:
    rows = {row["id"]: row for row in await tx.rows(queries.lock_with_admins, id)}
    before = frame.require_found(rows.get(id), "member")
    frame.require_revision(before["revision"], revision)
    stops = change.active is False or (change.roles is not None and Role.ADMIN not in change.roles)
    if before["is_admin"] and stops and not any(row["is_admin"] for row in rows.values() if row is not before):
        raise Conflict(
            "This is the last active admin of the org.", code="last_admin", hint="Make someone else an admin first."
        )
    await tx.rows(queries.update_member, id, change.display_name, change.clearance, change.roles, change.active)
    if change.promotes(before["roles"], before["clearance"]):
        for sponsor in await sponsors_by(tx, actor):
            await tx.rows(queries.add_sponsor, id, sponsor)
    access_end = NOTHING_ENDED
    if change.active is False:
        # For good: reactivating them brings none of it back.
        await tx.rows(queries.hold_access, id)
        access_end = await end_access(tx, id)
    if change.teams is not None:
        await tenancy_store.set_teams(tx, id, await resolve_teams(tx, change.teams))
    await frame.record(
        tx, actor, "member_changed", member=id, name=change.display_name, clearance=change.clearance,
        roles=change.roles, teams=change.teams, active=change.active, **access_end,
    )  # fmt: skip
    return frame.require_found(await tenancy_store.get_member(tx, id), "member")


@frame.transaction_verb(Permission.ABSENCE_WRITE)
async def create_absence(
    tx: Transaction, actor: Actor, draft: orgs.AbsenceDraft, once: IdempotencyKey | None = None
) -> Absence:
    make = partial(_make_absence, tx, actor, _absent_member(actor, draft.member_id), draft)
    id, _ = await frame.once_only(tx, actor, "absences.create", once, make)
    return frame.require_found(await tenancy_store.get_absence(tx, id), "absence")


def _absent_member(actor: Actor, member_id: UUID | None) -> UUID:
    """Whose absence it is; other people's are for admins."""
    if member_id is None or member_id == actor.user_account_id:
        if actor.user_account_id is None:
            raise InvalidInput(
                "This key belongs to nobody who could be absent.",
                hint="Name the member in `member_id`.",
                field="member_id",
            )
        return actor.user_account_id
    if not actor.may(Permission.MEMBER_WRITE):
        raise Forbidden(
            "Only an admin may say that somebody else is absent.",
            code="not_your_absence",
            hint="Leave `member_id` out for yourself, or ask an admin.",
        )
    return member_id


async def _make_absence(tx: Transaction, actor: Actor, member_id: UUID, draft: orgs.AbsenceDraft) -> UUID:
    if draft.delegate_id == member_id:
        raise InvalidInput(
            "Whoever is absent cannot stand in for themselves.",
            code="delegate_is_self",
            hint="Name somebody else.",
            field="delegate_id",
        )
    people = {row["id"]: row for row in await tx.rows(queries.hold_people, [member_id, draft.delegate_id])}
    absent, delegate = people.get(member_id), people.get(draft.delegate_id)
    if absent is None or not _works_here(absent):
        raise NotFound("There is no such active member.", code="member_not_found")
    if delegate is None or not _works_here(delegate):
        raise NotFound(
            "There is no active member with this id who could stand in; guests decide nothing.",
            code="delegate_unknown",
            hint="Choose one of `cortex absence delegates`.",
        )
    span = orgs.span_of(member_id, draft, absent["now"])
    await tx.rows(queries.lock_absences, tx.org)
    await _refuse_clash(tx, span)
    id = new_id()
    await tx.rows(
        queries.insert_absence, tx.org, id, member_id, span.delegate_id, span.starts_at, span.ends_at, draft.reason, actor.name
    )  # fmt: skip
    await frame.record(
        tx, actor, "absence_added", absence=id, member=member_id, name=absent["display_name"],
        delegate=span.delegate_id, delegate_name=delegate["display_name"],
        starts_at=span.starts_at.isoformat(), ends_at=span.ends_at.isoformat(), reason=draft.reason,
    )  # fmt: skip
    return id


def _works_here(person: Row) -> bool:
    return person["deactivated_at"] is None and set(person["roles"]) != {Role.GUEST}


async def _refuse_clash(tx: Transaction, span: orgs.Span) -> None:
    if await tx.value(queries.count_overlapping_absences, span.member_id, span.starts_at, span.ends_at):
        raise Conflict(
            "There is an absence in that time already.",
            code="absence_overlap",
            hint="Cancel the other one first, or choose a time beside it.",
        )
    rows = await tx.rows(queries.list_delegates_absent, span.delegate_id, span.starts_at, span.ends_at)
    if orgs.way_back(span, [parse(orgs.Span, row) for row in rows]) is not None:
        raise Conflict(
            "In that time the delegate is absent too, and it would all lead back to whoever is absent.",
            code="absence_cycle",
            hint="Choose somebody else, or a time in which the delegate is there.",
        )


@frame.transaction_verb(Permission.ABSENCE_WRITE)
async def list_absences(
    tx: Transaction, actor: Actor, position: After, limit: int, member_id: UUID | None = None, only_open: bool = False
) -> Page[Absence]:
    """Newest first. People who are not staff see their own."""
    if actor.sees is not None and member_id not in (None, actor.sees):
        return Page(items=[], next=None)
    rows = await tx.rows(queries.list_absences, *after(position), limit + 1, actor.sees or member_id, only_open)
    return page(Absence, rows, limit)


@frame.transaction_verb(Permission.ABSENCE_WRITE)
async def get_absence(tx: Transaction, actor: Actor, id: UUID) -> Absence:
    return frame.require_found(await tenancy_store.get_absence(tx, id, actor.sees), "absence")


@frame.transaction_verb(Permission.ABSENCE_WRITE)
async def cancel_absence(tx: Transaction, actor: Actor, id: UUID) -> Absence:
    """New requests reach them again; those that their delegate has already stay there."""
    absence = frame.require_found(await tenancy_store.get_absence(tx, id, actor.sees), "absence")
    if absence.member_id != actor.user_account_id and not actor.may(Permission.MEMBER_WRITE):
        raise Forbidden(
            "Only they themselves, or an admin, may cancel this absence.",
            code="not_your_absence",
            hint="Ask one of them.",
        )
    if absence.status is orgs.AbsenceStatus.CANCELLED:
        return absence
    if await tx.value(queries.cancel_absence, id) is None:
        raise Conflict("This absence is over.", code="absence_over", hint="There is nothing left to cancel.")
    await frame.record(tx, actor, "absence_cancelled", absence=id, member=absence.member_id)
    return frame.require_found(await tenancy_store.get_absence(tx, id), "absence")
