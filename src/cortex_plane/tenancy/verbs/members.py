"""Members: the people of an org."""

from __future__ import annotations

from uuid import UUID

from cortex_plane.db.database import Database
from cortex_plane.kernel.errors import Conflict
from cortex_plane.kernel.idempotency import IdempotencyKey, new_id
from cortex_plane.kernel.pages import Page, Position
from cortex_plane.proof.model.audit import Fact
from cortex_plane.proof.store import audit
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.model.connections import Mapping
from cortex_plane.tenancy.model.members import Member, MemberChange, MemberDraft, Role
from cortex_plane.tenancy.store import connections, members
from cortex_plane.tenancy.verbs.people import EndedAccess, end_access, sponsors_by
from cortex_plane.tenancy.verbs.teams import resolve_teams
from cortex_plane.tenancy.verbs.verbs import once_only, require_found, require_revision, verb


@verb(Permission.MEMBER_WRITE)
async def create(
    db: Database, actor: Actor, draft: MemberDraft, once: IdempotencyKey | None = None
) -> Member:
    async with db.transaction(actor.org_id) as tx:

        async def make() -> UUID:
            id = new_id()
            sponsors = await sponsors_by(tx, actor)
            await members.insert(tx, id, draft.display_name, draft.clearance, [*draft.roles], sponsors)
            await members.set_teams(tx, id, await resolve_teams(tx, draft.teams))
            await audit.append_to_org(
                tx,
                Fact.of(
                    actor, "member_added", member=str(id), name=draft.display_name, clearance=draft.clearance,
                    roles=[*draft.roles], teams=draft.teams,
                ),
            )  # fmt: skip
            return id

        id, _ = await once_only(tx, actor, "members.create", once, make)
        return require_found(await members.get(tx, id), "member")


@verb(Permission.MEMBER_READ)
async def get(db: Database, actor: Actor, id: UUID) -> Member:
    async with db.transaction(actor.org_id) as tx:
        return require_found(await members.get(tx, id), "member")


@verb(Permission.MEMBER_READ)
async def list_page(
    db: Database, actor: Actor, position: Position | None, limit: int, role: Role | None = None
) -> Page[Member]:
    async with db.transaction(actor.org_id) as tx:
        return await members.list_page(tx, position, limit, role)


@verb(Permission.MEMBER_READ)
async def mappings(
    db: Database, actor: Actor, id: UUID, position: Position | None, limit: int
) -> Page[Mapping]:
    """Where this person can be reached."""
    async with db.transaction(actor.org_id) as tx:
        require_found(await members.get(tx, id), "member")
        return await connections.mappings(tx, id, position, limit)


@verb(Permission.MEMBER_WRITE)
async def update(db: Database, actor: Actor, id: UUID, change: MemberChange, revision: int | None) -> Member:
    async with db.transaction(actor.org_id) as tx:
        locked = {row["id"]: row for row in await members.lock_with_admins(tx, id)}
        before = require_found(locked.get(id), "member")
        require_revision(before["revision"], revision)
        stops = change.active is False or (change.roles is not None and Role.ADMIN not in change.roles)
        if (
            before["is_admin"]
            and stops
            and not any(r["is_admin"] for r in locked.values() if r is not before)
        ):
            raise Conflict(
                "This is the last active admin of the org.",
                code="last_admin",
                hint="Make someone else an admin first.",
            )
        roles = None if change.roles is None else [*change.roles]
        await members.update(tx, id, change.display_name, change.clearance, roles, change.active)
        if change.promotes(before["roles"], before["clearance"]):
            for sponsor in await sponsors_by(tx, actor):
                await members.add_sponsor(tx, id, sponsor)
        ended = EndedAccess()
        if change.active is False:
            # For good: reactivating them brings none of it back.
            await members.hold_access(tx, id)
            ended = await end_access(tx, id)
        if change.teams is not None:
            await members.set_teams(tx, id, await resolve_teams(tx, change.teams))
        await audit.append_to_org(
            tx,
            Fact.of(
                actor, "member_changed", member=str(id), name=change.display_name, clearance=change.clearance,
                roles=roles, teams=change.teams, active=change.active,
                **ended.as_audit(),
            ),
        )  # fmt: skip
        return require_found(await members.get(tx, id), "member")
