"""Agents, the atlases of their sessions, and confirmations of tools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from uuid import UUID

from cortex_plane.agents import store as agents_store
from cortex_plane.agents.model.agents import Agent, AgentChange, AgentDraft, AgentStatus, AgentVersion, SkillSettings
from cortex_plane.agents.model.tools import ConfirmationDraft, ToolConfirmation, ToolVersion
from cortex_plane.db.database import Database, Transaction
from cortex_plane.gates import store as gates_store
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import Conflict, Forbidden, InUse, InvalidInput, NotFound
from cortex_plane.kernel.fields import MAX_ATLASES
from cortex_plane.kernel.ids import IdempotencyKey, new_id
from cortex_plane.kernel.pages import Page, Position
from cortex_plane.proof import store as proof_store
from cortex_plane.proof.model import Fact
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.store import orgs as orgs_store
from cortex_plane.tenancy.verbs.frame import once_only, require_found, require_revision, verb


@verb(Permission.AGENT_WRITE)
async def create_agent(db: Database, actor: Actor, draft: AgentDraft, once: IdempotencyKey | None = None) -> Agent:
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
async def get_agent(db: Database, actor: Actor, ref: str) -> Agent:
    async with db.transaction(actor.org_id) as tx:
        return require_found(await agents_store.get_agent(tx, ref), "agent")


@verb(Permission.AGENT_READ)
async def list_agents(
    db: Database, actor: Actor, position: Position | None, limit: int, status: AgentStatus | None = None
) -> Page[Agent]:
    async with db.transaction(actor.org_id) as tx:
        return await agents_store.list_agents(tx, position, limit, status)


@verb(Permission.AGENT_READ)
async def list_versions(db: Database, actor: Actor, ref: str, below: int | None, limit: int) -> list[AgentVersion]:
    """The configurations an agent has had, newest first."""
    async with db.transaction(actor.org_id) as tx:
        agent = require_found(await agents_store.get_agent(tx, ref), "agent")
        return await agents_store.list_agent_versions(tx, agent.id, below, limit)


@verb(Permission.AGENT_WRITE)
async def update_agent(db: Database, actor: Actor, ref: str, change: AgentChange, revision: int | None) -> Agent:
    async with db.transaction(actor.org_id) as tx:
        agent_row = require_found(await agents_store.lock_agent(tx, ref), "agent")
        require_revision(agent_row["revision"], revision)
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
async def delete_agent(db: Database, actor: Actor, ref: str, revision: int | None) -> None:
    """Only what was never used. Anything else is archived, so that history keeps what it refers to."""
    async with db.transaction(actor.org_id) as tx:
        agent_row = require_found(await agents_store.lock_agent(tx, ref), "agent")
        require_revision(agent_row["revision"], revision)
        usage = await agents_store.agent_usage(tx, agent_row["id"])
        if any(usage.values()):
            raise InUse(
                f"The agent is used by {usage['sessions']} sessions and {usage['jobs']} jobs.",
                hint="Archive it instead: set its status to ARCHIVED.",
                used_by=usage,
            )
        await agents_store.delete_agent(tx, agent_row["id"])
        await proof_store.append_to_org(tx, Fact.of(actor, "agent_deleted", agent=str(agent_row["id"])))


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


async def bind_atlases(tx: Transaction, actor: Actor, session_id: UUID, agent: Agent, atlas_ids: Sequence[str]) -> None:
    """Bind a session to the atlases of its agent, and to those that its caller names.

    The first atlas of a session only tightens it. A further one may allow what the others leave out, so only those who write atlases add it.
    If an agent names atlases later, its next job in a session with an atlas of a caller is refused (`job_binds`).
    """
    own = SkillSettings.of(agent.skill_config).atlases
    there = {*own, *await gates_store.bound_atlas_ids(tx, session_id)} if atlas_ids else set(own)
    new_ids = [id for id in atlas_ids if id not in there]
    writes = actor.may(Permission.ATLAS_WRITE)
    if new_ids and there and not writes:
        raise Forbidden(
            f"This session is governed already, and only stewards and admins add an atlas ({new_ids[0]}) to it.",
            code="atlas_addition_refused",
            hint="Leave `atlases` out, or ask a steward to add it to the agent's `atlases`.",
        )
    if len(there | set(new_ids)) > MAX_ATLASES:
        raise Conflict(
            f"A session is bound to at most {MAX_ATLASES} atlases.",
            code="too_many_atlases",
            hint="Merge some of them into one atlas.",
        )
    for id in new_ids:
        require_found(await gates_store.get_atlas(tx, id), "atlas")
    if own:
        await gates_store.bind_atlases(tx, session_id, own, by_caller=False)
    if new_ids:
        await gates_store.bind_atlases(tx, session_id, new_ids, by_caller=not writes)


@verb(Permission.TOOL_CONFIRM)
async def confirm_tool(
    db: Database, actor: Actor, draft: ConfirmationDraft, once: IdempotencyKey | None = None
) -> ToolConfirmation:
    """In place of what was confirmed about the tool before."""
    async with db.transaction(actor.org_id) as tx:

        async def make() -> UUID:
            return await _insert_confirmation(tx, actor, draft)

        id, _ = await once_only(tx, actor, "tool_confirmations.confirm", once, make)
        return require_found(await agents_store.get_confirmation(tx, id), "tool_confirmation")


async def _insert_confirmation(tx: Transaction, actor: Actor, draft: ConfirmationDraft) -> UUID:
    # The org's row first: two who confirm at once take turns.
    await agents_store.raise_confirmation_version(tx)
    version = await _find_version(tx, draft)
    earlier = await agents_store.revoke_confirmation(tx, version.app, version.name, actor.name)
    id = new_id()
    await agents_store.insert_confirmation(
        tx, id, app=version.app, tool_name=version.name, digest=version.digest, read_only=draft.read_only,
        idempotent=draft.idempotent, risk=draft.risk, note=draft.note, confirmed_by=actor.name,
        confirmed_by_id=actor.identity,
    )  # fmt: skip
    fact = Fact.of(
        actor, "tool_confirmed", confirmation=str(id), app=version.app, tool=version.name, digest=version.digest,
        read_only=draft.read_only, idempotent=draft.idempotent, risk=draft.risk, note=draft.note,
        hints=version.hints, replaces=str(earlier) if earlier else None,
    )  # fmt: skip
    await proof_store.append_to_org(tx, fact)
    return id


async def _find_version(tx: Transaction, draft: ConfirmationDraft) -> ToolVersion:
    versions = await agents_store.get_tools(tx, draft.tool, draft.app)
    if not versions:
        raise NotFound(
            f"No worker has published a tool `{draft.tool}`{f' of the app `{draft.app}`' if draft.app else ''}.",
            code="tool_not_found",
            hint="`cortex tool list` names those that there are.",
        )
    if len(versions) > 1:
        raise InvalidInput(
            f"Several apps have a tool `{draft.tool}`: {', '.join(each.app for each in versions[:10])}.",
            code="app_needed",
            hint="Name the app that you mean.",
            field="app",
        )
    newest = versions[0]
    if newest.server is None:
        raise InvalidInput(
            f"`{newest.name}` is written in the code of its app, which says itself what it is.",
            code="tool_not_confirmable",
            hint="Only tools of MCP servers are confirmed. Change `read_only`, `risk` or `on_uncertain` in the code.",
        )
    if draft.digest != newest.digest:
        raise Conflict(
            f"`{newest.name}` has changed since you looked: its newest version is {newest.digest}.",
            code="tool_changed",
            hint="Look at it again with `cortex tool list`, then confirm that version.",
            digest=newest.digest,
        )
    return newest


@verb(Permission.TOOL_CONFIRM)
async def revoke_confirmation(db: Database, actor: Actor, id: UUID) -> ToolConfirmation:
    """From now on the tool has side effects again, and is asked about. Once more changes nothing."""
    async with db.transaction(actor.org_id) as tx:
        await agents_store.raise_confirmation_version(tx)
        confirmation = require_found(await agents_store.get_confirmation(tx, id), "tool_confirmation")
        if confirmation.revoked_at is not None:
            return confirmation
        await agents_store.revoke_confirmation(tx, confirmation.app, confirmation.tool_name, actor.name)
        fact = Fact.of(
            actor, "tool_unconfirmed", confirmation=str(id), app=confirmation.app, tool=confirmation.tool_name, digest=confirmation.digest
        )  # fmt: skip
        await proof_store.append_to_org(tx, fact)
        return require_found(await agents_store.get_confirmation(tx, id), "tool_confirmation")


@verb(Permission.TOOL_READ)
async def get_confirmation(db: Database, actor: Actor, id: UUID) -> ToolConfirmation:
    async with db.transaction(actor.org_id) as tx:
        return require_found(await agents_store.get_confirmation(tx, id), "tool_confirmation")


@verb(Permission.TOOL_READ)
async def list_confirmations(
    db: Database, actor: Actor, position: Position | None, limit: int, *, holding: bool = False
) -> Page[ToolConfirmation]:
    """Newest first; ``holding`` leaves out what was revoked or replaced."""
    async with db.transaction(actor.org_id) as tx:
        return await agents_store.list_confirmations(tx, position, limit, holding)
