"""Teams: groups of members, and what agents belong to."""

from __future__ import annotations

from uuid import UUID

from cortex_plane.db.database import Database, Transaction
from cortex_plane.kernel.errors import InUse, InvalidInput, NotFound
from cortex_plane.kernel.fields import split_ref
from cortex_plane.kernel.idempotency import IdempotencyKey, new_id
from cortex_plane.kernel.pages import Page, Position
from cortex_plane.proof.model.audit import Fact
from cortex_plane.proof.store import audit
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.model.teams import Team, TeamChange, TeamDraft
from cortex_plane.tenancy.store import teams
from cortex_plane.tenancy.verbs.verbs import once_only, require_found, require_revision, verb


@verb(Permission.TEAM_WRITE)
async def create(db: Database, actor: Actor, draft: TeamDraft, once: IdempotencyKey | None = None) -> Team:
    async with db.transaction(actor.org_id) as tx:

        async def make() -> UUID:
            parent = None
            if draft.parent is not None:
                parent = require_found(await teams.get(tx, draft.parent), "team")
                if parent.parent_id is not None:
                    raise InvalidInput(
                        f"The team {parent.slug} has a parent itself.",
                        code="team_too_deep",
                        hint="Teams have one level of parents: choose a team without one.",
                    )
            team = await teams.insert(tx, new_id(), draft.slug, draft.name, parent.id if parent else None)
            await audit.append_to_org(
                tx, Fact.of(actor, "team_created", team=str(team.id), slug=team.slug, parent=draft.parent)
            )
            return team.id

        id, _ = await once_only(tx, actor, "teams.create", once, make)
        return require_found(await teams.get(tx, str(id)), "team")


@verb(Permission.TEAM_READ)
async def get(db: Database, actor: Actor, ref: str) -> Team:
    async with db.transaction(actor.org_id) as tx:
        return require_found(await teams.get(tx, ref), "team")


@verb(Permission.TEAM_READ)
async def list_page(db: Database, actor: Actor, position: Position | None, limit: int) -> Page[Team]:
    async with db.transaction(actor.org_id) as tx:
        return await teams.list_page(tx, position, limit)


@verb(Permission.TEAM_WRITE)
async def update(db: Database, actor: Actor, ref: str, change: TeamChange, revision: int | None) -> Team:
    async with db.transaction(actor.org_id) as tx:
        team = require_found(await teams.get(tx, ref), "team")
        changed = await teams.update(tx, team.id, revision, change.name)
        if changed is None:
            require_revision(require_found(await teams.get(tx, ref), "team").revision, revision)
        await audit.append_to_org(tx, Fact.of(actor, "team_changed", team=str(team.id), name=change.name))
        return require_found(changed, "team")


@verb(Permission.TEAM_WRITE)
async def delete(db: Database, actor: Actor, ref: str) -> None:
    async with db.transaction(actor.org_id) as tx:
        team = require_found(await teams.get(tx, ref), "team")
        usage = await teams.usage(tx, team.id)
        if any(usage.values()):
            raise InUse(
                f"The team {team.slug} is in use by {usage['agents']} agents and {usage['teams']} teams.",
                hint="Move or delete them first.",
                used_by=usage,
            )
        require_found(await teams.delete(tx, team.id) or None, "team")
        await audit.append_to_org(tx, Fact.of(actor, "team_deleted", team=str(team.id), slug=team.slug))


async def resolve_teams(tx: Transaction, refs: list[str]) -> list[UUID]:
    """The ids of all the named teams, or an error that lists the unknown ones."""
    known = await teams.find(tx, refs)
    names = {ref: str(split_ref(ref)[0] or ref) for ref in refs}  # an id has several spellings
    unknown = [ref for ref, name in names.items() if name not in known]
    if unknown:
        raise NotFound(f"There is no team {', '.join(unknown)}.", code="team_not_found")
    return sorted({known[name] for name in names.values()})
