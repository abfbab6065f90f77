"""Agents: definitions with immutable config versions."""

from __future__ import annotations

from dataclasses import asdict
from uuid import UUID

from cortex_plane.agents.model.agents import (
    Agent,
    AgentChange,
    AgentDraft,
    AgentStatus,
    AgentVersion,
    SkillSettings,
)
from cortex_plane.agents.store import agents
from cortex_plane.agents.verbs.atlas_access import require_holding
from cortex_plane.db.database import Database
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import InUse
from cortex_plane.kernel.idempotency import IdempotencyKey, new_id
from cortex_plane.kernel.pages import Page, Position
from cortex_plane.proof.model.audit import Fact
from cortex_plane.proof.store import audit
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.store import teams
from cortex_plane.tenancy.verbs.verbs import once_only, require_found, require_revision, verb


@verb(Permission.AGENT_WRITE)
async def create(db: Database, actor: Actor, draft: AgentDraft, once: IdempotencyKey | None = None) -> Agent:
    async with db.transaction(actor.org_id) as tx:

        async def make() -> UUID:
            id = new_id()
            team = require_found(await teams.get(tx, draft.team), "team")
            await require_holding(tx, SkillSettings.of(draft.skill_config).atlases)
            await agents.insert(tx, id, team.id, draft, actor)
            await audit.append_to_org(
                tx, Fact.of(actor, "agent_created", agent=str(id), slug=draft.slug, config_version=1)
            )
            return id

        id, _ = await once_only(tx, actor, "agents.create", once, make)
        return require_found(await agents.get(tx, str(id)), "agent")


@verb(Permission.AGENT_READ)
async def get(db: Database, actor: Actor, ref: str) -> Agent:
    async with db.transaction(actor.org_id) as tx:
        return require_found(await agents.get(tx, ref), "agent")


@verb(Permission.AGENT_READ)
async def list_page(
    db: Database, actor: Actor, position: Position | None, limit: int, status: AgentStatus | None = None
) -> Page[Agent]:
    async with db.transaction(actor.org_id) as tx:
        return await agents.list_page(tx, position, limit, status)


@verb(Permission.AGENT_READ)
async def versions(db: Database, actor: Actor, ref: str, below: int | None, limit: int) -> list[AgentVersion]:
    """The configurations an agent has had, newest first."""
    async with db.transaction(actor.org_id) as tx:
        agent = require_found(await agents.get(tx, ref), "agent")
        return await agents.versions(tx, agent.id, below, limit)


@verb(Permission.AGENT_WRITE)
async def update(db: Database, actor: Actor, ref: str, change: AgentChange, revision: int | None) -> Agent:
    async with db.transaction(actor.org_id) as tx:
        locked = require_found(await agents.lock(tx, ref), "agent")
        require_revision(locked["revision"], revision)
        before = require_found(await agents.get(tx, ref), "agent")
        model = asdict(change.model_config) if change.model_config else before.model_config
        skills = change.skill_config if change.skill_config is not None else before.skill_config
        if change.skill_config is not None:
            await require_holding(tx, SkillSettings.of(change.skill_config).atlases)
        limits = asdict(change.resource_limits) if change.resource_limits else before.resource_limits
        version = before.config_version
        # As JSON, because to Python `true` and `1` are the same.
        if canonical([model, skills, limits]) != canonical(
            [before.model_config, before.skill_config, before.resource_limits]
        ):
            version += 1
            await agents.insert_version(tx, before.id, version, model, skills, limits, actor)
        team = require_found(await teams.get(tx, change.team), "team") if change.team else None
        await agents.update(
            tx, before.id, team.id if team else None, change.name, change.role, change.status,
            change.description, change.channel_permissions, version,
        )  # fmt: skip
        await audit.append_to_org(
            tx,
            Fact.of(
                actor, "agent_changed", agent=str(before.id), config_version=version, name=change.name,
                role=change.role, team=str(team.id) if team else None, status=change.status,
                channel_permissions=change.channel_permissions, description=change.description is not None,
            ),
        )  # fmt: skip
        return require_found(await agents.get(tx, str(before.id)), "agent")


@verb(Permission.AGENT_WRITE)
async def delete(db: Database, actor: Actor, ref: str, revision: int | None) -> None:
    """Only what was never used. Anything else is archived, so that history keeps what it refers to."""
    async with db.transaction(actor.org_id) as tx:
        locked = require_found(await agents.lock(tx, ref), "agent")
        require_revision(locked["revision"], revision)
        usage = await agents.usage(tx, locked["id"])
        if any(usage.values()):
            raise InUse(
                f"The agent is used by {usage['sessions']} sessions and {usage['jobs']} jobs.",
                hint="Archive it instead: set its status to ARCHIVED.",
                used_by=usage,
            )
        await agents.delete(tx, locked["id"])
        await audit.append_to_org(tx, Fact.of(actor, "agent_deleted", agent=str(locked["id"])))
