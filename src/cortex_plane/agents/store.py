"""Agents, tools, tool servers and confirmations in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from cortex_plane.agents.model.agents import Agent, AgentStatus
from cortex_plane.agents.model.tools import Confirmed, PublishedTool, ToolConfirmation, ToolServer, ToolVersion
from cortex_plane.db.database import NOBODY, Database, Queries, Transaction, after, many, one, page
from cortex_plane.kernel.fields import Risk, parse, split_ref
from cortex_plane.kernel.pages import After, Page

queries = Queries("agents")

MOST_OF_ORG = 1000
"""Versions that an org's remote workers may have of the tools of one app: older ones are forgotten."""


async def get_agent(tx: Transaction, ref: str) -> Agent | None:
    return one(Agent, await tx.row(queries.get_agent, *split_ref(ref)))


async def list_agents(tx: Transaction, position: After, limit: int, status: AgentStatus | None = None) -> Page[Agent]:
    return page(Agent, await tx.rows(queries.list_agents, *after(position), limit + 1, status), limit)


async def publish_tools(db: Database, versions: Sequence[ToolVersion], org_id: UUID | None = None) -> list[ToolVersion]:
    """Those that take the place of another version. ``org_id``: they are of a remote worker, and for this org alone."""
    new_versions = []
    query = queries.publish_tools if org_id is None else queries.publish_org_tools
    owner = () if org_id is None else (org_id,)
    async with db.transaction(org_id or NOBODY) as tx:
        for version in versions:
            before = await tx.value(
                query, version.app, version.name, version.digest, version.description,
                version.parameters, version.read_only, version.risk, version.timeout_seconds, version.on_uncertain,
                version.server, version.remote_name, version.implementation, version.hints, version.declares_risk, *owner,
            )  # fmt: skip
            if before is not None:
                new_versions.append(version)
        if org_id is not None:
            await tx.rows(queries.forget_org_tools, sorted({version.app for version in versions}), MOST_OF_ORG)
    return new_versions


async def platform_tools(tx: Transaction, apps: Sequence[str]) -> dict[tuple[str, str], str]:
    """The newest digest of each tool, by app and name, of those that workers at the database published."""
    rows = await tx.rows(queries.platform_tools, list(apps))
    return {(row["app"], row["name"]): row["digest"] for row in rows}


async def list_tools(db: Database, org_id: UUID) -> list[ToolVersion]:
    async with db.transaction(org_id) as tx:
        return many(ToolVersion, await tx.rows(queries.list_tools))


async def list_tool_versions(db: Database, org_id: UUID, app: str, limit: int) -> list[PublishedTool]:
    async with db.transaction(org_id) as tx:
        return many(PublishedTool, await tx.rows(queries.list_tool_versions, app, limit))


async def list_server_tools(db: Database, app: str, server: str, org_id: UUID = NOBODY) -> list[ToolVersion]:
    """As it was last known to offer them. ``org_id``: of a remote worker."""
    async with db.transaction(org_id) as tx:
        return many(ToolVersion, await tx.rows(queries.list_server_tools, app, server))


async def known_risks(tx: Transaction, names: Sequence[str]) -> dict[str, Risk]:
    """Of those that somebody published: the highest risk, in any app, with what a steward of the org confirmed."""
    return {row["name"]: Risk(row["risk"]) for row in await tx.rows(queries.known_risks, tx.org, list(names))}


async def newest_tools(tx: Transaction, app: str, name: str) -> ToolVersion | None:
    return one(ToolVersion, await tx.row(queries.newest_tools, app, name))


async def record_tool_server(
    db: Database, app: str, name: str, worker: UUID, state: str, reason: str | None, tools: int
) -> None:
    async with db.transaction(NOBODY) as tx:
        await tx.rows(queries.record_tool_server, app, name, worker, state, reason, tools)


async def forget_tool_servers(db: Database, worker: UUID) -> None:
    async with db.transaction(NOBODY) as tx:
        await tx.rows(queries.forget_tool_servers, worker)


async def list_tool_servers(db: Database) -> list[ToolServer]:
    async with db.transaction(NOBODY) as tx:
        return many(ToolServer, await tx.rows(queries.list_tool_servers))


async def get_confirmation(tx: Transaction, id: UUID) -> ToolConfirmation | None:
    return one(ToolConfirmation, await tx.row(queries.get_confirmation, id))


async def list_confirmations(
    tx: Transaction, position: After, limit: int, *, holding: bool = False
) -> Page[ToolConfirmation]:
    return page(
        ToolConfirmation, await tx.rows(queries.list_confirmations, *after(position), limit + 1, holding), limit
    )


async def active_confirmations(tx: Transaction) -> dict[tuple[str, str, str], Confirmed]:
    """By app, tool and digest."""
    return {
        (row["app"], row["tool_name"], row["digest"]): parse(Confirmed, row)
        for row in await tx.rows(queries.active_confirmations)
    }
