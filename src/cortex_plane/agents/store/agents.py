"""Agents and their versions in SQL."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any
from uuid import UUID

from cortex_plane.agents.model.agents import Agent, AgentDraft, AgentVersion
from cortex_plane.db.database import Row, Transaction
from cortex_plane.db.queries import Queries
from cortex_plane.db.rows import after, one, page
from cortex_plane.kernel.fields import split_ref
from cortex_plane.kernel.pages import Page, Position
from cortex_plane.kernel.values import parse
from cortex_plane.tenancy.model.access import Actor

queries = Queries(__file__)


async def insert(tx: Transaction, id: UUID, team_id: UUID, draft: AgentDraft, created_by: Actor) -> None:
    await tx.rows(
        queries.insert,
        tx.org,
        id,
        team_id,
        draft.name,
        draft.slug,
        draft.role,
        draft.description or None,
        draft.channel_permissions,
        asdict(draft.model_config),
        draft.skill_config,
        asdict(draft.resource_limits),
        created_by.name,
        created_by.identity,
    )


async def get(tx: Transaction, ref: str) -> Agent | None:
    return one(Agent, await tx.row(queries.get, *split_ref(ref)))


async def lock(tx: Transaction, ref: str) -> Row | None:
    return await tx.row(queries.lock, *split_ref(ref))


async def list_page(
    tx: Transaction, position: Position | None, limit: int, status: str | None
) -> Page[Agent]:
    return page(Agent, await tx.rows(queries.list_page, *after(position), limit + 1, status), limit)


async def update(
    tx: Transaction,
    id: UUID,
    team_id: UUID | None,
    name: str | None,
    role: str | None,
    status: str | None,
    description: str | None,
    channel_permissions: list[str] | None,
    config_version: int,
) -> None:
    await tx.rows(
        queries.update, id, team_id, name, role, status, description, channel_permissions, config_version
    )


async def insert_version(
    tx: Transaction,
    id: UUID,
    version: int,
    model_config: dict[str, Any],
    skill_config: dict[str, Any],
    resource_limits: dict[str, Any],
    created_by: Actor,
) -> None:
    await tx.rows(
        queries.insert_version,
        tx.org,
        id,
        version,
        model_config,
        skill_config,
        resource_limits,
        created_by.name,
        created_by.identity,
    )


async def versions(tx: Transaction, id: UUID, below: int | None, limit: int) -> list[AgentVersion]:
    return [parse(AgentVersion, row) for row in await tx.rows(queries.versions, id, below, limit)]


async def usage(tx: Transaction, id: UUID) -> dict[str, int]:
    (row,) = await tx.rows(queries.usage, id)
    return dict(row)


async def delete(tx: Transaction, id: UUID) -> bool:
    return await tx.value(queries.delete, id) is not None
