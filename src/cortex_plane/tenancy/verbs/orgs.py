"""Orgs, teams, members and absences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any
from uuid import UUID

from cortex_plane.db.database import Database, Row, Transaction
from cortex_plane.kernel.errors import Conflict, Forbidden, InUse, InvalidInput, NotFound, Stale
from cortex_plane.kernel.fields import split_ref
from cortex_plane.kernel.ids import IdempotencyKey, new_id
from cortex_plane.kernel.pages import Page, Position
from cortex_plane.proof import store as proof_store
from cortex_plane.proof.model import Fact
from cortex_plane.tenancy.model.access import (
    Actor,
    ActorKind,
    FirstOrg,
    KeyKind,
    NewKey,
    NewOrg,
    Permission,
    database_owner,
)
from cortex_plane.tenancy.model.identities import Mapping
from cortex_plane.tenancy.model.orgs import (
    Absence,
    AbsenceDraft,
    AbsenceStatus,
    Member,
    MemberChange,
    MemberDraft,
    Org,
    OrgChange,
    OrgDraft,
    OrgSettings,
    OrgSettingsChange,
    Role,
    Span,
    Team,
    TeamChange,
    TeamDraft,
    span_of,
    way_back,
)
from cortex_plane.tenancy.store import credentials as credentials_store
from cortex_plane.tenancy.store import identities as identities_store
from cortex_plane.tenancy.store import orgs as orgs_store
from cortex_plane.tenancy.verbs import logins
from cortex_plane.tenancy.verbs.access import EndedAccess, end_access, new_key_secret, sponsors_by
from cortex_plane.tenancy.verbs.frame import once_only, require_found, require_revision, verb

FIRST_TEAM = "main"


@verb(Permission.ORG_CREATE)
async def create_org(db: Database, actor: Actor, draft: OrgDraft) -> NewOrg:
    """With a code for its first admin to redeem. On the new org's trail the platform made it: whoever holds the key is nobody
    there."""
    outsider = replace(actor, kind=ActorKind.PLATFORM, user_account_id=None)
    async with db.transaction(new_id()) as tx:
        org, admin_id = await _create_org(tx, outsider, draft, [outsider.key_id])
        code = await logins.make_enrolment_code(tx, outsider, admin_id)
    return NewOrg(org=org, enrolment=code)


async def bootstrap_plane(db: Database, draft: OrgDraft) -> FirstOrg:
    """The first org of a new plane, whose admin holds a platform key. For whoever holds the database, not for a door."""
    secret, key_id = new_key_secret(), new_id()
    async with db.transaction(new_id()) as tx:
        org, admin_id = await _create_org(tx, database_owner(tx.org), draft, [], key=key_id)
        key = await credentials_store.insert_key(
            tx, key_id, "first key", KeyKind.PERSON, admin_id, [], secret, None, platform=True
        )
    return FirstOrg(org=org, key=NewKey(key=key, secret=secret))


async def _create_org(
    tx: Transaction, actor: Actor, draft: OrgDraft, sponsors: Sequence[UUID], *, key: UUID | None = None
) -> tuple[Org, UUID]:
    """An org with a first team and an admin; ``key``: the platform key that the admin gets."""
    admin_id, team_id = new_id(), new_id()
    org = await orgs_store.insert_org(tx, tx.org, draft.slug, draft.name, _stated(OrgSettings()))
    await orgs_store.insert_team(tx, team_id, FIRST_TEAM, "Main", None)
    await orgs_store.insert_member(tx, admin_id, draft.admin_name, 0, [Role.ADMIN], sponsors)
    await orgs_store.set_teams(tx, admin_id, [team_id])
    await proof_store.append_to_org(
        tx,
        Fact.of(
            actor, "org_created", org=str(tx.org), slug=draft.slug, admin=str(admin_id), key=str(key) if key else None,
            platform=key is not None,
        ),
    )  # fmt: skip
    return org, admin_id


@verb(Permission.ORG_READ)
async def get_org(db: Database, actor: Actor) -> Org:
    async with db.transaction(actor.org_id) as tx:
        return require_found(await orgs_store.get_org(tx), "org")


@verb(Permission.ORG_CREATE)
async def list_orgs(db: Database, actor: Actor, position: Position | None, limit: int) -> Page[Org]:  # noqa: ARG001
    return await orgs_store.list_orgs(db, position, limit)


@verb(Permission.ORG_WRITE)
async def update_org(db: Database, actor: Actor, change: OrgChange, revision: int | None) -> Org:
    settings = _stated(change.settings) if change.settings else None
    async with db.transaction(actor.org_id) as tx:
        org = await orgs_store.update_org(tx, revision, change.name, settings)
        if org is None:
            raise Stale(f"The org has changed since revision {revision}.")
        await proof_store.append_to_org(tx, Fact.of(actor, "org_changed", name=change.name, settings=settings))
    return org


def _stated(settings: OrgSettings | OrgSettingsChange) -> dict[str, Any]:
    """Without what nobody said anything about."""
    return {name: value for name, value in asdict(settings).items() if value is not None}


@verb(Permission.TEAM_WRITE)
async def create_team(db: Database, actor: Actor, draft: TeamDraft, once: IdempotencyKey | None = None) -> Team:
    async with db.transaction(actor.org_id) as tx:

        async def make() -> UUID:
            parent = None
            if draft.parent is not None:
                parent = require_found(await orgs_store.get_team(tx, draft.parent), "team")
                if parent.parent_id is not None:
                    raise InvalidInput(
                        f"The team {parent.slug} has a parent itself.",
                        code="team_too_deep",
                        hint="Teams have one level of parents: choose a team without one.",
                    )
            team = await orgs_store.insert_team(tx, new_id(), draft.slug, draft.name, parent.id if parent else None)
            await proof_store.append_to_org(
                tx, Fact.of(actor, "team_created", team=str(team.id), slug=team.slug, parent=draft.parent)
            )
            return team.id

        id, _ = await once_only(tx, actor, "teams.create", once, make)
        return require_found(await orgs_store.get_team(tx, str(id)), "team")


@verb(Permission.TEAM_READ)
async def get_team(db: Database, actor: Actor, ref: str) -> Team:
    async with db.transaction(actor.org_id) as tx:
        return require_found(await orgs_store.get_team(tx, ref), "team")


@verb(Permission.TEAM_READ)
async def list_teams(db: Database, actor: Actor, position: Position | None, limit: int) -> Page[Team]:
    async with db.transaction(actor.org_id) as tx:
        return await orgs_store.list_teams(tx, position, limit)


@verb(Permission.TEAM_WRITE)
async def update_team(db: Database, actor: Actor, ref: str, change: TeamChange, revision: int | None) -> Team:
    async with db.transaction(actor.org_id) as tx:
        team = require_found(await orgs_store.get_team(tx, ref), "team")
        new_team = await orgs_store.update_team(tx, team.id, revision, change.name)
        if new_team is None:
            require_revision(require_found(await orgs_store.get_team(tx, ref), "team").revision, revision)
        await proof_store.append_to_org(tx, Fact.of(actor, "team_changed", team=str(team.id), name=change.name))
        return require_found(new_team, "team")


@verb(Permission.TEAM_WRITE)
async def delete_team(db: Database, actor: Actor, ref: str) -> None:
    async with db.transaction(actor.org_id) as tx:
        team = require_found(await orgs_store.get_team(tx, ref), "team")
        usage = await orgs_store.team_usage(tx, team.id)
        if any(usage.values()):
            raise InUse(
                f"The team {team.slug} is in use by {usage['agents']} agents and {usage['teams']} teams.",
                hint="Move or delete them first.",
                used_by=usage,
            )
        require_found(await orgs_store.delete_team(tx, team.id) or None, "team")
        await proof_store.append_to_org(tx, Fact.of(actor, "team_deleted", team=str(team.id), slug=team.slug))


async def resolve_teams(tx: Transaction, refs: list[str]) -> list[UUID]:
    """The ids of all the named teams, or an error that lists the unknown ones."""
    team_ids = await orgs_store.find_teams(tx, refs)
    names = {ref: str(split_ref(ref)[0] or ref) for ref in refs}  # an id has several spellings
    unknown = [ref for ref, name in names.items() if name not in team_ids]
    if unknown:
        raise NotFound(f"There is no team {', '.join(unknown)}.", code="team_not_found")
    return sorted({team_ids[name] for name in names.values()})


@verb(Permission.MEMBER_WRITE)
async def create_member(db: Database, actor: Actor, draft: MemberDraft, once: IdempotencyKey | None = None) -> Member:
    async with db.transaction(actor.org_id) as tx:

        async def make() -> UUID:
            id = new_id()
            sponsors = await sponsors_by(tx, actor)
            await orgs_store.insert_member(tx, id, draft.display_name, draft.clearance, [*draft.roles], sponsors)
            await orgs_store.set_teams(tx, id, await resolve_teams(tx, draft.teams))
            await proof_store.append_to_org(
                tx,
                Fact.of(
                    actor, "member_added", member=str(id), name=draft.display_name, clearance=draft.clearance,
                    roles=[*draft.roles], teams=draft.teams,
                ),
            )  # fmt: skip
            return id

        id, _ = await once_only(tx, actor, "members.create", once, make)
        return require_found(await orgs_store.get_member(tx, id), "member")


@verb(Permission.MEMBER_READ)
async def get_member(db: Database, actor: Actor, id: UUID) -> Member:
    async with db.transaction(actor.org_id) as tx:
        return require_found(await orgs_store.get_member(tx, id), "member")


@verb(Permission.MEMBER_READ)
async def list_members(
    db: Database, actor: Actor, position: Position | None, limit: int, role: Role | None = None
) -> Page[Member]:
    async with db.transaction(actor.org_id) as tx:
        return await orgs_store.list_members(tx, position, limit, role)


@verb(Permission.MEMBER_READ)
async def list_member_mappings(
    db: Database, actor: Actor, id: UUID, position: Position | None, limit: int
) -> Page[Mapping]:
    """Where this person can be reached."""
    async with db.transaction(actor.org_id) as tx:
        require_found(await orgs_store.get_member(tx, id), "member")
        return await identities_store.list_mappings(tx, id, position, limit)


@verb(Permission.MEMBER_WRITE)
async def update_member(db: Database, actor: Actor, id: UUID, change: MemberChange, revision: int | None) -> Member:
    async with db.transaction(actor.org_id) as tx:
        rows = {row["id"]: row for row in await orgs_store.lock_with_admins(tx, id)}
        before = require_found(rows.get(id), "member")
        require_revision(before["revision"], revision)
        stops = change.active is False or (change.roles is not None and Role.ADMIN not in change.roles)
        if before["is_admin"] and stops and not any(r["is_admin"] for r in rows.values() if r is not before):
            raise Conflict(
                "This is the last active admin of the org.", code="last_admin", hint="Make someone else an admin first."
            )
        roles = None if change.roles is None else [*change.roles]
        await orgs_store.update_member(tx, id, change.display_name, change.clearance, roles, change.active)
        if change.promotes(before["roles"], before["clearance"]):
            for sponsor in await sponsors_by(tx, actor):
                await orgs_store.add_sponsor(tx, id, sponsor)
        access_end = EndedAccess()
        if change.active is False:
            # For good: reactivating them brings none of it back.
            await orgs_store.hold_access(tx, id)
            access_end = await end_access(tx, id)
        if change.teams is not None:
            await orgs_store.set_teams(tx, id, await resolve_teams(tx, change.teams))
        await proof_store.append_to_org(
            tx,
            Fact.of(
                actor, "member_changed", member=str(id), name=change.display_name, clearance=change.clearance,
                roles=roles, teams=change.teams, active=change.active,
                **access_end.as_audit(),
            ),
        )  # fmt: skip
        return require_found(await orgs_store.get_member(tx, id), "member")


@verb(Permission.ABSENCE_WRITE)
async def create_absence(
    db: Database, actor: Actor, draft: AbsenceDraft, once: IdempotencyKey | None = None
) -> Absence:
    member_id = _absent_member(actor, draft.member_id)
    async with db.transaction(actor.org_id) as tx:

        async def make() -> UUID:
            return await _make_absence(tx, actor, member_id, draft)

        id, _ = await once_only(tx, actor, "absences.create", once, make)
        return require_found(await orgs_store.get_absence(tx, id), "absence")


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


async def _make_absence(tx: Transaction, actor: Actor, member_id: UUID, draft: AbsenceDraft) -> UUID:
    if draft.delegate_id == member_id:
        raise InvalidInput(
            "Whoever is absent cannot stand in for themselves.",
            code="delegate_is_self",
            hint="Name somebody else.",
            field="delegate_id",
        )
    people = {row["id"]: row for row in await orgs_store.hold_people(tx, [member_id, draft.delegate_id])}
    absent = people.get(member_id)
    if absent is None or not _works_here(absent):
        raise NotFound("There is no such active member.", code="member_not_found")
    delegate = people.get(draft.delegate_id)
    if delegate is None or not _works_here(delegate):
        raise NotFound(
            "There is no active member with this id who could stand in; guests decide nothing.",
            code="delegate_unknown",
            hint="Choose one of `cortex absence delegates`.",
        )
    span = span_of(member_id, draft, absent["now"])
    await orgs_store.lock_absences(tx)
    await _refuse_what_clashes(tx, span)
    id = new_id()
    await orgs_store.insert_absence(tx, id, span, draft.reason, actor.name)
    fact = Fact.of(
        actor, "absence_added", absence=str(id), member=str(member_id), name=absent["display_name"],
        delegate=str(span.delegate_id), delegate_name=delegate["display_name"],
        starts_at=span.starts_at.isoformat(), ends_at=span.ends_at.isoformat(), reason=draft.reason,
    )  # fmt: skip
    await proof_store.append_to_org(tx, fact)
    return id


def _works_here(person: Row) -> bool:
    return person["deactivated_at"] is None and set(person["roles"]) != {Role.GUEST}


async def _refuse_what_clashes(tx: Transaction, span: Span) -> None:
    if await orgs_store.count_overlapping_absences(tx, span):
        raise Conflict(
            "There is an absence in that time already.",
            code="absence_overlap",
            hint="Cancel the other one first, or choose a time beside it.",
        )
    if way_back(span, await orgs_store.list_delegates_absent(tx, span)) is not None:
        raise Conflict(
            "In that time the delegate is absent too, and it would all lead back to whoever is absent.",
            code="absence_cycle",
            hint="Choose somebody else, or a time in which the delegate is there.",
        )


@verb(Permission.ABSENCE_WRITE)
async def list_absences(
    db: Database,
    actor: Actor,
    position: Position | None,
    limit: int,
    *,
    member_id: UUID | None = None,
    only_open: bool = False,
) -> Page[Absence]:
    """Newest first. Whoever is not staff sees their own."""
    if actor.sees is not None and member_id not in (None, actor.sees):
        return Page(items=[], next=None)
    async with db.transaction(actor.org_id) as tx:
        return await orgs_store.list_absences(tx, position, limit, actor.sees or member_id, only_open)


@verb(Permission.ABSENCE_WRITE)
async def get_absence(db: Database, actor: Actor, id: UUID) -> Absence:
    async with db.transaction(actor.org_id) as tx:
        return require_found(await orgs_store.get_absence(tx, id, actor.sees), "absence")


@verb(Permission.ABSENCE_WRITE)
async def cancel_absence(db: Database, actor: Actor, id: UUID) -> Absence:
    """What is asked from now on reaches them again; what their delegate has already stays there."""
    async with db.transaction(actor.org_id) as tx:
        absence = require_found(await orgs_store.get_absence(tx, id, actor.sees), "absence")
        if absence.member_id != actor.user_account_id and not actor.may(Permission.MEMBER_WRITE):
            raise Forbidden(
                "Only they themselves, or an admin, may cancel this absence.",
                code="not_your_absence",
                hint="Ask one of them.",
            )
        if absence.status is AbsenceStatus.CANCELLED:
            return absence
        if not await orgs_store.cancel_absence(tx, id):
            raise Conflict("This absence is over.", code="absence_over", hint="There is nothing left to cancel.")
        fact = Fact.of(actor, "absence_cancelled", absence=str(id), member=str(absence.member_id))
        await proof_store.append_to_org(tx, fact)
        return require_found(await orgs_store.get_absence(tx, id), "absence")
