"""Agents, the atlases of their sessions, and confirmations of tools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from uuid import UUID

from cortex_plane.agents import store as agents_store
from cortex_plane.agents.model.agents import Agent, AgentChange, AgentDraft, AgentVersion, SkillSettings
from cortex_plane.agents.model.tools import ConfirmationDraft, ToolConfirmation, ToolVersion
from cortex_plane.agents.store import queries
from cortex_plane.db.database import Transaction
from cortex_plane.gates import store as gates_store
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import Conflict, Forbidden, InUse, InvalidInput, NotFound
from cortex_plane.kernel.fields import MAX_ATLASES, parse, split_ref
from cortex_plane.kernel.ids import IdempotencyKey, new_id
from cortex_plane.tenancy import store as tenancy_store
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs import frame


@frame.transaction_verb(Permission.AGENT_WRITE)
async def create_agent(tx: Transaction, actor: Actor, draft: AgentDraft, once: IdempotencyKey | None = None) -> Agent:
    async def make() -> UUID:
        id = new_id()
        team = frame.require_found(await tenancy_store.get_team(tx, draft.team), "team")
        await require_held_atlases(tx, SkillSettings.of(draft.skill_config).atlases)
        await tx.rows(
            queries.insert_agent, tx.org, id, team.id, draft.name, draft.slug, draft.role, draft.description or None,
            draft.channel_permissions, asdict(draft.model_config), draft.skill_config, asdict(draft.resource_limits),
            actor.name, actor.identity,
        )  # fmt: skip
        await frame.record(tx, actor, "agent_created", agent=id, slug=draft.slug, config_version=1)
        return id

    id, _ = await frame.once_only(tx, actor, "agents.create", once, make)
    return frame.require_found(await agents_store.get_agent(tx, str(id)), "agent")


get_agent = frame.get_verb(Permission.AGENT_READ, agents_store.get_agent, "agent")
list_agents = frame.read_verb(Permission.AGENT_READ, agents_store.list_agents)


@frame.transaction_verb(Permission.AGENT_READ)
async def list_versions(tx: Transaction, _: Actor, ref: str, below: int | None, limit: int) -> list[AgentVersion]:
    """The configurations an agent has had, newest first."""
    agent = frame.require_found(await agents_store.get_agent(tx, ref), "agent")
    return [parse(AgentVersion, row) for row in await tx.rows(queries.list_agent_versions, agent.id, below, limit)]


@frame.transaction_verb(Permission.AGENT_WRITE)
async def update_agent(tx: Transaction, actor: Actor, ref: str, change: AgentChange, revision: int | None) -> Agent:
    await _lock_agent(tx, ref, revision)
    before = frame.require_found(await agents_store.get_agent(tx, ref), "agent")
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
        await tx.rows(
            queries.insert_agent_version, tx.org, before.id, version, model, skills, limits, actor.name, actor.identity
        )
    team = frame.require_found(await tenancy_store.get_team(tx, change.team), "team") if change.team else None
    team_id = team.id if team else None
    await tx.rows(
        queries.update_agent, before.id, team_id, change.name, change.role, change.status, change.description,
        change.channel_permissions, version,
    )  # fmt: skip
    await frame.record(
        tx, actor, "agent_changed", agent=before.id, config_version=version, name=change.name, role=change.role,
        team=team_id, status=change.status, channel_permissions=change.channel_permissions,
        description=change.description is not None,
    )  # fmt: skip
    return frame.require_found(await agents_store.get_agent(tx, str(before.id)), "agent")


async def _lock_agent(tx: Transaction, ref: str, revision: int | None) -> UUID:
    row = frame.require_found(await tx.row(queries.lock_agent, *split_ref(ref)), "agent")
    frame.require_revision(row["revision"], revision)
    id: UUID = row["id"]
    return id


@frame.transaction_verb(Permission.AGENT_WRITE)
async def delete_agent(tx: Transaction, actor: Actor, ref: str, revision: int | None) -> None:
    """Only an agent that was never used. Others are archived, so that history keeps what it refers to."""
    id = await _lock_agent(tx, ref, revision)
    (usage,) = await tx.rows(queries.agent_usage, id)
    if any(usage.values()):
        raise InUse(
            f"The agent is used by {usage['sessions']} sessions and {usage['jobs']} jobs.",
            hint="Archive it instead: set its status to ARCHIVED.",
            used_by=dict(usage),
        )
    await tx.rows(queries.delete_agent, id)
    await frame.record(tx, actor, "agent_deleted", agent=id)


async def require_atlas_access(tx: Transaction, actor: Actor, session_id: UUID) -> None:
    """Refuse an actor whom one of the session's atlases keeps out. After whatever binds the session, before the commit.
    Raises ``Forbidden`` (`atlas_access_refused`) with the reason. The deciding facts are the key's name as it is now,
    and whether the person, or the program, is a guest."""
    await tx.rows(gates_store.queries.require_atlas_access, tx.org, session_id, actor.key_id, actor.user_account_id)


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
    """Bind a session to the atlases of its agent, and to those that its caller names. The first atlas of a session only
    tightens it. A further one may allow what the others leave out, so only those who write atlases add it. If an agent
    names atlases later, its next job in a session with an atlas of a caller is refused (`job_binds`)."""
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
        frame.require_found(await gates_store.get_atlas(tx, id), "atlas")
    if own:
        await gates_store.bind_atlases(tx, session_id, own, by_caller=False)
    if new_ids:
        await gates_store.bind_atlases(tx, session_id, new_ids, by_caller=not writes)


@frame.transaction_verb(Permission.TOOL_CONFIRM)
async def confirm_tool(
    tx: Transaction, actor: Actor, draft: ConfirmationDraft, once: IdempotencyKey | None = None
) -> ToolConfirmation:
    """In place of what was confirmed about the tool before."""

    async def make() -> UUID:
        # The org's row first: two who confirm at once take turns. From now on no call that older confirmations allowed is sent.
        since = await tx.value(queries.raise_confirmation_version, tx.org)
        version = await _find_version(tx, draft)
        earlier = await tx.value(
            queries.revoke_confirmation, version.app, version.name, actor.name, actor.identity, since
        )
        id = new_id()
        await tx.rows(
            queries.insert_confirmation, tx.org, id, version.app, version.name, version.digest, draft.read_only,
            draft.idempotent, draft.risk, draft.note, actor.name, actor.identity, since,
        )  # fmt: skip
        await frame.record(
            tx, actor, "tool_confirmed", confirmation=id, app=version.app, tool=version.name, digest=version.digest,
            read_only=draft.read_only, idempotent=draft.idempotent, risk=draft.risk, note=draft.note,
            hints=version.hints, replaces=earlier,
        )  # fmt: skip
        return id

    id, _ = await frame.once_only(tx, actor, "tool_confirmations.confirm", once, make)
    return frame.require_found(await agents_store.get_confirmation(tx, id), "tool_confirmation")


async def _find_version(tx: Transaction, draft: ConfirmationDraft) -> ToolVersion:
    versions = [parse(ToolVersion, row) for row in await tx.rows(queries.get_tools, draft.tool, draft.app)]
    if not versions:
        raise NotFound(
            f"No worker has published a tool `{draft.tool}`{f' of the app `{draft.app}`' if draft.app else ''}.",
            code="tool_not_found",
            hint="`cortex tool list` names those that there are.",
        )
    if len(versions) > 1:
        raise InvalidInput(
            f"Several apps have a tool `{draft.tool}`: {', '.join(version.app for version in versions[:10])}.",
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


@frame.transaction_verb(Permission.TOOL_CONFIRM)
async def revoke_confirmation(tx: Transaction, actor: Actor, id: UUID) -> ToolConfirmation:
    """From now on the tool has side effects again, and is asked about. Once more changes nothing."""
    since = await tx.value(queries.raise_confirmation_version, tx.org)
    confirmation = frame.require_found(await agents_store.get_confirmation(tx, id), "tool_confirmation")
    if confirmation.revoked_at is not None:
        return confirmation
    app, tool = confirmation.app, confirmation.tool_name
    await tx.rows(queries.revoke_confirmation, app, tool, actor.name, actor.identity, since)
    await frame.record(tx, actor, "tool_unconfirmed", confirmation=id, app=app, tool=tool, digest=confirmation.digest)
    return frame.require_found(await agents_store.get_confirmation(tx, id), "tool_confirmation")


get_confirmation = frame.get_verb(Permission.TOOL_READ, agents_store.get_confirmation, "tool_confirmation")
list_confirmations = frame.read_verb(Permission.TOOL_READ, agents_store.list_confirmations)
