"""Agents and their versions, and which atlases an agent is bound to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from uuid import UUID

from cortex_plane.agents import store as agents_store
from cortex_plane.agents.model.agents import (
    Agent,
    AgentChange,
    AgentDraft,
    AgentStatus,
    AgentVersion,
    SkillSettings,
)
from cortex_plane.db.database import Database, Transaction
from cortex_plane.gates import store as gates_store
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import Conflict, Forbidden, InUse
from cortex_plane.kernel.fields import MAX_ATLASES
from cortex_plane.kernel.ids import IdempotencyKey, new_id
from cortex_plane.kernel.pages import Page, Position
from cortex_plane.proof import store as proof_store
from cortex_plane.proof.model import Fact
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.store import orgs as orgs_store
from cortex_plane.tenancy.verbs.frame import once_only, require_found, require_revision, verb


@verb(Permission.AGENT_WRITE)
async def create(db: Database, actor: Actor, draft: AgentDraft, once: IdempotencyKey | None = None) -> Agent:
    async with db.transaction(actor.org_id) as tx:

        async def make() -> UUID:
            id = new_id()
            team = require_found(await orgs_store.get_team(tx, draft.team), "team")
            await require_held_atlases(tx, SkillSettings.of(draft.skill_config).atlases)
            await agents_store.insert_agent(tx, id, team.id, draft, actor)
            await proof_store.append_to_org(
                tx, Fact.of(actor, "agent_created", agent=str(id), slug=draft.slug, config_version=1)
            )
            return id

        id, _ = await once_only(tx, actor, "agents.create", once, make)
        return require_found(await agents_store.get_agent(tx, str(id)), "agent")


@verb(Permission.AGENT_READ)
async def get(db: Database, actor: Actor, ref: str) -> Agent:
    async with db.transaction(actor.org_id) as tx:
        return require_found(await agents_store.get_agent(tx, ref), "agent")


@verb(Permission.AGENT_READ)
async def list_page(
    db: Database, actor: Actor, position: Position | None, limit: int, status: AgentStatus | None = None
) -> Page[Agent]:
    async with db.transaction(actor.org_id) as tx:
        return await agents_store.list_agents(tx, position, limit, status)


@verb(Permission.AGENT_READ)
async def versions(db: Database, actor: Actor, ref: str, below: int | None, limit: int) -> list[AgentVersion]:
    """The configurations an agent has had, newest first."""
    async with db.transaction(actor.org_id) as tx:
        agent = require_found(await agents_store.get_agent(tx, ref), "agent")
        return await agents_store.list_agent_versions(tx, agent.id, below, limit)


@verb(Permission.AGENT_WRITE)
async def update(db: Database, actor: Actor, ref: str, change: AgentChange, revision: int | None) -> Agent:
    async with db.transaction(actor.org_id) as tx:
        locked = require_found(await agents_store.lock_agent(tx, ref), "agent")
        require_revision(locked["revision"], revision)
        before = require_found(await agents_store.get_agent(tx, ref), "agent")
        model = asdict(change.model_config) if change.model_config else before.model_config
        skills = change.skill_config if change.skill_config is not None else before.skill_config
        if change.skill_config is not None:
            await require_held_atlases(tx, SkillSettings.of(change.skill_config).atlases)
        limits = asdict(change.resource_limits) if change.resource_limits else before.resource_limits
        version = before.config_version
        # As JSON, because to Python `true` and `1` are the same.
        if canonical([model, skills, limits]) != canonical(
            [before.model_config, before.skill_config, before.resource_limits]
        ):
            version += 1
            await agents_store.insert_agent_version(tx, before.id, version, model, skills, limits, actor)
        team = require_found(await orgs_store.get_team(tx, change.team), "team") if change.team else None
        await agents_store.update_agent(
            tx, before.id, team.id if team else None, change.name, change.role, change.status,
            change.description, change.channel_permissions, version,
        )  # fmt: skip
        await proof_store.append_to_org(
            tx,
            Fact.of(
                actor, "agent_changed", agent=str(before.id), config_version=version, name=change.name,
                role=change.role, team=str(team.id) if team else None, status=change.status,
                channel_permissions=change.channel_permissions, description=change.description is not None,
            ),
        )  # fmt: skip
        return require_found(await agents_store.get_agent(tx, str(before.id)), "agent")


@verb(Permission.AGENT_WRITE)
async def delete(db: Database, actor: Actor, ref: str, revision: int | None) -> None:
    """Only what was never used. Anything else is archived, so that history keeps what it refers to."""
    async with db.transaction(actor.org_id) as tx:
        locked = require_found(await agents_store.lock_agent(tx, ref), "agent")
        require_revision(locked["revision"], revision)
        usage = await agents_store.agent_usage(tx, locked["id"])
        if any(usage.values()):
            raise InUse(
                f"The agent is used by {usage['sessions']} sessions and {usage['jobs']} jobs.",
                hint="Archive it instead: set its status to ARCHIVED.",
                used_by=usage,
            )
        await agents_store.delete_agent(tx, locked["id"])
        await proof_store.append_to_org(tx, Fact.of(actor, "agent_deleted", agent=str(locked["id"])))


async def require_atlas_access(tx: Transaction, actor: Actor, session_id: UUID) -> None:
    """Refuse an actor whom one of the session's atlases keeps out. After whatever binds the session, before the commit.

    Raises ``Forbidden`` (`atlas_access_refused`) with the reason. The deciding facts are the key's name as it is now, and
    whether the person, or the program, is a guest.
    """
    await gates_store.require_atlas_access(tx, session_id, actor.key_id, actor.user_account_id)


async def require_held_atlases(tx: Transaction, atlas_ids: Sequence[str]) -> None:
    """Refuse atlases of which no version holds."""
    missing = await gates_store.capabilities_without_holder(tx, atlas_ids) if atlas_ids else []
    if missing:
        raise Conflict(
            f"No version of the atlas {missing[0]} holds.",
            code="atlas_missing",
            hint="Publish one with `cortex atlas publish`, or leave the atlas out.",
        )


async def bind_atlases(
    tx: Transaction, actor: Actor, session_id: UUID, agent: Agent, named: Sequence[str]
) -> None:
    """Bind a session to the atlases of its agent and to those that its caller names besides.

    Whoever puts an atlas around a session that has none only tightens it. Another one beside those that are there may allow
    what they leave out, so that is for those who write atlases. In the other order it is the same: where an agent names atlases
    later, its next job in a session that a caller put another one around is refused (`job_binds`).
    """
    own = SkillSettings.of(agent.skill_config).atlases
    there = {*own, *await gates_store.bound_atlas_ids(tx, session_id)} if named else set(own)
    added = [each for each in named if each not in there]
    writes = actor.may(Permission.ATLAS_WRITE)
    if added and there and not writes:
        raise Forbidden(
            f"This session is governed already, and only stewards and admins add an atlas ({added[0]}) to it.",
            code="atlas_addition_refused",
            hint="Leave `atlases` out, or ask a steward to add it to the agent's `atlases`.",
        )
    if len(there | set(added)) > MAX_ATLASES:
        raise Conflict(
            f"A session is bound to at most {MAX_ATLASES} atlases.",
            code="too_many_atlases",
            hint="Merge some of them into one atlas.",
        )
    for each in added:
        require_found(await gates_store.get_atlas(tx, each), "atlas")
    if own:
        await gates_store.bind_atlases(tx, session_id, own, by_caller=False)
    if added:
        await gates_store.bind_atlases(tx, session_id, added, by_caller=not writes)
